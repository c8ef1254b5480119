"""The least network with a given number of weights, so that rounds are most of what a burst does."""

import torch
from torch import Tensor, nn

from tenfold.data import Splits, Tensors


class Vector(nn.Module):
    """Predicts the mean of its weights, whatever it is shown; a step reads and writes each weight, as any step does."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(numel))

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each sample."""
        return self.weights.mean().expand(len(x), 1)


def few_numbers(samples: int = 64) -> Splits:
    """Return a regression of one number on another."""
    part = Tensors(torch.zeros(samples, 1), torch.ones(samples, 1))
    return Splits(name="numbers", train=part, shape=(1,), classes=None, outputs=1)


def random_images(samples: int = 4096, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Splits:
    """Return noise in the shape of MNIST."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, *shape, generator=generator)
    y = torch.randint(classes, (samples,), generator=generator)
    return Splits(
        name="noise", train=Tensors(x, y), test=Tensors(x[:512], y[:512]), shape=shape, classes=classes, outputs=classes
    )
