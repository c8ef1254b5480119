"""Data for calibration."""

import torch

from tenfold.data import Splits, Tensors


def tiny_regression() -> Splits:
    """Return a regression of one number on another, which costs next to nothing."""
    part = Tensors(torch.zeros(64, 1), torch.ones(64, 1))
    return Splits(name="numbers", train=part, shape=(1,), classes=None, outputs=1)


def random_images() -> Splits:
    """Return noise of the shape of MNIST."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, 1, 28, 28, generator=generator)
    y = torch.randint(10, (4096,), generator=generator)
    test = Tensors(x[:512], y[:512])
    return Splits(name="noise", train=Tensors(x, y), test=test, shape=(1, 28, 28), classes=10, outputs=10)
