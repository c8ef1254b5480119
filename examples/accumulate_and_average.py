"""Save memory with gradient accumulation or activation checkpointing, and average weights over time.

Expected output (the last digits depend on the processor):

    1 worker: accuracy 0.9 with batches in one piece, 0.9 in four, 0.9 with activations computed again
    2 workers with a moving average of their weights: accuracy 0.9
"""

import tenfold

options = {"model": "mlp", "data": "digits", "epochs": 4, "optimizer": "sgd"}
whole = tenfold.train(**options)
pieces = tenfold.train(**options, accumulate=4)
again = tenfold.train(**options, activation_checkpointing=["1"])  # the names of modules, or True for all blocks
average = tenfold.train(**options, workers=2, ema=0.9)
print(
    f"1 worker: accuracy {whole.accuracy:.1f} with batches in one piece, {pieces.accuracy:.1f} in four, "
    f"{again.accuracy:.1f} with activations computed again"
)
print(f"2 workers with a moving average of their weights: accuracy {average.accuracy:.1f}")
