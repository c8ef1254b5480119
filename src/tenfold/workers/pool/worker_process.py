"""What runs in a worker process."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from numpy.typing import NDArray

from tenfold.machine import affinity
from tenfold.machine.liveness import WorkerProgress
from tenfold.machine.process_state import keep_freed_memory
from tenfold.runs import Emit, Event, Printed, Stopwatch, Warned
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.console import LIMIT, tap_streams
from tenfold.training.flat import state_shapes
from tenfold.training.randomness import RngState
from tenfold.workers.channels import Channels, SharedChannels
from tenfold.workers.cooperative import MessageBatch, Scheduler, TurnLock
from tenfold.workers.elastic.elastic_channels import ElasticChannels
from tenfold.workers.pool.fork_server import set_up_server
from tenfold.workers.pool.snapshot import TaskSnapshot
from tenfold.workers.pool.worker_reports import WorkerConnection, attach_to_parent
from tenfold.workers.task import Task, make_network
from tenfold.workers.worker import Report, Worker

set_up_server()  # does something only in the server of worker processes, where the variable is set


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """What all worker processes of a run are started with."""

    snapshot: TaskSnapshot
    channels: SharedChannels
    stopwatch: Stopwatch
    ranks_by_process: Sequence[range]
    """The workers in each process: one, or several on a virtual cluster."""
    resumption: Resumption | None = None
    """The checkpoint that they continue from."""
    exchange_times: NDArray[Any] | None = None
    """[steps, workers]; orders the exchanges of replicas without rounds that share a process."""
    elastic: bool = False
    """Whether lost workers are replaced while the others train."""


def run_workers(
    process: int, pipe: Connection, lifeline: Connection, floats: Any, setup: WorkerSetup, *, joining: bool = False
) -> None:
    """Train the replicas of one process; if `joining`, it replaces a lost worker and first waits for a state."""
    progress = attach_to_parent(process, lifeline, floats)
    ranks, stopwatch = setup.ranks_by_process[process], setup.stopwatch
    connection = WorkerConnection(pipe, progress.mark_waiting)
    try:
        forward_warnings(connection.emit, stopwatch, ranks[0])
        forward_prints(connection, stopwatch, ranks[0])
        with progress.allow_more_time():
            task = setup.snapshot.open()
        if task.cores.workers:  # pinned
            problem = affinity.apply(task.cores.cpus(process))
            if problem and process == 0:
                connection.emit(Warned(at=stopwatch.now(), text=problem))
        torch.set_num_threads(task.threads)
        keep_freed_memory()
        if len(ranks) == 1 and setup.exchange_times is None:
            _train_one(ranks[0], task, setup, connection, progress, joining=joining)
        else:
            _train_several(ranks, task, setup, connection, progress)
    except BaseException as error:
        connection.fail(error)


def _train_one(
    rank: int,
    task: Task,
    setup: WorkerSetup,
    connection: WorkerConnection,
    progress: WorkerProgress,
    *,
    joining: bool,
) -> None:
    channels = _open_channels(setup, rank, connection, progress)
    worker = _make_worker(task, setup, channels, connection, progress, lambda message: connection.report((message,)))
    if joining:
        assert isinstance(channels, ElasticChannels)
        worker.join(channels.join())
        worker.train()
    else:
        _train(worker, setup.resumption)


def _open_channels(setup: WorkerSetup, rank: int, connection: WorkerConnection, progress: WorkerProgress) -> Channels:
    shared = setup.channels
    if not setup.elastic:
        return shared.open(rank, waiting=progress.mark_waiting)
    members = tuple(range(shared.workers))
    make = partial(ElasticChannels, number=rank, members=members, ask=connection.ask, send=connection.send)
    channels = shared.open(rank, waiting=progress.mark_waiting, make=make)
    assert isinstance(channels, ElasticChannels)
    connection.is_outdated = channels.is_outdated
    return channels


def _make_worker(
    task: Task,
    setup: WorkerSetup,
    channels: Channels,
    connection: WorkerConnection,
    progress: WorkerProgress,
    report: Report,
) -> Worker:
    """Return a worker, whose network must have weights of the same shapes as in every other process."""
    with progress.allow_more_time():
        network = make_network(task)
        setup.channels.check_shapes(state_shapes(network))
        return Worker(task, network, channels, setup.stopwatch, connection.emit, report, progress)


def forward_warnings(emit: Emit, stopwatch: Stopwatch, rank: int) -> None:
    """In a worker process: emit Python's warnings as events, which name the worker, instead of printing them."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        emit(Warned(at=stopwatch.now(), text=f"{category.__name__}: {message}", worker=rank, concerns_worker=True))

    warnings.showwarning = show


def forward_prints(connection: WorkerConnection, stopwatch: Stopwatch, rank: int) -> None:
    """In a worker process: send what it prints to the supervisor with its events, in addition to printing it."""
    kept: list[str] = []

    def printed() -> list[Event]:
        count = len(kept)  # other threads may print more meanwhile, which stays for the next time
        if not count:
            return []
        text = "".join(kept[:count])[-LIMIT:]
        del kept[:count]
        return [Printed(at=stopwatch.now(), text=text, worker=rank)]

    connection.printed = printed
    tap_streams(kept.append)


def _train(worker: Worker, resumption: Resumption | None) -> None:
    if resumption is not None:
        with worker.progress.allow_more_time():
            worker.resume(resumption.state(worker.number))
    worker.train()


def _train_several(
    ranks: range, task: Task, setup: WorkerSetup, connection: WorkerConnection, progress: WorkerProgress
) -> None:
    """Train several replicas, each until it has to wait for another."""
    scheduler = Scheduler(setup.exchange_times, progress.mark_waiting)
    batch = MessageBatch(len(ranks), connection.report, scheduler)

    def train_at(index: int) -> None:
        RngState.use_own_numpy_generator()
        rank = ranks[index]
        lock = TurnLock(scheduler, rank) if setup.exchange_times is not None else None
        channels = setup.channels.open(rank, scheduler.wait_until, lock)
        worker = _make_worker(task, setup, channels, connection, progress, partial(batch.report, index))
        if lock is not None:
            lock.step = lambda: worker.replica.steps
        _train(worker, setup.resumption)

    scheduler.run([partial(train_at, index) for index in range(len(ranks))])
