"""Muon for many replicas at once, on matrices with one replica a row."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from tenfold.experiment import Training
from tenfold.training.flat import padded_size
from tenfold.training.fused.rules import AdamW, Roles, Rule, Sgd
from tenfold.training.optimizers.muon import BLOCK, Shape, find_matrices, partner_ratio, shape_scale
from tenfold.training.optimizers.newton_schulz import factors, gram


@dataclass(frozen=True, kw_only=True)
class MuonRule(Rule):
    """Muon for the columns of matrices, a partner for all others; the formulas are those of `optimizers.muon.Muon`."""

    roles: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    matrices: tuple[tuple[int, Shape], ...] = ()
    """First column of each matrix, or stack of matrices, and its shape."""
    lr_ratio: float = 1.0
    """The partner's learning rate in units of Muon's."""
    momentum: float = 0.9
    nesterov: bool = True
    steps: int = 3
    partner: str = "sgd"

    def start(self, weights: Tensor) -> Roles:
        """Remember what the partner does, too."""
        return super().start(weights) | self._partner.start(weights)

    @property
    def _partner(self) -> Rule:
        if self.partner == "adamw":
            return AdamW(weight_decay=self.weight_decay)
        nesterov = self.nesterov and self.momentum > 0
        return Sgd(weight_decay=self.weight_decay, momentum=self.momentum, nesterov=nesterov)

    def update_all(
        self, w: Tensor, g: Tensor, roles: Roles, rate: Tensor, t: Tensor, *, learning: Sequence[slice]
    ) -> None:
        """Step the matrices of all replicas together, then let the partner do its columns."""
        learnt = [
            (start, shape)
            for start, shape in self.matrices
            if any(columns.start <= start < columns.stop for columns in learning)
        ]
        updates = [self._direction(start, shape, g, roles) for start, shape in learnt]
        products = factors([gram(update) for update in updates], self.steps)
        for (start, shape), q, z in zip(learnt, products, updates, strict=True):
            weights = _columns(w, start, shape)
            if self.weight_decay:
                weights.mul_(1 - rate * self.weight_decay)
            step = (q @ z if shape[1] <= shape[2] else z @ q).view(len(w), -1)
            weights.addcmul_(step, rate, value=-shape_scale(shape))
        others = _without(learning, [slice(start, start + padded_size(math.prod(shape))) for start, shape in learnt])
        self._partner.update_all(w, g, roles, rate * self.lr_ratio, t, learning=others)

    def _direction(self, start: int, shape: Shape, g: Tensor, roles: Roles) -> Tensor:
        gradient, buffer = _columns(g, start, shape), _columns(roles["momentum_buffer"], start, shape)
        buffer.lerp_(gradient, 1 - self.momentum)
        direction = gradient.lerp(buffer, self.momentum) if self.nesterov else buffer
        return direction.reshape(-1, *shape[1:])  # all replicas' matrices one after another


def _columns(matrix: Tensor, start: int, shape: Shape) -> Tensor:
    return matrix[:, start : start + math.prod(shape)]


def _without(learning: Sequence[slice], taken: Sequence[slice]) -> list[slice]:
    """Return the columns that are learnt and not taken."""
    rest = []
    for columns in learning:
        start = columns.start
        for gap in sorted(
            (one for one in taken if columns.start <= one.start < columns.stop), key=lambda one: one.start
        ):
            if start < gap.start:
                rest.append(slice(start, gap.start))
            start = gap.stop
        if start < columns.stop:
            rest.append(slice(start, columns.stop))
    return rest


def network_options(training: Training, network: nn.Module, lr: float) -> dict[str, Any]:
    """Return the fields of the rule that depend on the network and on the learning rate."""
    options = training.optimizer_options
    shapes = find_matrices(network, output=options.get("output", "muon"), block=options.get("block", BLOCK))
    ratio = partner_ratio(lr, options.get("partner", "sgd"), options.get("partner_lr"))
    found, start = [], 0
    for parameter in network.parameters():
        if parameter in shapes:
            found.append((start, shapes[parameter]))
        start += padded_size(parameter.numel())
    return {"matrices": tuple(found), "lr_ratio": ratio, "momentum": training.momentum}
