"""Outer optimizers: they compute the weights from which all replicas continue, given their mean."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.strategies import require

State = dict[str, Tensor]
"""The state between rounds, by name; it is saved and loaded with the replicas."""


class OuterOptimizer(ABC):
    """One step per round on flat weights; it is elementwise, so every engine computes the same bits.

    Subclasses are frozen dataclasses whose fields are the options; everything that changes is stored in the state.
    """

    name: ClassVar[str]

    @abstractmethod
    def start(self, x0: Tensor, /) -> State:
        """Return the state before the first round; `x0` holds the initial weights of all replicas."""

    @abstractmethod
    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:
        """Turn the mean of `n` replicas, whose inner learning rate is `lr`, into the weights they continue from.

        Changes `state`, overwrites `mean` with the result and returns it.
        """


@dataclass(frozen=True, kw_only=True)
class PlainAverage(OuterOptimizer):
    """x <- mean(x_i)."""

    name: ClassVar[str] = "none"

    def start(self, _x0: Tensor, /) -> State:
        return {}

    def update(self, _state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        return mean


class MomentumOptimizer(OuterOptimizer):
    """Keeps the weights from which the replicas started, and their momentum."""

    def start(self, x0: Tensor, /) -> State:
        return {"reference": x0.clone(), "momentum": torch.zeros_like(x0)}


@dataclass(frozen=True, kw_only=True)
class BMUF(MomentumOptimizer):
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

    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        mu = 1 - 1 / n if self.mu is None else self.mu
        reference, velocity = state["reference"], state["momentum"]
        velocity.mul_(mu).add_(mean.sub_(reference), alpha=self.zeta)
        reference.add_(velocity)
        mean.copy_(reference)
        return mean.add_(velocity, alpha=mu) if self.nesterov else mean


@dataclass(frozen=True, kw_only=True)
class SlowMo(MomentumOptimizer):
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

    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        """Move x0 along the slow momentum and restart from it; with a learning rate of 0, nothing has moved."""
        if lr == 0:
            return mean
        reference, momentum = state["reference"], state["momentum"]
        momentum.mul_(self.beta).add_(mean.sub_(reference), alpha=-1 / lr)
        reference.add_(momentum, alpha=-self.alpha * lr)
        return mean.copy_(reference)


@dataclass(frozen=True, kw_only=True)
class DiLoCo(MomentumOptimizer):
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

    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        reference, momentum = state["reference"], state["momentum"]
        way = mean.sub_(reference).neg_()
        momentum.mul_(self.momentum).add_(way)
        reference.sub_(way.add_(momentum, alpha=self.momentum), alpha=self.outer_lr)
        return mean.copy_(reference)
