"""The fold modes; which one "auto" stands for is decided by `FoldMode.of` in `fold.py`."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tenfold.crossval.fold import FoldMode, FoldWork, fold_task, resolve_fold, train_fold
from tenfold.crossval.fold_pool import FoldPool, share_cores
from tenfold.engines import Outcome, choose, make_engine
from tenfold.engines.one_device import train_together
from tenfold.engines.recording import Train
from tenfold.errors import TenfoldError
from tenfold.machine.cores import budget
from tenfold.runs import Emit, Event, Lifecycle, Stopwatch
from tenfold.runs.checkpoint import Resumption
from tenfold.workers.task import Task


class FoldsOverWorkers(FoldMode):
    """Trains whole folds in processes, as many at once as there are cores or nodes."""

    name = "folds-over-workers"

    @property
    def unsupported(self) -> str | None:
        """Why not: there are no processes on a GPU."""
        device = self.experiment.machine.device
        if device == "cpu":
            return None
        return (
            f'parallel.fold_mode = "{self.name}" is supported on CPU only, but machine.device = "{device}"; use '
            "stacked or fold-by-fold"
        )

    def turns(self, models: int) -> int:
        """Return a worker's share of the models, rounded up."""
        return math.ceil(models / self.experiment.parallel.workers)

    def train(self, work: FoldWork) -> None:
        """Train folds in a pool of processes."""
        slots = share_cores(work.task.experiment, len(work.jobs))
        jobs = [replace(job, threads=threads) for job, threads in zip(work.jobs, slots.threads, strict=True)]
        FoldPool(replace(work, jobs=jobs), slots).run()


class Stacked(FoldMode):
    """Trains all folds together on one device."""

    name = "stacked"

    @property
    def unsupported(self) -> str | None:
        """Why not: a virtual cluster has no such device."""
        if not self.experiment.machine.is_virtual:
            return None
        return (
            'parallel.fold_mode = "stacked" trains all folds on one device, which a virtual cluster does not have; use '
            "folds-over-workers, data-and-folds or fold-by-fold"
        )

    @property
    def shares_folds(self) -> bool:
        """Whether there are several workers for each fold."""
        return self.experiment.parallel.workers > 1

    @property
    def trains_together(self) -> bool:
        """Always."""
        return True

    def train(self, work: FoldWork) -> None:
        """Train all folds, then record each; none can be left out once they have begun."""
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
        outcomes = train_together(tasks, Stopwatch(), [listener(place) for place in range(len(jobs))])
        for job, outcome, recorded in zip(jobs, outcomes, events, strict=True):

            def listen(event: Event, index: int = job.index, relayed: list[Event] = recorded) -> None:
                if isinstance(event, Lifecycle) and event not in relayed:
                    work.relay(index, replace(event, worker=index))

            work.done(job, train_fold(_replay(outcome, recorded), work.task, work.context, job, listen))


class DataAndFolds(FoldMode):
    """Trains the folds of all nodes, which are independent: in processes, or together on one device."""

    name = "data-and-folds"
    by_node = True

    @property
    def trains_together(self) -> bool:
        """Whether the nodes are rows of one device."""
        machine = self.experiment.machine
        return machine.device != "cpu" or choose(self.experiment).steps_together

    def turns(self, models: int) -> int:
        """Return the models of a node."""
        return models // self.experiment.parallel.workers

    def train(self, work: FoldWork) -> None:
        """Train folds, at most one of each node at a time."""
        mode = Stacked if self.trains_together else FoldsOverWorkers
        mode(self.experiment).train(work)


class FoldByFold(FoldMode):
    """Trains one fold after another, each with all workers."""

    name = "fold-by-fold"
    one_by_one = True

    def train(self, work: FoldWork) -> None:
        """Train folds with the engine that would train the experiment without folds."""
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

            engine = make_engine(resolve_fold(task.experiment, job.split))
            work.done(placed, train_fold(engine.run, task, work.context, placed, listen))


def _replay(outcome: Outcome | TenfoldError, events: Sequence[Event]) -> Train:
    """Return a function that emits the events of a finished training again, then returns or raises its outcome."""

    def train(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None) -> Outcome:  # noqa: ARG001
        for event in events:
            emit(event)
        if isinstance(outcome, TenfoldError):
            raise outcome
        return outcome

    return train
