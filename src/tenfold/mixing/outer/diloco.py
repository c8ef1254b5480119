"""DiLoCo: Nesterov momentum on the difference between the old weights and the mean."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.base import require
from tenfold.mixing.outer.base import OuterOptimizer, State


@dataclass(frozen=True, kw_only=True)
class DiLoCo(OuterOptimizer):
    """D = mean(x_old - x_i); b <- mu b + D; x <- x_old - eta (D + mu b) (Douillard et al. 2023).

    The inner optimizer is AdamW and its state stays with the replica.
    """

    name: ClassVar[str] = "diloco"

    outer_lr: float = 0.7
    """eta."""

    momentum: float = 0.9
    """mu."""

    def __post_init__(self) -> None:
        require(self.outer_lr > 0, f"diloco: outer_lr is {self.outer_lr}; it must be more than 0")
        require(0 <= self.momentum < 1, f"diloco: momentum is {self.momentum}; it must be at least 0 and less than 1")

    def start(self, x0: Tensor, /) -> State:
        """Remember x_old = x0 and b = 0."""
        return {"reference": x0.clone(), "momentum": torch.zeros_like(x0)}

    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        """Take one outer Nesterov step and restart from there."""
        reference, momentum = state["reference"], state["momentum"]
        way = mean.sub_(reference).neg_()
        momentum.mul_(self.momentum).add_(way)
        reference.sub_(way.add_(momentum, alpha=self.momentum), alpha=self.outer_lr)
        return mean.copy_(reference)
