"""The optimizer of many replicas that step together on one device."""

from dataclasses import fields

import torch
from torch import Tensor, nn

from tenfold.common.optimizer_traits import OPTIMIZER_TRAITS
from tenfold.common.registry import LazyRegistry, Registry
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.training.fused.muon_rule import network_options
from tenfold.training.fused.rules import Rule
from tenfold.training.optimizers.make_optimizer import base_rate

WITHOUT_EFFECT = ("foreach", "fused", "capturable", "differentiable")
"""Options of torch's optimizers that change how a step is computed, not its result."""
USED_BEFORE = ("partner_lr", "output", "block")
"""Options of Muon that are in `network_options`."""

RULES: Registry[type[Rule]] = LazyRegistry(
    "optimizer for replicas side by side",
    {name: traits.stacked_rule for name, traits in OPTIMIZER_TRAITS.items() if traits.stacked_rule},
)


def make_rule(training: Training, network: nn.Module, lr: float | None = None) -> Rule:
    """Return the rule that the experiment describes, or say what cannot be done side by side on one device.

    `lr` is the learning rate if it is not the experiment's own, as in `make_optimizer`.
    """
    if not isinstance(training.optimizer, str) or ":" in training.optimizer:
        raise ExperimentError(
            f"training.optimizer = {training.optimizer} is your own, which steps one replica at a time; replicas side "
            f"by side on one device use one of {', '.join(RULES)}"
        )
    if training.optimizer not in RULES:
        raise ExperimentError(
            f'training.optimizer = "{training.optimizer}" steps one replica at a time; replicas side by side on one '
            f"device use one of {', '.join(RULES)}"
        )
    rule = RULES[training.optimizer]
    options = {name: getattr(training, name) for name in ("weight_decay", *training.optimizer_traits.fields)}
    if training.optimizer == "muon":
        options |= network_options(training, network, lr or base_rate(training))
    for key, value in training.optimizer_options.items():
        if key not in (WITHOUT_EFFECT if training.optimizer != "muon" else USED_BEFORE):
            options[key] = tuple(value) if isinstance(value, list) else value
    known = [field.name for field in fields(rule)]
    unknown = [key for key in options if key not in known]
    if unknown:
        raise ExperimentError(
            f"training.optimizer_options: '{unknown[0]}' of {training.optimizer} does not work on stacked replicas; "
            f"these do: {', '.join(known)}"
        )
    return rule(**options)


class StackedOptimizer:
    """The weights' first columns, their gradients, and what the rule remembers of k replicas."""

    def __init__(self, rule: Rule, weights: Tensor, learning: list[slice], clip: float | None = None) -> None:
        self.rule = rule
        self.weights = weights
        self.learning = learning
        """Columns of the parameters that are learnt; the others are frozen."""
        self.clip = clip
        self.gradient = torch.zeros_like(weights)
        self.roles = rule.start(weights)
        fine = torch.float32 if weights.device.type == "mps" else torch.float64  # Apple's GPUs know no doubles
        self.taken = torch.zeros(len(weights), 1, dtype=fine, device=weights.device)
        """Steps that each replica has taken."""
        self.rate = torch.zeros(1, 1, device=weights.device)

    def step(self, rows: slice = slice(None)) -> None:
        """Let these replicas take a step along their gradients."""
        g = self.gradient[rows]
        if self.clip is not None:
            norm = torch.linalg.vector_norm(g, dim=1, keepdim=True)
            g.mul_((self.clip / (norm + 1e-6)).clamp_(max=1))
        t = self.taken[rows].add_(1)
        roles = {role: matrix[rows] for role, matrix in self.roles.items()}
        self.rule.update_all(self.weights[rows], g, roles, self.rate, t, learning=self.learning)

    def forget(self, rows: slice = slice(None)) -> None:
        """Let these replicas begin again, as before the first step."""
        for role, matrix in self.rule.start(self.weights[rows]).items():
            self.roles[role][rows].copy_(matrix)
        self.taken[rows].zero_()

    def tensors(self) -> dict[str, Tensor]:
        """Return all that changes from step to step, by name; the weights are not among it."""
        return {**self.roles, "taken": self.taken}
