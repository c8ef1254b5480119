"""Train on samples with several labels each: targets are 0 or 1, in one column per label.

Expected output (the last digits depend on the processor):

    1 worker: accuracy 0.9, f1_macro 0.9
    2 workers: accuracy 0.9, f1_macro 0.9
"""

import torch

import tenfold

generator = torch.Generator().manual_seed(0)
x = torch.randn(1000, 4, generator=generator)
labels = torch.stack([x[:, 0] > 0, x[:, 1] > x[:, 2], x.sum(1) > 0], 1).long()
options = {"model": "mlp", "data": (x, labels), "loss": "bce", "metrics": ["accuracy", "f1_macro"], "epochs": 5}
for workers in (1, 2):
    run = tenfold.train(**options, optimizer="adam", lr=0.02, workers=workers)
    name = "1 worker" if workers == 1 else f"{workers} workers"
    print(f"{name}: accuracy {run.metrics['accuracy']:.2f}, f1_macro {run.metrics['f1_macro']:.2f}")
