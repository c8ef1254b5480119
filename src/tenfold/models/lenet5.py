"""LeNet-5 (LeCun et al. 1998), as it is used today: max pooling, no partial connections."""

from torch import nn

from tenfold.errors import ModelError
from tenfold.models.layers import between, image_sides


def lenet5(
    shape: tuple[int, ...], outputs: int, *, activation: str = "relu", dropout: float = 0.0, batchnorm: bool = False
) -> nn.Module:
    """Return two convolutions and three linear layers: 61,706 parameters for 28x28 images and 10 classes.

    Images under 12 pixels, too small for two 5x5 windows and two poolings, are padded before both convolutions.
    """
    channels, height, width = image_sides(shape, "lenet5")
    padding = 0 if min(height, width) >= 12 else 2
    high, wide = (((side // 2) - 4 + 2 * padding) // 2 for side in (height, width))
    if min(high, wide) < 1:
        raise ModelError(f"lenet5 needs images of at least 4x4 pixels, not {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        *between(activation, nn.BatchNorm2d(6) if batchnorm else None),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5, padding=padding),
        *between(activation, nn.BatchNorm2d(16) if batchnorm else None),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * high * wide, 120),
        *between(activation, nn.BatchNorm1d(120) if batchnorm else None, dropout),
        nn.Linear(120, 84),
        *between(activation, nn.BatchNorm1d(84) if batchnorm else None, dropout),
        nn.Linear(84, outputs),
    )
