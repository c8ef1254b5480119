"""The fold modes: each trains the given folds, passes on their events, and reports how each fold ended.

Which mode "auto" stands for is decided by `resolve_fold_mode` in `fold.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tenfold.common import catalog
from tenfold.common.catalog import Registry
from tenfold.crossval.fold import FoldWork, fold_experiment, fold_task, train_fold, trains_folds_together
from tenfold.crossval.fold_pool import FoldPool, share_cores
from tenfold.engines import Outcome, choose
from tenfold.engines.recording import Train
from tenfold.engines.stacked_folds import train_folds
from tenfold.errors import TenfoldError
from tenfold.machine.cores import budget
from tenfold.runs import Emit, Event, Lifecycle, Stopwatch
from tenfold.runs.checkpoint import Resumption
from tenfold.workers.task import Task

FOLD_MODES: Registry[Callable[[FoldWork], None]] = catalog.FOLD_MODES


def folds_over_workers(work: FoldWork) -> None:
    """Train whole folds in processes, as many at once as there are cores or nodes."""
    slots = share_cores(work.task.experiment, len(work.jobs))
    jobs = [replace(job, threads=threads) for job, threads in zip(work.jobs, slots.threads, strict=True)]
    FoldPool(replace(work, jobs=jobs), slots).run()


def data_and_folds(work: FoldWork) -> None:
    """Train the folds of all nodes, which are independent: in processes, or together on one device."""
    train = stacked if trains_folds_together(work.task.experiment) else folds_over_workers
    train(work)


def fold_by_fold(work: FoldWork) -> None:
    """Train one fold after another, each with all workers."""
    task = work.task
    pinned = [cpu for cpus in task.cores.workers for cpu in cpus]
    cores = tuple(pinned or range(task.workers * task.threads))
    for job in work.jobs:
        if work.stopped():
            return
        placed = replace(job, threads=task.threads, cores=cores, pinned=bool(pinned))

        def listen(event: Event, index: int = job.index) -> None:
            if event.worker == 0:
                work.relay(index, replace(event, worker=index))

        engine = choose(fold_experiment(task.experiment, job.split.name))()
        work.done(placed, train_fold(engine.run, task, work.context, placed, listen))


def stacked(work: FoldWork) -> None:
    """Train all folds together on one device, then record each; none can be left out once they have begun."""
    machine = work.task.experiment.machine
    count = (machine.threads or budget()) if machine.device == "cpu" else 1
    began = work.context.stopwatch.now()
    jobs = [replace(job, threads=count, cores=tuple(range(count)), began=began) for job in work.jobs]
    events: list[list[Event]] = [[] for _ in jobs]

    def listener(place: int) -> Emit:
        def emit(event: Event) -> None:
            events[place].append(event)
            work.relay(jobs[place].index, replace(event, worker=jobs[place].index))

        return emit

    tasks = [fold_task(work.task, job) for job in jobs]
    outcomes = train_folds(tasks, Stopwatch(), [listener(place) for place in range(len(jobs))])
    for job, outcome, known in zip(jobs, outcomes, events, strict=True):

        def listen(event: Event, index: int = job.index, relayed: list[Event] = known) -> None:
            if isinstance(event, Lifecycle) and event not in relayed:
                work.relay(index, replace(event, worker=index))

        work.done(job, train_fold(_replay(outcome, known), work.task, work.context, job, listen))


def _replay(outcome: Outcome | TenfoldError, events: Sequence[Event]) -> Train:
    """Return a function that emits the events of a finished training again, then returns or raises its outcome."""

    def train(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None) -> Outcome:  # noqa: ARG001
        for event in events:
            emit(event)
        if isinstance(outcome, TenfoldError):
            raise outcome
        return outcome

    return train
