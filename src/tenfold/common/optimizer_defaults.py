"""All optimizers by name: where they are defined, their default learning rates, and other properties.

For an optimizer of the user or of an installed package, the defaults here are correct, if not the fastest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tenfold.registry import Registry


@dataclass(frozen=True, kw_only=True)
class OptimizerTraits:
    """The properties of one optimizer."""

    path: str = ""
    """Where it is defined; "" for that of an installed package."""
    lr: float | None = None
    """Its default learning rate; if unset, the default of the class's argument `lr`."""
    lr_grows_with_batch: bool = False
    """The usual learning rate is for 64 labels per step, and grows with the square root of their number."""
    lr_grows_with_workers: bool = False
    """parallel.lr_scaling = "auto" means "sqrt" for any number of workers."""
    schedule: str = "cosine"
    """Its usual schedule."""
    fields: tuple[str, ...] = ()
    """The fields of [training] that it takes as arguments, in addition to lr and weight_decay."""
    has_weight_decay: bool = True
    takes_network: bool = False
    """Its first argument is the network, not a list of parameters."""
    needs_closure: bool = False
    """It evaluates several gradients in one step."""
    takes_sparse: bool = False
    """It supports sparse gradients; for others they are made dense."""
    fused_kernel: Literal["none", "cpu", "all"] = "none"
    """On which devices torch has one kernel for all parameters: it saves a fifth of a LeNet-5 step on CPU."""
    state_vectors: int | None = None
    """How many vectors of the size of the weights it keeps. Default: as many as are found after a step."""
    averages_weights: bool = False
    """parallel.average = "auto" averages weights, never gradients."""
    averages_state: bool = False
    """parallel.optimizer_state = "auto" averages its state in synchronous rounds of weights."""
    steps_with_all_workers: bool = False
    """All workers take each step together, on the batches of all, by default on all data."""
    stacked_rule: str = ""
    """Import path of its rule for replicas that step together on one device. Default: none; this is then an error."""


OPTIMIZER_TRAITS: Mapping[str, OptimizerTraits] = {
    "sgd": OptimizerTraits(
        path="torch.optim:SGD",
        lr=0.05,
        fields=("momentum", "nesterov"),
        takes_sparse=True,
        fused_kernel="all",
        state_vectors=1,
        stacked_rule="tenfold.training.stacked_optimizers:Sgd",
    ),
    "adam": OptimizerTraits(
        path="torch.optim:Adam",
        lr=0.001,
        fused_kernel="all",
        state_vectors=2,
        stacked_rule="tenfold.training.stacked_optimizers:Adam",
    ),
    "adamw": OptimizerTraits(
        path="torch.optim:AdamW",
        lr=0.001,
        fused_kernel="all",
        state_vectors=2,
        stacked_rule="tenfold.training.stacked_optimizers:AdamW",
    ),
    "rmsprop": OptimizerTraits(
        path="torch.optim:RMSprop",
        lr=0.001,
        state_vectors=1,
        stacked_rule="tenfold.training.stacked_optimizers:RmsProp",
    ),
    "adagrad": OptimizerTraits(
        path="torch.optim:Adagrad",
        lr=0.01,
        takes_sparse=True,
        fused_kernel="cpu",
        state_vectors=1,
        stacked_rule="tenfold.training.stacked_optimizers:Adagrad",
    ),
    "lbfgs": OptimizerTraits(
        path="torch.optim:LBFGS", lr=0.1, has_weight_decay=False, needs_closure=True, state_vectors=200
    ),
    "muon": OptimizerTraits(
        path="tenfold.training.muon:Muon",
        lr=0.015,
        lr_grows_with_batch=True,
        lr_grows_with_workers=True,
        schedule="linear",
        fields=("momentum",),
        takes_network=True,
        state_vectors=2,
        averages_state=True,
        stacked_rule="tenfold.training.stacked_optimizers:MuonRule",
    ),
    "ng-sgd": OptimizerTraits(
        path="tenfold.training.natural_gradient:NaturalGradientSGD",
        lr=0.05,
        fields=("momentum", "nesterov"),
        takes_network=True,
        fused_kernel="all",
        state_vectors=1,
        averages_weights=True,
    ),
    "sandblaster-lbfgs": OptimizerTraits(
        path="tenfold.training.lbfgs:SandblasterLBFGS",
        lr=1.0,
        schedule="constant",
        has_weight_decay=False,
        needs_closure=True,
        state_vectors=28,
        averages_weights=True,
        steps_with_all_workers=True,
    ),
}
OPTIMIZERS: Registry[Any] = Registry(
    "optimizer", {name: traits.path for name, traits in OPTIMIZER_TRAITS.items()}, group="optimizers"
)
USERS_OWN = OptimizerTraits(takes_sparse=True)
"""An optimizer that the user passes gets the gradients as they are."""


def traits_of(name: object) -> OptimizerTraits:
    """Return the traits of an optimizer by its name; one that has no name in the registry is the user's own."""
    if isinstance(name, str) and name in OPTIMIZERS:
        return OPTIMIZER_TRAITS.get(name, OptimizerTraits())
    path = name if isinstance(name, str) else repr(name)
    return OPTIMIZER_TRAITS["lbfgs"] if path.endswith(":LBFGS") else USERS_OWN


def describe_usual_lr() -> str:
    """Return the usual learning rates of all optimizers, as the documentation of the field lists them."""
    return ", ".join(
        f"{name} {traits.lr:g}{' sqrt(labels of a step / 64)' if traits.lr_grows_with_batch else ''}"
        for name, traits in OPTIMIZER_TRAITS.items()
    )
