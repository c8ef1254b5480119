"""Data for calibration."""

import torch

from tenfold.data import Splits, Tensors


def tiny_regression(samples: int = 64) -> Splits:
    """Return a regression of one number on another, which costs next to nothing."""
    part = Tensors(torch.zeros(samples, 1), torch.ones(samples, 1))
    return Splits(name="numbers", train=part, shape=(1,), classes=None, outputs=1)


def random_images(samples: int = 4096, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Splits:
    """Return noise of the shape of MNIST."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, *shape, generator=generator)
    y = torch.randint(classes, (samples,), generator=generator)
    return Splits(
        name="noise", train=Tensors(x, y), test=Tensors(x[:512], y[:512]), shape=shape, classes=classes, outputs=classes
    )
