"""Slow momentum on the difference from one mean to the next, in units of the inner learning rate."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.base import require
from tenfold.mixing.outer.base import OuterOptimizer, State


@dataclass(frozen=True, kw_only=True)
class SlowMo(OuterOptimizer):
    """u <- beta u + (x0 - mean(x_i)) / gamma; x0 <- x0 - alpha gamma u (Wang et al. 2020).

    gamma is the inner learning rate. beta = 0 and alpha = 1 is plain averaging.
    """

    name: ClassVar[str] = "slowmo"

    alpha: float = 1.0
    """Slow learning rate."""

    beta: float = 0.7
    """Slow momentum; the paper finds 0.4 to 0.8 good."""

    def __post_init__(self) -> None:
        require(self.alpha > 0, f"slowmo: alpha is {self.alpha}; it must be more than 0")
        require(0 <= self.beta < 1, f"slowmo: beta is {self.beta}; it must be at least 0 and less than 1")

    def start(self, x0: Tensor, /) -> State:
        """Remember x0 and u = 0."""
        return {"reference": x0.clone(), "momentum": torch.zeros_like(x0)}

    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        """Move x0 along the slow momentum and restart from it; where the rate is 0 nothing has moved."""
        if lr == 0:
            return mean
        reference, momentum = state["reference"], state["momentum"]
        momentum.mul_(self.beta).add_(mean.sub_(reference), alpha=-1 / lr)
        reference.add_(momentum, alpha=-self.alpha * lr)
        return mean.copy_(reference)
