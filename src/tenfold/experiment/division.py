"""Section [division]: how data and replicas are divided."""

from typing import Annotated, Literal

from pydantic import Field

from tenfold.common.catalog import COMPRESSIONS, LR_SCALINGS, OUTER, STRATEGIES
from tenfold.errors import ExperimentError
from tenfold.experiment.section import Section
from tenfold.experiment.values import AsTuple, Count, Fraction, NonNegative, OneOf, Options, StepsOrEpoch

FOLD_FIELDS = ("folds", "fold_kind", "fold_repeats", "fold_mode")
"""The fields of the division that describe a cross-validation."""


class Division(Section):
    """How the training data are divided among replicas, and how these mix."""

    workers: Count = 1
    """Replicas that train in parallel, each on its own shard."""
    strategy: Annotated[str, OneOf(STRATEGIES)] = "allreduce"
    """Who averages with whom in a round."""
    strategy_options: Options = {}
    """Keyword arguments of the strategy, such as {sides = 1} for ring."""
    sync_every: StepsOrEpoch = None
    """Steps between two rounds, or "epoch" for one round at the end of each epoch; ignored when gradients are averaged
    (every step) and by asynchronous strategies.

    Default: 4, or 16 with an outer optimizer."""
    local_after: NonNegative = 0
    """Mix at every step until this one, then every `sync_every` (post-local SGD)."""
    average: Literal["auto", "weights", "gradients"] = "auto"
    """What is averaged: weights in rounds, or gradients before every step. auto: gradients where all replicas average
    exactly and nothing is said about rounds (sync_every, local_after, outer, compression, optimizer_state)."""
    outer: Annotated[str, OneOf(OUTER)] = "none"
    """Optimizer that turns the average of a round into an outer step; none takes the average as it is."""
    outer_options: Options = {}
    """Keyword arguments of the outer optimizer."""
    compression: Annotated[str, OneOf(COMPRESSIONS)] = "none"
    """How messages between workers are compressed."""
    compression_options: Options = {}
    """Keyword arguments of the compression, such as {fraction = 0.01} for topk."""
    lr_scaling: Annotated[str, OneOf(LR_SCALINGS)] = "auto"
    """How the learning rate grows with the workers that average in rounds, each of which takes fewer steps. auto:
    sqrt with muon; with other optimizers sqrt for up to 8 workers, and twice the rate for more."""
    optimizer_state: Literal["auto", "local", "average", "reset"] = "auto"
    """What a round does to the state of the optimizers (momenta). auto: average for muon in synchronous rounds of
    weights, else local."""
    shards: Literal["iid", "contiguous", "label-skew", "fractions"] = "iid"
    """How the training samples are divided among the replicas."""
    skew: Annotated[float, Field(gt=0)] = 0.5
    """Dirichlet's alpha for label-skew shards: smaller values give more uneven shards."""
    fractions: Annotated[tuple[Fraction, ...] | None, AsTuple] = None
    """Each worker's share of the samples, for shards = "fractions"."""
    folds: Annotated[int, Field(ge=2, lt=2**63)] | None = None
    """Number of folds of a cross-validation. Default: none."""
    fold_kind: Literal["auto", "plain", "stratified", "group"] = "auto"
    """How folds are cut. auto: group where there are groups, else stratified for classes, else plain."""
    fold_repeats: Count = 1
    """Repetitions of the cross-validation, each with different folds."""
    fold_mode: Literal["auto", "folds-over-workers", "data-and-folds", "fold-by-fold", "fused"] = "auto"
    """How folds are trained. auto: on cpu fold-by-fold for several workers, folds-over-workers for one; else fused."""

    @property
    def pace(self) -> int | Literal["epoch"]:
        """Steps between two rounds, or "epoch": `sync_every`, or its default."""
        return self.sync_every or (4 if self.outer == "none" else 16)

    @property
    def steps_between_rounds(self) -> int:
        """Steps between two rounds, where they are known without the data."""
        if self.pace == "epoch":
            raise ExperimentError(
                'division.sync_every = "epoch" needs to know how many steps an epoch has; give the number of steps'
            )
        return self.pace

    def counted(self, steps_per_epoch: int) -> "Division":
        """Return the division with `sync_every` as a number of steps, for epochs of so many."""
        return self.model_copy(update={"sync_every": steps_per_epoch}) if self.pace == "epoch" else self

    @property
    def needs_second_buffer(self) -> bool:
        """Whether gradients or momenta travel, which need a buffer of their own beside the one of the weights."""
        return self.average == "gradients" or self.optimizer_state == "average"
