"""How the cores are shared among models that train side by side."""

from dataclasses import dataclass

from tenfold.crossval.fold_experiment import resolve_fold_mode
from tenfold.experiment import Experiment
from tenfold.machine import affinity, cores


@dataclass(frozen=True)
class CoreSlots:
    """Slots of one core each; a model takes as many as it has threads."""

    threads: tuple[int, ...]
    """The threads of each model, in training order."""
    at_once: int
    """The most models that train at the same time."""
    cpus: tuple[int, ...] = ()
    """The CPU of each slot; empty if the models are not pinned."""
    count: int = 1
    """The number of slots."""


def share_cores(experiment: Experiment, models: int) -> CoreSlots:
    """Share the cores among `models` models, each of which trains in its own process.

    With fold_mode = "data-and-folds" every worker is a node that trains one model at a time. Otherwise as many models
    train at once as there are cores (or workers, if there are several), and the last ones share all cores.
    """
    machine, workers = experiment.machine, experiment.division.workers
    usable = affinity.cpu_count_of(machine.pin, cores.budget())
    by_node = resolve_fold_mode(experiment) == "data-and-folds"
    room = workers if by_node or workers > 1 else max(1, usable // (machine.threads or 1))
    at_once = min(room, models)
    each = cores.share(usable, at_once, machine.threads, oversubscribe=machine.oversubscribe)
    equal = by_node or machine.threads is not None
    taken = (each,) * models if equal else spread_threads(models, at_once, usable)
    count = max(usable, each * at_once)
    pinned = affinity.plan(cores.Topology.read(), count, 1, machine.pin)
    return CoreSlots(taken, at_once, tuple(cpu for cpus in pinned.workers for cpu in cpus[:1]), count)


def spread_threads(models: int, at_once: int, usable: int) -> tuple[int, ...]:
    """Return the threads of each model, such that all cores are used even while the last few models train.

    >>> spread_threads(10, 4, 4)
    (1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
    """
    turns = [at_once] * (models // at_once) + [models % at_once]
    return tuple(max(1, usable // turn + (place < usable % turn)) for turn in turns for place in range(turn))
