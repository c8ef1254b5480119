"""The fold modes: each trains the given folds, passes on their events, and reports how each fold ended.

Which mode "auto" stands for is decided by `resolve_fold_mode` in `fold_experiment.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from tenfold.common import catalog
from tenfold.common.registry import Registry
from tenfold.crossval.core_slots import share_cores
from tenfold.crossval.fold import FoldContext, FoldJob, fold_task, try_fold
from tenfold.crossval.fold_experiment import fold_experiment, trains_folds_together
from tenfold.crossval.fold_pool import Done, FoldPool, Relay
from tenfold.engines import Outcome, choose
from tenfold.engines.fused import train_folds
from tenfold.engines.recording import Train
from tenfold.errors import TenfoldError
from tenfold.machine.cores import budget
from tenfold.runs import Emit, Event, Lifecycle, Stopwatch
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task

Stopped = Callable[[], bool]
"""Returns whether no further fold is to be trained."""


class FoldMode(Protocol):
    """Trains the folds of `jobs`."""

    def __call__(
        self, task: Task, context: FoldContext, jobs: Sequence[FoldJob], relay: Relay, done: Done, stopped: Stopped
    ) -> None:
        """Call `relay` with the events of a fold and `done` with its end; begin no fold once `stopped` returns True."""


FOLD_MODES: Registry[FoldMode] = catalog.FOLD_MODES


def folds_over_workers(
    task: Task, context: FoldContext, jobs: Sequence[FoldJob], relay: Relay, done: Done, stopped: Stopped
) -> None:
    """Train whole folds in processes, as many at once as there are cores or nodes."""
    slots = share_cores(task.experiment, len(jobs))
    placed = [replace(job, threads=threads) for job, threads in zip(jobs, slots.threads, strict=True)]
    FoldPool(task, context, slots, relay, done, stopped).run(placed)


def data_and_folds(
    task: Task, context: FoldContext, jobs: Sequence[FoldJob], relay: Relay, done: Done, stopped: Stopped
) -> None:
    """Train the folds of all nodes, which are independent: in processes, or together on one device."""
    train = fused if trains_folds_together(task.experiment) else folds_over_workers
    train(task, context, jobs, relay, done, stopped)


def fold_by_fold(
    task: Task, context: FoldContext, jobs: Sequence[FoldJob], relay: Relay, done: Done, stopped: Stopped
) -> None:
    """Train one fold after another, each with all workers."""
    pinned = [cpu for cpus in task.cores.workers for cpu in cpus]
    cores = tuple(pinned or range(task.workers * task.threads))
    for job in jobs:
        if stopped():
            return
        placed = replace(job, threads=task.threads, cores=cores, pinned=bool(pinned))

        def listen(event: Event, index: int = job.index) -> None:
            if event.worker == 0:
                relay(index, replace(event, worker=index))

        engine = choose(fold_experiment(task.experiment, job.split.name))
        done(placed, try_fold(engine.run, task, context, placed, listen))


def fused(
    task: Task,
    context: FoldContext,
    jobs: Sequence[FoldJob],
    relay: Relay,
    done: Done,
    stopped: Stopped,  # noqa: ARG001 - all are in training from the beginning
) -> None:
    """Train all folds together on one device, then record each."""
    machine = task.experiment.machine
    count = (machine.threads or budget()) if machine.device == "cpu" else 1
    began = context.stopwatch.now()
    jobs = [replace(job, threads=count, cores=tuple(range(count)), began=began) for job in jobs]
    events: list[list[Event]] = [[] for _ in jobs]

    def listener(place: int) -> Emit:
        def emit(event: Event) -> None:
            events[place].append(event)
            relay(jobs[place].index, replace(event, worker=jobs[place].index))

        return emit

    tasks = [fold_task(task, job) for job in jobs]
    outcomes = train_folds(tasks, Stopwatch(), [listener(place) for place in range(len(jobs))])
    for job, outcome, known in zip(jobs, outcomes, events, strict=True):

        def listen(event: Event, index: int = job.index, relayed: list[Event] = known) -> None:
            if isinstance(event, Lifecycle) and event not in relayed:
                relay(index, replace(event, worker=index))

        done(job, try_fold(_replay(outcome, known), task, context, job, listen))


def _replay(outcome: Outcome | TenfoldError, events: Sequence[Event]) -> Train:
    """Return a function that emits the events of a finished training again, then returns or raises its outcome."""

    def train(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None) -> Outcome:  # noqa: ARG001
        for event in events:
            emit(event)
        if isinstance(outcome, TenfoldError):
            raise outcome
        return outcome

    return train
