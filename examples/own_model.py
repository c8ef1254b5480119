"""Train your own network on your own tensors, with two workers.

No `if __name__ == "__main__"` is needed: objects from a script or a notebook are sent to the workers by
value. Expected output (the last digits depend on the processor):

    2 workers, 5 epochs: rmse 0.03 on the test part
    a prediction of shape (3, 1)
"""

import torch
from torch import nn

import tenfold

generator = torch.Generator().manual_seed(0)
x = torch.rand(2000, 2, generator=generator) * 2 - 1
y = (x[:, :1] * x[:, 1:]).sin()


def network(shape: tuple[int, ...], outputs: int, width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh(), nn.Linear(width, outputs))


run = tenfold.train(
    model=network,
    model_options={"width": 128},
    data=(x, y),
    metrics="rmse",
    workers=2,
    optimizer="adam",
    lr=0.01,
    batch_size=32,
    epochs=5,
)
told = run.result
print(f"{told['workers']} workers, {told['epochs']} epochs: rmse {run.metrics['rmse']:.2f} on the test part")
print(f"a prediction of shape {tuple(run.model(x[:3]).shape)}")
