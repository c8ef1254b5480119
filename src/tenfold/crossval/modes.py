"""The fold modes, and the processes that train folds in parallel; `FoldMode.of` selects the mode for "auto"."""

import math
import pickle
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from tenfold.crossval.fold import FoldContext, FoldEnd, FoldJob, FoldMode, FoldWork, fold_task, resolve_fold, train_fold
from tenfold.engines import Outcome, choose, make_engine
from tenfold.engines.base import Train
from tenfold.engines.one_device import train_together
from tenfold.engines.processes import Serial
from tenfold.errors import StopTraining, TenfoldError, WorkerLost
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.machine.cores import apply, budget, cpu_count_of, plan
from tenfold.machine.liveness import WorkerProgress
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, EpochEnded, Event, Lifecycle, Stopwatch
from tenfold.workers.pool import WorkerConnection, WorkerPool, attach_to_parent
from tenfold.workers.process import TaskSnapshot, forward_warnings
from tenfold.workers.task import Task


@dataclass(frozen=True)
class CoreSlots:
    """Slots of one core each; a model takes one slot per thread."""

    threads: tuple[int, ...]
    """The threads of each model, in training order."""
    at_once: int
    """The maximum number of models trained at the same time."""
    cpus: tuple[int, ...] = ()
    """The CPU of each slot; empty if the models are not pinned."""
    count: int = 1
    """The number of slots."""


def share_cores(experiment: Experiment, models: int) -> CoreSlots:
    """Divide the cores among `models` models that train in processes of their own.

    With fold_mode = "data-and-folds", every worker is a node that trains one model at a time. Otherwise one model per
    core (or per worker, if there are several) trains at a time, and the last models share all cores.
    """
    machine, workers = experiment.machine, experiment.parallel.workers
    usable = cpu_count_of(machine.pin, cores.budget())
    by_node = FoldMode.of(experiment).by_node
    most = workers if by_node or workers > 1 else max(1, usable // (machine.threads or 1))
    at_once = min(most, models)
    each = cores.share(usable, at_once, machine.threads, oversubscribe=machine.oversubscribe)
    equal = by_node or machine.threads is not None
    threads = (each,) * models if equal else spread_threads(models, at_once, usable)
    count = max(usable, each * at_once)
    pinned = plan(cores.Topology.read(), count, 1, machine.pin)
    return CoreSlots(threads, at_once, tuple(cpu for cpus in pinned.workers for cpu in cpus[:1]), count)


def spread_threads(models: int, at_once: int, usable: int) -> tuple[int, ...]:
    """Return the number of threads of each model, using all cores even while the last few models train.

    >>> spread_threads(10, 4, 4)
    (1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
    """
    turns = [at_once] * (models // at_once) + [models % at_once]
    return tuple(max(1, usable // turn + (place < usable % turn)) for turn in turns for place in range(turn))


@dataclass(frozen=True)
class JobRequest:
    """An idle process sends this with the end of its last fold, if any. The answer is a FoldJob, or None to exit."""

    ended: FoldEnd | None = None


class FoldPool:
    """Trains folds in processes; each fold takes one core slot per thread."""

    def __init__(self, work: FoldWork, slots: CoreSlots) -> None:
        self.work = work
        self.slots = slots
        self.free = list(range(slots.count))
        self.waiting = list(work.jobs)
        self.idle: list[int] = []
        self.busy: dict[int, tuple[FoldJob, list[int]]] = {}
        """The fold of each process, and the slots it takes."""
        self._stops: dict[int, str] = {}
        """Why a listener requested to stop a fold, by the index of the fold."""

    def run(self) -> None:
        task, context = self.work.task, self.work.context
        with closing(TaskSnapshot(task, with_numbers=True)) as snapshot:
            stall_after = task.experiment.machine.stall_after
            pool = WorkerPool(self.slots.at_once, fold_worker, (snapshot, context), stall_after=stall_after)
            try:
                while self.waiting or self.busy:
                    try:
                        self._receive(pool)
                    except WorkerLost as lost:
                        self._replace(lost, pool)
                for process in self.idle:
                    pool.send(process, None)
                pool.join()
            finally:
                pool.end()

    def _receive(self, pool: WorkerPool) -> None:
        for process, message in pool.messages():
            if isinstance(message, JobRequest):
                self._take_back(process, message.ended)
                self._give_out(pool)
            elif isinstance(message, BaseException):
                raise message
            elif isinstance(message, EpochEnded):
                self._relay(message)
                pool.send(process, self._stops.get(message.fold_index, ""))
            else:
                for event in message:
                    self._relay(event)
            if self.work.stopped():
                self.waiting = []
            if not self.waiting and not self.busy:
                return

    def _relay(self, event: Event) -> None:
        """Pass on an event of a fold, and remember a listener's request to stop it."""
        index = event.worker  # `_do_job` stores the index of the fold here, see runs/events.py
        try:
            self.work.relay(index, event)
        except StopTraining as stop:
            self._stops.setdefault(index, str(stop))

    def _take_back(self, process: int, ended: FoldEnd | None) -> None:
        self.idle.append(process)
        if ended is not None:
            job, cores_back = self.busy.pop(process)
            self.free = sorted([*self.free, *cores_back])
            self.work.done(job, ended)

    def _give_out(self, pool: WorkerPool) -> None:
        """Start every fold for which a process and enough slots are free; a node trains one fold at a time."""
        for job in list(self.waiting):
            nodes = {other.split.node for other, _ in self.busy.values()} - {0}
            if not self.idle or job.threads > len(self.free) or job.split.node in nodes:
                continue
            process, own_cores, self.free = self.idle.pop(0), self.free[: job.threads], self.free[job.threads :]
            cores = tuple(self.slots.cpus[slot] for slot in own_cores) if self.slots.cpus else tuple(own_cores)
            job = replace(job, cores=cores, pinned=bool(self.slots.cpus))
            self.waiting = [other for other in self.waiting if other.index != job.index]
            self.busy[process] = job, own_cores
            pool.send(process, job)

    def _replace(self, lost: WorkerLost, pool: WorkerPool) -> None:
        """Report the fold of a process that died, and start another process in its place."""
        process = lost.rank  # in this pool, the rank of a process's only worker is the number of the process
        if process in self.busy:
            self._take_back(process, FoldEnd(error=str(lost)))
        elif process not in self.idle:
            raise lost  # it died while starting, and the next one would, too
        self.idle.remove(process)
        pool.replace(process)


def fold_worker(
    process: int, pipe: Connection, lifeline: Connection, floats: Any, snapshot: TaskSnapshot, context: FoldContext
) -> None:
    """Train the folds assigned to this process, one after another."""
    progress = attach_to_parent(process, lifeline, floats)
    connection = WorkerConnection(pipe, waiting=progress.mark_waiting)
    try:
        with progress.allow_more_time():
            task, request = snapshot.open(), JobRequest()
        progress.clear()
        while (job := _next_job(pipe, request)) is not None:
            request = JobRequest(_do_job(task, context, job, connection, progress))
            connection.flush()
            progress.clear()  # from here on, it waits for another fold
    except BaseException as error:
        connection.fail(error)


def _next_job(pipe: Connection, request: JobRequest) -> FoldJob | None:
    pipe.send_bytes(pickle.dumps(request))
    job: FoldJob | None = pickle.loads(pipe.recv_bytes())
    return job


def _do_job(
    task: Task, context: FoldContext, job: FoldJob, connection: WorkerConnection, progress: WorkerProgress
) -> FoldEnd:
    torch.set_num_threads(job.threads)
    if job.pinned:
        apply(job.cores)

    def listen(event: Event) -> None:
        event = replace(event, worker=job.index)  # see runs/events.py
        if isinstance(event, EpochEnded):
            if reason := connection.ask(event):
                raise StopTraining(reason)
            return
        connection.emit(event)
        if isinstance(event, Lifecycle):  # send it now, in case this process dies
            connection.flush()

    forward_warnings(connection.emit, context.stopwatch, job.index)
    with ExitStack() as more_time:
        more_time.enter_context(progress.allow_more_time())

        def run_serially(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
            outcome = Serial(progress).run(task, stopwatch, emit, resumption)
            more_time.enter_context(progress.allow_more_time())  # later work publishes no progress
            return outcome

        return train_fold(run_serially, task, context, job, listen)


class FoldsOverWorkers(FoldMode):
    """Trains whole folds in processes, one per core or node at a time."""

    name = "folds-over-workers"

    @property
    def unsupported(self) -> str | None:
        """Processes cannot be used on a GPU."""
        device = self.experiment.machine.device
        if device == "cpu":
            return None
        return (
            f'parallel.fold_mode = "{self.name}" is supported on CPU only, but machine.device = "{device}"; use '
            "stacked or fold-by-fold"
        )

    def turns(self, models: int) -> int:
        return math.ceil(models / self.experiment.parallel.workers)

    def train(self, work: FoldWork) -> None:
        slots = share_cores(work.task.experiment, len(work.jobs))
        jobs = [replace(job, threads=threads) for job, threads in zip(work.jobs, slots.threads, strict=True)]
        FoldPool(replace(work, jobs=jobs), slots).run()


class Stacked(FoldMode):
    """Trains all folds together on one device."""

    name = "stacked"

    @property
    def unsupported(self) -> str | None:
        """A virtual cluster has no such device."""
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
        return True

    def train(self, work: FoldWork) -> None:
        """Train all folds, then record each of them; single folds cannot be skipped once training has begun."""
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
    """Trains the independent folds of all nodes, in processes or together on one device."""

    name = "data-and-folds"
    by_node = True

    @property
    def trains_together(self) -> bool:
        """Whether all nodes are trained on one device."""
        machine = self.experiment.machine
        return machine.device != "cpu" or choose(self.experiment).steps_together

    def turns(self, models: int) -> int:
        return models // self.experiment.parallel.workers

    def train(self, work: FoldWork) -> None:
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


FOLD_MODES = {mode.name: mode for mode in (FoldsOverWorkers, DataAndFolds, FoldByFold, Stacked)}


def _replay(outcome: Outcome | TenfoldError, events: Sequence[Event]) -> Train:
    """Return a training function that replays the events of a finished training, then returns or raises its outcome."""

    def train(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None) -> Outcome:  # noqa: ARG001
        for event in events:
            emit(event)
        if isinstance(outcome, TenfoldError):
            raise outcome
        return outcome

    return train
