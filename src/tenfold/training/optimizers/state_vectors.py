"""How much an optimizer keeps between steps."""

import math

import torch
from torch import nn

from tenfold.experiment import Training
from tenfold.training.optimizers.make_optimizer import make_optimizer

ASSUMED = 2
"""As many vectors as Adam keeps, for an optimizer that does not step without a batch."""


def count_state_vectors(training: Training, network: nn.Module) -> int:
    """Return how many vectors of the size of the weights the optimizer keeps: what is there after a step."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not parameters:
        return 0
    optimizer = make_optimizer(training, network)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except Exception:  # a user's own optimizer may need more: sparse gradients, a closure
        return ASSUMED
    kept = (value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor))
    return math.ceil(sum(tensor.numel() for tensor in kept if tensor.ndim) / sum(p.numel() for p in parameters))
