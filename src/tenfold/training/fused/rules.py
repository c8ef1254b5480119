"""Optimizer steps of many replicas at once, on matrices with one replica a row.

The rules are torch's, written so that the learning rate is a tensor and no number is ever read back from the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

Roles = dict[str, Tensor]
"""What an optimizer remembers, one matrix for each role, laid out like the weights."""


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """How all replicas take a step; t is the number of each replica's step, from 1, as a column."""

    roles: ClassVar[tuple[str, ...]] = ()

    weight_decay: float = 0.0
    maximize: bool = False

    def start(self, weights: Tensor) -> Roles:
        """Return what is remembered before the first step."""
        return {role: torch.zeros_like(weights) for role in self.roles}

    @abstractmethod
    def update_all(
        self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor, *, learning: Sequence[slice]
    ) -> None:
        """Change the columns `learning` of the weights w by the gradients g; g may be overwritten."""


@dataclass(frozen=True, kw_only=True)
class ElementwiseRule(Rule):
    """A rule that treats every weight by itself, so that any columns can be updated together."""

    def update_all(
        self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor, *, learning: Sequence[slice]
    ) -> None:
        """Do `update` for the columns that are learnt."""
        for columns in learning:
            own = {role: matrix[:, columns] for role, matrix in roles.items()}
            self.update(w[:, columns], g[:, columns], own, rate, t)

    def update(self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor) -> None:
        """Change the weights and what is remembered in place; the gradient may be overwritten."""
        if self.maximize:
            g.neg_()
        if self.weight_decay:
            self._decay(w, g, rate)
        self._step(w, g, roles, rate, t)

    def _decay(self, w: Tensor, g: Tensor, rate: Tensor) -> None:  # noqa: ARG002
        g.add_(w, alpha=self.weight_decay)

    @abstractmethod
    def _step(self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Sgd(ElementwiseRule):
    """b <- mu b + (1 - damp) g, in the first step b <- g; w <- w - lr b, or with Nesterov w - lr (g + mu b)."""

    roles: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def start(self, weights: Tensor) -> Roles:
        """Remember nothing where there is no momentum."""
        return super().start(weights) if self.momentum else {}

    def _step(self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor) -> None:
        if self.momentum:
            buffer = roles["momentum_buffer"].mul_(self.momentum)
            if self.dampening:
                share = torch.where(t == 1, 1.0, 1 - self.dampening).to(g.dtype)
                buffer.addcmul_(g, share.expand_as(g))
            else:
                buffer.add_(g)
            g = g.add_(buffer, alpha=self.momentum) if self.nesterov else buffer
        w.addcmul_(g, rate, value=-1)


@dataclass(frozen=True, kw_only=True)
class Adam(ElementwiseRule):
    """m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; w <- w - lr m' / (sqrt(v') + eps), m' = m / (1 - b1^t), v' alike.

    Kingma & Ba 2015; with `amsgrad` v' is the largest so far (Reddi et al. 2018).
    """

    roles: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False
    decoupled_weight_decay: bool = False

    def start(self, weights: Tensor) -> Roles:
        """Remember one matrix more for amsgrad."""
        extra = {"max_exp_avg_sq": torch.zeros_like(weights)} if self.amsgrad else {}
        return super().start(weights) | extra

    def _decay(self, w: Tensor, g: Tensor, rate: Tensor) -> None:
        if self.decoupled_weight_decay:
            w.mul_(1 - rate * self.weight_decay)
        else:
            super()._decay(w, g, rate)

    def _step(self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor) -> None:
        b1, b2 = self.betas
        mean, square = roles["exp_avg"].lerp_(g, 1 - b1), roles["exp_avg_sq"].mul_(b2).addcmul_(g, g, value=1 - b2)
        if self.amsgrad:
            square = torch.maximum(roles["max_exp_avg_sq"], square, out=roles["max_exp_avg_sq"])
        size = (rate / (1 - b1**t)).to(w.dtype)  # in double: 1 - b2^t loses most digits of a float
        root = (1 - b2**t).sqrt().to(w.dtype)
        denominator = torch.sqrt(square, out=g).div_(root).add_(self.eps)
        w.sub_(torch.div(mean, denominator, out=g).mul_(size))


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam whose decay acts on the weights alone, w <- (1 - lr wd) w (Loshchilov & Hutter 2019)."""

    decoupled_weight_decay: bool = True


@dataclass(frozen=True, kw_only=True)
class RmsProp(ElementwiseRule):
    """v <- a v + (1-a) g^2; d = g / (sqrt(v) + eps); w <- w - lr d, or with momentum b <- mu b + d; w <- w - lr b."""

    roles: ClassVar[tuple[str, ...]] = ("square_avg", "momentum_buffer", "grad_avg")

    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    def start(self, weights: Tensor) -> Roles:
        """Remember only what is used."""
        used = {"square_avg": True, "momentum_buffer": self.momentum > 0, "grad_avg": self.centered}
        return {role: torch.zeros_like(weights) for role in self.roles if used[role]}

    def _step(self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor) -> None:  # noqa: ARG002
        square = roles["square_avg"].mul_(self.alpha).addcmul_(g, g, value=1 - self.alpha)
        if self.centered:
            mean = roles["grad_avg"].lerp_(g, 1 - self.alpha)
            square = square.addcmul(mean, mean, value=-1)
        step = g.div_(square.sqrt().add_(self.eps))
        if self.momentum:
            step = roles["momentum_buffer"].mul_(self.momentum).add_(step)
        w.addcmul_(step, rate, value=-1)


@dataclass(frozen=True, kw_only=True)
class Adagrad(ElementwiseRule):
    """s <- s + g^2; w <- w - lr / (1 + (t-1) decay) g / (sqrt(s) + eps) (Duchi et al. 2011)."""

    roles: ClassVar[tuple[str, ...]] = ("sum",)

    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def start(self, weights: Tensor) -> Roles:
        """Begin with the given sum."""
        return {"sum": torch.full_like(weights, self.initial_accumulator_value)}

    def _step(self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor) -> None:
        total = roles["sum"].addcmul_(g, g)
        size = (rate / (1 + (t - 1) * self.lr_decay)).to(w.dtype) if self.lr_decay else rate
        w.addcmul_(g.div_(total.sqrt().add_(self.eps)), size, value=-1)
