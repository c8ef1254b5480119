"""The small convolutional network of many MNIST tutorials."""

from torch import nn

from tenfold.errors import ModelError
from tenfold.models.layers import between, image_sides


def cnn(
    shape: tuple[int, ...], outputs: int, *, activation: str = "relu", dropout: float = 0.0, batchnorm: bool = False
) -> nn.Module:
    """Return convolutions of 32 and 64 channels and a linear layer of 128: 1.2 M parameters for 28x28 images."""
    channels, height, width = image_sides(shape, "cnn")
    high, wide = ((side - 4) // 2 for side in (height, width))
    if min(high, wide) < 1:
        raise ModelError(f"cnn needs images of at least 6x6 pixels, not {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        *between(activation, nn.BatchNorm2d(32) if batchnorm else None),
        nn.Conv2d(32, 64, 3),
        *between(activation, nn.BatchNorm2d(64) if batchnorm else None),
        nn.MaxPool2d(2),
        *([nn.Dropout(dropout)] if dropout else []),
        nn.Flatten(),
        nn.Linear(64 * high * wide, 128),
        *between(activation, nn.BatchNorm1d(128) if batchnorm else None, dropout),
        nn.Linear(128, outputs),
    )
