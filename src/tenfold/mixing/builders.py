"""Builds strategies, outer optimizers and compressors from the [parallel] section of an experiment."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment, Parallel
from tenfold.experiment.values import member_of
from tenfold.mixing.compression import Compressor
from tenfold.mixing.outer import OuterOptimizer
from tenfold.mixing.strategies import Strategy
from tenfold.registry import COMPRESSIONS, OUTER, STRATEGIES


@dataclass(frozen=True)
class Mixing:
    """The [parallel] section of an experiment, with its strategy and its outer optimizer made: once for a run."""

    parallel: Parallel
    strategy: Strategy
    outer: OuterOptimizer

    @classmethod
    def of(cls, parallel: Parallel) -> "Mixing":
        """Make the object that the section describes; raise ExperimentError for options that do not exist."""
        strategy = _member("strategy", member_of(STRATEGIES, parallel.strategy), Strategy, parallel.strategy_options)
        outer = _member("outer", member_of(OUTER, parallel.outer), OuterOptimizer, parallel.outer_options)
        return cls(parallel, strategy, outer)

    def counted(self, steps_per_epoch: int) -> "Mixing":
        return replace(self, parallel=self.parallel.counted(steps_per_epoch))

    def make_compressor(self, size: int, rows: tuple[int, ...] = ()) -> Compressor:
        """Return one sender's compressor for vectors of this size, made up of rows of these lengths."""
        member = member_of(COMPRESSIONS, self.parallel.compression)
        compressor: Compressor = _member("compression", member, Compressor, self.parallel.compression_options, size)
        compressor.rows = rows
        return compressor


def _member(kind: str, member: Any, base: type[Any], options: dict[str, Any], *args: Any) -> Any:
    """Return a member of a family with its options; raise ExperimentError for options that it does not have."""
    if isinstance(member, base) and not args:
        if options:
            raise ExperimentError(f"parallel.{kind}_options: {type(member).__name__} has its options already")
        return member
    if not (isinstance(member, type) and issubclass(member, base)):
        raise ExperimentError(
            f"parallel.{kind} should be a subclass of {base.__module__}.{base.__name__}, not {member!r}"
        )
    accepted = [name for name in inspect.signature(member).parameters if name != "size"]
    unknown = [name for name in options if name not in accepted]
    if unknown:
        raise ExperimentError(
            f"parallel.{kind}_options has no '{unknown[0]}'; "
            f"the options of {getattr(member, 'name', member.__name__)} are: {', '.join(accepted) or 'none'}"
        )
    try:
        return member(*args, **options)
    except TypeError as error:
        raise ExperimentError(f"parallel.{kind}_options = {options}: {error}") from None


# How the learning rate is scaled with the number of replicas, and for how long it warms up.
#
# Each of n workers takes fewer steps per epoch than one worker would, and averaging does not make them larger; a
# higher learning rate compensates for that, also when gradients are averaged, the default.

LARGEST_SQRT, FACTOR_BEYOND = 8, 2.0
"""Up to this many replicas sqrt(n) works; the factor for more."""


def scale_auto(n: int) -> float:
    """Return sqrt(n) for up to 8 replicas, as far as that works, and 2 for more; not used for Muon.

    Where an optimizer's traits say `lr_grows_with_workers`, `lr_scale` takes sqrt(n) for any number of replicas.
    """
    return math.sqrt(n) if n <= LARGEST_SQRT else FACTOR_BEYOND


LR_SCALINGS: dict[str, Callable[[int], float]] = {
    "auto": scale_auto,
    "none": lambda _n: 1.0,
    "linear": float,  # Goyal et al. 2017
    "sqrt": math.sqrt,  # Krizhevsky 2014
}


def lr_scale(experiment: Experiment, strategy: Strategy) -> float:
    """Return the factor of the learning rate that compensates for the fewer steps of each worker.

    It is 1 for replicas that have no rounds, which are not averaged, for an optimizer whose step all workers take
    together, and with an outer optimizer, whose momentum compensates for it. "auto" is sqrt(n) for Muon, for which that
    works up to 64 replicas.
    """
    parallel = experiment.parallel
    n = parallel.replicas
    rounds = (strategy.round(r, n) for r in range(strategy.period(n) or 1))
    traits = experiment.training.optimizer_traits
    averaged = (
        any(not item.is_idle for item in rounds) and parallel.outer == "none" and not traits.steps_with_all_workers
    )
    by_sqrt = parallel.lr_scaling == "auto" and traits.lr_grows_with_workers
    return LR_SCALINGS["sqrt" if by_sqrt else parallel.lr_scaling](n) if averaged else 1.0


def warmup_epochs(experiment: Experiment, lr_scale: float) -> float:
    """Return the epochs of warm-up: as set, otherwise a part of the run if the learning rate is scaled up."""
    training = experiment.training
    if training.warmup is not None:
        return training.warmup
    if lr_scale == 1:
        return 0.0
    return training.epochs / 20 if experiment.parallel.average == "gradients" else min(1.0, training.epochs / 5)
