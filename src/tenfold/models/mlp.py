"""A multilayer perceptron."""

import math
from collections.abc import Sequence

from torch import nn

from tenfold.models.layers import between


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
