"""What runs in a worker process."""

import os
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from tenfold.common.user_code import describe_error, user_frames
from tenfold.errors import TenfoldError, UserCodeError
from tenfold.machine import affinity
from tenfold.machine.process_state import keep_freed_memory
from tenfold.runs import Emit, Event, Printed, Stopwatch, Warned
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.console import LIMIT, tap_streams
from tenfold.training.flat import state_shapes
from tenfold.training.randomness import RngState
from tenfold.transport.memory.counters import MembersChanged
from tenfold.workers.channels import Channels, SharedChannels
from tenfold.workers.cooperative import MessageBatch, Scheduler, TurnLock
from tenfold.workers.elastic.elastic_channels import ElasticChannels
from tenfold.workers.messages import Decision, Message
from tenfold.workers.pool.fork_server import set_up_server
from tenfold.workers.pool.snapshot import TaskSnapshot
from tenfold.workers.pool.worker_reports import WorkerProgress, start_heartbeat
from tenfold.workers.task import Task, make_network
from tenfold.workers.worker import Worker

set_up_server()  # does something only in the server of worker processes, where the variable is set

EVENTS_TOGETHER = 256
SECONDS_BETWEEN = 0.25
POLL_SECONDS = 0.5
ELASTIC_POLL_SECONDS = 0.02


class WorkerConnection:
    """A worker process's connection to the supervisor: events go in batches, messages wait for their answer."""

    def __init__(self, pipe: Connection, waiting: Callable[[], None] = lambda: None) -> None:
        """Connect; `waiting` is called repeatedly while an answer is awaited."""
        self._pipe = pipe
        self.is_outdated: Callable[[], bool] | None = None
        """Returns whether the members have changed, so that `report` will not be answered."""
        self._waiting = waiting
        self.printed: Callable[[], list[Event]] = list
        """Returns what was printed since the last call, as events."""
        self._events: list[Event] = []
        self._sent = time.monotonic()

    def emit(self, event: Event) -> None:
        """Keep the event for the next batch."""
        self._events.append(event)
        if len(self._events) >= EVENTS_TOGETHER or time.monotonic() - self._sent > SECONDS_BETWEEN:
            self.flush()

    def report(self, messages: tuple[Message, ...]) -> Decision:
        """Send the messages of all workers in this process and return the supervisor's answer."""
        decision: Decision = self._ask(messages, self.is_outdated)
        return decision

    def ask(self, message: Any) -> Any:
        """Send one message, and return the answer to it."""
        return self._ask(message, None)

    def send(self, message: Any) -> None:
        """Send one message that is not answered."""
        self.flush()
        self._send(message)

    def _ask(self, content: Any, is_outdated: Callable[[], bool] | None) -> Any:
        self.flush()
        self._send(content)
        seconds = POLL_SECONDS if is_outdated is None else ELASTIC_POLL_SECONDS
        try:
            while not self._pipe.poll(seconds):
                self._waiting()
                # The process that changes the members has sent its earlier answers before.
                if is_outdated is not None and is_outdated() and not self._pipe.poll():
                    raise MembersChanged
            answer = self._pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            os._exit(1)
        return pickle.loads(answer)

    def flush(self) -> None:
        """Send the events that are kept."""
        self._sent = time.monotonic()
        events = [*self._events, *self.printed()]
        if events:
            self._send(events)
            self._events = []

    def fail(self, error: BaseException) -> None:
        """Send an error: unchanged if it is written for the user, otherwise with the user's lines or its traceback."""
        self.flush()
        if not isinstance(error, TenfoldError):
            kind = UserCodeError if user_frames(error) else RuntimeError
            error = kind(describe_error(error))
        self._send(error)

    def _send(self, content: Any) -> None:
        content = pickle.dumps(content)
        try:
            self._pipe.send_bytes(content)
        except (BrokenPipeError, ConnectionResetError):  # the parent is gone: there is no process to report to
            os._exit(1)


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
    process: int, pipe: Connection, lifeline: Connection, beats: Any, setup: WorkerSetup, *, joining: bool = False
) -> None:
    """Train the replicas of one process; if `joining`, it replaces a lost worker and first waits for a state."""
    start_heartbeat(process, lifeline, beats)
    progress, ranks, stopwatch = WorkerProgress(beats, process), setup.ranks_by_process[process], setup.stopwatch
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

    def report(message: Message) -> Decision:
        return connection.report((message,))

    with progress.allow_more_time():
        network = _make_network(task, setup.channels)
        worker = Worker(task, network, channels, setup.stopwatch, connection.emit, report, progress)
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


def _make_network(task: Task, shared: SharedChannels) -> nn.Module:
    """Return the network, which must have weights of the same shapes in every process."""
    network = make_network(task)
    shared.check_shapes(state_shapes(network))
    return network


def forward_warnings(emit: Emit, stopwatch: Stopwatch, rank: int) -> None:
    """In a worker process: emit Python's warnings as events, which name the worker, instead of printing them."""

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        emit(Warned(at=stopwatch.now(), text=f"{category.__name__}: {message}", worker=rank, concerns_worker=True))

    warnings.showwarning = show


def forward_prints(connection: WorkerConnection, stopwatch: Stopwatch, rank: int) -> None:
    """In a worker process: send what it prints to the supervisor with its events, in addition to printing it."""
    kept: list[str] = []

    def printed() -> list[Event]:
        if not kept:
            return []
        text = "".join(kept)[-LIMIT:]
        kept.clear()
        return [Printed(at=stopwatch.now(), text=text, worker=rank)]

    connection.printed = printed
    tap_streams(kept.append)


def _train(worker: Worker, resumption: Resumption | None) -> None:
    if resumption is not None:
        with worker.allow_more_time():
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
        report: Callable[[Message], Decision] = partial(batch.report, index)
        with progress.allow_more_time():
            network = _make_network(task, setup.channels)
            worker = Worker(task, network, channels, setup.stopwatch, connection.emit, report, progress)
        if lock is not None:
            lock.step = lambda: worker.replica.steps
        _train(worker, setup.resumption)

    scheduler.run([partial(train_at, index) for index in range(len(ranks))])
