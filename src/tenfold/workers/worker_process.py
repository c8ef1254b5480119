"""What runs in a worker process."""

import pickle
import time
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from numpy.typing import NDArray

from tenfold.errors import TenfoldError
from tenfold.machine import affinity, memory
from tenfold.runs import Clock, Event, Warned
from tenfold.runs.resumption import Resumption
from tenfold.training.randomness import RngState
from tenfold.workers.channels import SharedChannels
from tenfold.workers.cooperative import Hub, MessageBatch, Turn
from tenfold.workers.messages import Decision, Message
from tenfold.workers.snapshot import TaskSnapshot
from tenfold.workers.task import Task, make_network
from tenfold.workers.worker import Worker
from tenfold.workers.worker_pool import live

EVENTS_TOGETHER = 256
SECONDS_BETWEEN = 0.25


class WorkerConnection:
    """A worker's side of its connection: events go in bundles, messages wait for their answer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._events: list[Event] = []
        self._sent = time.monotonic()

    def emit(self, event: Event) -> None:
        """Keep the event for the next bundle."""
        self._events.append(event)
        if len(self._events) >= EVENTS_TOGETHER or time.monotonic() - self._sent > SECONDS_BETWEEN:
            self.flush()

    def tell(self, messages: tuple[Message, ...]) -> Decision:
        """Send the messages of all workers in this process and return the supervisor's answer."""
        self.flush()
        self._send(messages)
        return pickle.loads(self.connection.recv_bytes())  # type: ignore[no-any-return]

    def flush(self) -> None:
        """Send the events."""
        self._sent = time.monotonic()
        if self._events:
            self._send(self._events)
            self._events = []

    def fail(self, error: BaseException) -> None:
        """Send an error: as it is when it is written for the user, else with its traceback."""
        self.flush()
        self._send(error if isinstance(error, TenfoldError) else RuntimeError(traceback.format_exc()))

    def _send(self, content: Any) -> None:
        self.connection.send_bytes(pickle.dumps(content))


def work(
    place: int,
    connection: Connection,
    lifeline: Connection,
    beats: Any,
    parcel: TaskSnapshot,
    links: SharedChannels,
    clock: Clock,
    resumption: Resumption | None,
    crews: Sequence[range],
    times: NDArray[Any] | None = None,
) -> None:
    """Train the replicas that have their place in this process: most often one, on a virtual cluster several.

    `times` [steps, workers] orders the exchanges of replicas without rounds that share a process.
    """
    live(place, lifeline, beats)
    post, ranks = WorkerConnection(connection), crews[place]
    try:
        task = parcel.open()
        trouble = affinity.apply(task.cores.cpus(place))
        if trouble and place == 0:
            post.emit(Warned(at=clock.now(), text=trouble))
        torch.set_num_threads(task.threads)
        memory.keep_freed()
        warnings.simplefilter("ignore")
        if len(ranks) == 1 and times is None:
            worker = Worker(
                task, make_network(task), links.opens(ranks[0]), clock, post.emit, lambda message: post.tell((message,))
            )
            _go(worker, resumption)
        else:
            _host(ranks, task, links, clock, post, resumption, times)
    except BaseException as error:
        post.fail(error)


def _go(worker: Worker, resumption: Resumption | None) -> None:
    if resumption is not None:
        worker.resume(resumption.state(worker.rank))
    worker.train()


def _host(
    ranks: range,
    task: Task,
    links: SharedChannels,
    clock: Clock,
    post: WorkerConnection,
    resumption: Resumption | None,
    times: NDArray[Any] | None,
) -> None:
    """Train several replicas, each until it has to wait for another."""
    hub = Hub(times)
    desk = MessageBatch(len(ranks), post.tell, hub)

    def live_as(place: int) -> None:
        RngState.apart()
        rank = ranks[place]
        turn = Turn(hub, rank) if times is not None else None
        ends = links.opens(rank, hub.until, turn)
        worker = Worker(task, make_network(task), ends, clock, post.emit, lambda message: desk.tell(place, message))
        if turn is not None:
            turn.step = lambda: worker.replica.steps
        _go(worker, resumption)

    hub.run([partial(live_as, place) for place in range(len(ranks))])
