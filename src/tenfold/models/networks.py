"""The smallest network with a given number of weights, for calibration: nearly all of its time goes into rounds.

It is defined here because worker processes import the models.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common.catalog import Registry
from tenfold.errors import ModelError


class Vector(nn.Module):
    """Predicts the mean of its weights, whatever it is shown; a step reads and writes each weight, as any step does."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(numel))

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each sample."""
        return self.weights.mean().expand(len(x), 1)


ACTIVATIONS: Registry[Callable[[], nn.Module]] = Registry(
    "activation",
    {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "gelu": nn.GELU},
    error=ModelError,
)


def between(activation: str, normalise: nn.Module | None, dropout: float = 0.0) -> Iterator[nn.Module]:
    """Yield what follows a layer: normalization, the activation, dropout; each only if requested."""
    if normalise is not None:
        yield normalise
    yield ACTIVATIONS[activation]()
    if dropout:
        yield nn.Dropout(dropout)


def image_sides(shape: tuple[int, ...], network: str) -> tuple[int, int, int]:
    """Return channels, height and width of a sample; raise ModelError if it is not an image."""
    if len(shape) != 3:
        raise ModelError(
            f"{network} takes images, (channels, height, width), but a sample here has shape {shape}; "
            'model = "mlp" takes any shape'
        )
    return shape[0], shape[1], shape[2]


# Standardized inputs and filled-in missing values, as the first thing that a network does.
#
# Means and deviations are those of the training part, and are buffers of the network: they are saved with the
# weights, and a trained network takes inputs as they were given. In a cross-validation each fold has its own.

MEAN, DEVIATION = "input_mean", "input_deviation"
"""The buffers of the network."""


def scale_inputs(network: nn.Module, scaling: dict[str, Tensor]) -> nn.Module:
    """Let a network replace missing inputs (NaN) by `mean`, and then subtract `mean` and divide by `deviation`."""
    for name, tensor in scaling_buffers(scaling).items():
        network.register_buffer(name, tensor.clone())
    network.register_forward_pre_hook(_scale)
    return network


def scaling_buffers(scaling: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the buffers of a network that scales its inputs, by name; none where it does not."""
    return {} if scaling is None else {MEAN: scaling["mean"], DEVIATION: scaling["deviation"]}


def scaling_in(weights: dict[str, Any]) -> dict[str, Tensor] | None:
    """Return the scaling that was saved with a network's weights, if it has one."""
    if MEAN not in weights or DEVIATION not in weights:
        return None
    return {"mean": weights[MEAN], "deviation": weights[DEVIATION]}


def _scale(network: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    x, *others = args
    mean, deviation = getattr(network, MEAN), getattr(network, DEVIATION)
    if deviation.shape != mean.shape:  # missing values are filled in, but nothing is standardized
        return torch.where(torch.isnan(x), mean, x), *others
    return torch.nan_to_num((x - mean) / deviation, nan=0.0), *others


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


def mlp(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: Sequence[int] = (128,),
    activation: str = "relu",
    dropout: float = 0.0,
    batchnorm: bool = False,
) -> nn.Module:
    """Return linear layers of the hidden widths and one for the outputs, over samples of any shape."""
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(shape)
    for units in hidden:
        layers.append(nn.Linear(width, units))
        layers.extend(between(activation, nn.BatchNorm1d(units) if batchnorm else None, dropout))
        width = units
    return nn.Sequential(*layers, nn.Linear(width, outputs))
