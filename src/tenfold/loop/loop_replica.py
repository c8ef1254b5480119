"""The model and the optimizer of a user's own training loop, as rounds use them."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tenfold.training import FlatState


class LoopReplica:
    """The model and the optimizer of a training loop as a replica for rounds; `vector` holds its state until released.

    `rate` is the learning rate that all ranks use in a round, as their schedules may be at different steps.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, vector: Tensor) -> None:
        self.flat = FlatState(model, vector)
        self.optimizer = optimizer
        self.rate = self.own_rate
        own = {id(parameter) for parameter in model.parameters()}
        self.learning: list[nn.Parameter] = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) in own and parameter.requires_grad
        ]

    @property
    def own_rate(self) -> float:
        """The learning rate of the first group of parameters."""
        return float(self.optimizer.param_groups[0]["lr"])

    @property
    def skips(self) -> bool:
        """Return whether a GradScaler has found a gradient that is no number, and lets the optimizer skip this step."""
        found = getattr(self.optimizer, "found_inf", None)
        return isinstance(found, Tensor) and bool(found.any())

    @torch.no_grad()
    def unscale(self) -> None:
        """Do what a GradScaler has left to a fused optimizer: divide the gradients by the scale, once."""
        scale = getattr(self.optimizer, "grad_scale", None)
        if isinstance(scale, Tensor):
            for parameter in self.learning:
                if parameter.grad is not None:
                    parameter.grad.div_(scale)
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
