"""Train a network with several inputs: measured numbers and a category, given by name.

The keys of the dict are the arguments of `forward`; "labels" is recognized as the target. `((numbers, kind), labels)`
or a Dataset whose samples are dicts or tuples work as well. Expected output (the last digits depend
on the processor):

    1 worker: accuracy 0.99
    2 workers: accuracy 0.99
    3 folds: accuracy 0.99 on average
"""

import torch
from torch import Tensor, nn

import tenfold

generator = torch.Generator().manual_seed(0)
numbers = torch.randn(1200, 3, generator=generator)
kind = torch.randint(0, 5, (1200,), generator=generator)
labels = (numbers.sum(1) + kind > 2).long()
data = {"numbers": numbers, "kind": kind, "labels": labels}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.layers = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
        return self.layers(torch.cat([numbers, self.embed(kind)], 1))


options = {"model": Network, "data": data, "optimizer": "adam", "lr": 0.01, "batch_size": 32, "epochs": 8}
one = tenfold.train(**options)
two = tenfold.train(**options, workers=2)
folds = tenfold.cross_validate(**options, folds=3)
mean = sum(run.metrics["accuracy"] for run in folds.runs) / len(folds.runs)
print(f"1 worker: accuracy {one.accuracy:.2f}")
print(f"2 workers: accuracy {two.accuracy:.2f}")
print(f"3 folds: accuracy {mean:.2f} on average")
