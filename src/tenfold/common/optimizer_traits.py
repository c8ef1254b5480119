"""What other parts of the program need to know about each optimizer in `catalog.OPTIMIZERS`.

An optimizer without a line here works: the defaults are right for any, if not the fastest.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tenfold.catalog import OPTIMIZERS


@dataclass(frozen=True, kw_only=True)
class OptimizerTraits:
    """The properties of one optimizer."""

    lr: float | None = None
    """Its usual learning rate. Default: that of the class's argument `lr`."""
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
    """parallel.optimizer_state = "auto" averages what it keeps in synchronous rounds of weights."""
    steps_with_all_workers: bool = False
    """Its step is that of all workers together, on the batches of all, by default on all data."""
    stacked_rule: str = ""
    """Import path of its rule for replicas that step together on one device. Default: none; this is then an error."""


OPTIMIZER_TRAITS: Mapping[str, OptimizerTraits] = {
    "sgd": OptimizerTraits(
        lr=0.05,
        fields=("momentum", "nesterov"),
        takes_sparse=True,
        fused_kernel="all",
        state_vectors=1,
        stacked_rule="tenfold.training.stacked_optimizers:Sgd",
    ),
    "adam": OptimizerTraits(
        lr=0.001, fused_kernel="all", state_vectors=2, stacked_rule="tenfold.training.stacked_optimizers:Adam"
    ),
    "adamw": OptimizerTraits(
        lr=0.001, fused_kernel="all", state_vectors=2, stacked_rule="tenfold.training.stacked_optimizers:AdamW"
    ),
    "rmsprop": OptimizerTraits(lr=0.001, state_vectors=1, stacked_rule="tenfold.training.stacked_optimizers:RmsProp"),
    "adagrad": OptimizerTraits(
        lr=0.01,
        takes_sparse=True,
        fused_kernel="cpu",
        state_vectors=1,
        stacked_rule="tenfold.training.stacked_optimizers:Adagrad",
    ),
    "lbfgs": OptimizerTraits(lr=0.1, has_weight_decay=False, needs_closure=True, state_vectors=200),
    "muon": OptimizerTraits(
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
        lr=0.05,
        fields=("momentum", "nesterov"),
        takes_network=True,
        fused_kernel="all",
        state_vectors=1,
        averages_weights=True,
    ),
    "sandblaster-lbfgs": OptimizerTraits(
        lr=1.0,
        schedule="constant",
        has_weight_decay=False,
        needs_closure=True,
        state_vectors=28,
        averages_weights=True,
        steps_with_all_workers=True,
    ),
}
USERS_OWN = OptimizerTraits(takes_sparse=True)
"""An optimizer that the user passes gets the gradients as they are."""


def traits_of(name: object) -> OptimizerTraits:
    """Return the traits of an optimizer by its name; what has no name in the catalog is the user's own."""
    if isinstance(name, str) and name in OPTIMIZERS:
        return OPTIMIZER_TRAITS.get(name, OptimizerTraits())
    path = name if isinstance(name, str) else repr(name)
    return OPTIMIZER_TRAITS["lbfgs"] if path.endswith(":LBFGS") else USERS_OWN
