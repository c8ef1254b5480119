"""What a cross-validation will do, before it does it: which models, on which samples, with how many threads at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tenfold.data import Splits, folds
from tenfold.data.shards import Shard
from tenfold.errors import ExperimentError
from tenfold.experiment import FOLD_FIELDS, Division, Experiment
from tenfold.machine import affinity, cores, threads


@dataclass(frozen=True)
class Place:
    """One model to train: its fold, repeat and node, and the sample numbers it learns from and is validated on."""

    fold: int
    repeat: int
    node: int
    """From 1 where every node has data of its own, else 0."""
    train: NDArray[np.int64]
    validation: NDArray[np.int64]

    @property
    def key(self) -> tuple[int, int, int]:
        """What tells it from the other models of the same cross-validation."""
        return self.node, self.repeat, self.fold

    @property
    def name(self) -> str:
        """Its name for titles and sentences: "fold 3", "node 2, repeat 1, fold 3"."""
        node = f"node {self.node}, " if self.node else ""
        repeat = f"repeat {self.repeat}, " if self.repeat > 1 else ""
        return f"{node}{repeat}fold {self.fold}"


@dataclass(frozen=True)
class CoreSlots:
    """The cores that models are trained on side by side: desks from 0, with the cpu of each where it is pinned."""

    threads: tuple[int, ...]
    """How many desks each model takes, in the order of the models."""
    at_once: int
    """The most models at a time."""
    cpus: tuple[int, ...] = ()
    """The cpu of each desk; none where they are not pinned."""
    count: int = 1
    """How many desks there are."""


def mode_of(experiment: Experiment) -> str:
    """Return how the folds are trained, "auto" settled."""
    division, device = experiment.division, experiment.machine.device
    if division.fold_mode != "auto":
        return division.fold_mode
    if division.workers > 1:
        return "fold-by-fold"
    return "folds-over-workers" if device == "cpu" else "fused"


def places(experiment: Experiment, splits: Splits, shards: Sequence[Shard]) -> list[Place]:
    """Return the models of a cross-validation; the test part is in none of them.

    Where data and folds are divided, each node cuts its own shard into folds, and the first folds of all nodes come
    first; else the whole training part is cut.
    """
    division, targets = experiment.division, splits.train.targets
    shared = mode_of(experiment) == "data-and-folds"
    nodes = [np.arange(len(splits.train))] if not shared else list(shards)
    found = []
    for node, mine in enumerate(nodes, 1):
        cut = folds(
            len(mine) if targets is None else targets[mine],
            division.folds or 2,
            division.fold_kind,
            repeats=division.fold_repeats,
            seed=experiment.data.split_seed,
            groups=None if splits.groups is None else splits.groups[mine],
        )
        found += [
            Place(one.number, one.repeat, node if shared else 0, mine[one.train], mine[one.validation]) for one in cut
        ]
    return sorted(found, key=lambda place: (place.repeat, place.fold, place.node))


def desks(experiment: Experiment, models: int) -> CoreSlots:
    """Share the cores out to so many models, each of which trains in a process of its own.

    Nodes are as many as there are workers, one model at a time each. Otherwise as many models train at once as there
    are cores (or workers, where there are several), and those of the last turn share all cores if they are fewer.
    """
    machine, workers = experiment.machine, experiment.division.workers
    usable = affinity.room(machine.pin, cores.budget())
    nodes = mode_of(experiment) == "data-and-folds"
    room = workers if nodes or workers > 1 else max(1, usable // (machine.threads or 1))
    at_once = min(room, models)
    each = threads.share(usable, at_once, machine.threads, oversubscribe=machine.oversubscribe)
    alike = nodes or machine.threads is not None
    taken = (each,) * models if alike else spread_threads(models, at_once, usable)
    count = max(usable, each * at_once)
    pinned = affinity.plan(cores.Topology.read(), count, 1, machine.pin)
    return CoreSlots(taken, at_once, tuple(cpu for cpus in pinned.workers for cpu in cpus[:1]), count)


def spread_threads(models: int, at_once: int, usable: int) -> tuple[int, ...]:
    """Return the threads of each model: all cores are shared in every turn, also in a last one of fewer models.

    >>> spread_threads(10, 4, 4)
    (1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
    """
    turns = [at_once] * (models // at_once) + [models % at_once]
    return tuple(max(1, usable // turn + (place < usable % turn)) for turn in turns for place in range(turn))


def of_one_fold(experiment: Experiment, name: str) -> Experiment:
    """Return the experiment that trains one fold: without folds, and with one worker unless folds come one by one."""
    plain = Division()
    if mode_of(experiment) == "fold-by-fold":
        division = experiment.division.model_copy(update={field: getattr(plain, field) for field in FOLD_FIELDS})
    else:
        division = plain
    return experiment.replace(division=division, name=f"{experiment.title}, {name}")


def check(experiment: Experiment) -> None:
    """Refuse what cannot be cross-validated, before anything starts."""
    if experiment.division.folds is None:
        raise ExperimentError("division.folds is unset; say into how many parts to cut: folds = 10")
    if experiment.data.validation_fraction:
        raise ExperimentError(
            f"data.validation_fraction = {experiment.data.validation_fraction:g}: every fold is validated on the part "
            "that it does not learn from; leave it 0"
        )
    if experiment.machine.engine in ("virtual", "launched"):
        raise ExperimentError(
            f'machine.engine = "{experiment.machine.engine}" trains one model at a time; take auto for cross-validation'
        )
    mode = mode_of(experiment)
    if mode in ("folds-over-workers", "data-and-folds") and experiment.machine.device != "cpu":
        raise ExperimentError(
            f'division.fold_mode = "{mode}" trains in several processes, which share a cpu but not the device '
            f'"{experiment.machine.device}"; take fused or fold-by-fold'
        )
    if mode == "fused" and experiment.division.workers > 1:
        raise ExperimentError(
            f'division.fold_mode = "fused" trains one replica a fold, but division.workers = '
            f"{experiment.division.workers}; take 1, or fold-by-fold"
        )
