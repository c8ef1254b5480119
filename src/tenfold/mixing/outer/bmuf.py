"""Blockwise model-update filtering: momentum on the steps that the mean takes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.base import require
from tenfold.mixing.outer.base import OuterOptimizer, State


@dataclass(frozen=True, kw_only=True)
class BMUF(OuterOptimizer):
    """G = mean(x_i) - X; D <- mu D + zeta G; X <- X + D (Chen & Huo 2016).

    Replicas restart from X (classic) or from X + mu D (Nesterov).
    """

    name: ClassVar[str] = "bmuf"

    mu: float | None = None
    """Block momentum. Default: 1 - 1/N."""

    zeta: float = 1.0
    """Block learning rate."""

    nesterov: bool = False
    """Whether to restart from X + mu D (Nesterov) instead of X."""

    def __post_init__(self) -> None:
        require(self.mu is None or 0 <= self.mu < 1, f"bmuf: mu is {self.mu}; it must be at least 0 and less than 1")
        require(self.zeta > 0, f"bmuf: zeta is {self.zeta}; it must be more than 0")

    def start(self, x0: Tensor, /) -> State:
        """Remember X = x0 and D = 0."""
        return {"reference": x0.clone(), "velocity": torch.zeros_like(x0)}

    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        """Move X by the filtered step and restart from it."""
        mu = 1 - 1 / n if self.mu is None else self.mu
        reference, velocity = state["reference"], state["velocity"]
        velocity.mul_(mu).add_(mean.sub_(reference), alpha=self.zeta)
        reference.add_(velocity)
        mean.copy_(reference)
        return mean.add_(velocity, alpha=mu) if self.nesterov else mean
