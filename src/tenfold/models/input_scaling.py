"""Standardized inputs and filled-in missing values, as the first thing that a network does.

Means and deviations are those of the training part, and are buffers of the network: they are saved with the weights,
and a trained network takes inputs as they were given. In a cross-validation each fold has its own.
"""

from typing import Any

import torch
from torch import Tensor, nn

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
