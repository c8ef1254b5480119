"""What runs in a worker process."""

import pickle
import time
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch

from tenfold.engines.base import Resumption, make_network
from tenfold.engines.links import SharedLinks
from tenfold.engines.messages import Message, Verdict
from tenfold.engines.parcel import Parcel
from tenfold.engines.worker import Worker
from tenfold.errors import TenfoldError
from tenfold.machine import affinity
from tenfold.machine.crew import live
from tenfold.runs import Clock, Event, Lifecycle

# The first optimizer of a process makes torch import its compiler, which takes a second. The server that workers are
# forked from imports this module, so they have it from the start.
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)

EVENTS_TOGETHER = 256
SECONDS_BETWEEN = 0.25


class Post:
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

    def tell(self, message: Message) -> Verdict:
        """Send a message and return the supervisor's answer."""
        self.flush()
        self._send(message)
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
    rank: int,
    connection: Connection,
    lifeline: Connection,
    beats: Any,
    parcel: Parcel,
    links: SharedLinks,
    clock: Clock,
    resumption: Resumption | None,
) -> None:
    """Train one replica in this process."""
    live(rank, lifeline, beats)
    post = Post(connection)
    try:
        task = parcel.open()
        trouble = affinity.apply(task.cores.cpus(rank))
        if trouble and rank == 0:
            post.emit(Lifecycle(at=clock.now(), what="warning", detail=trouble))
        torch.set_num_threads(task.threads)
        warnings.simplefilter("ignore")
        worker = Worker(task, make_network(task), links.opens(rank), clock, post.emit, post.tell)
        if resumption is not None:
            worker.resume(resumption.state(rank))
        worker.train()
    except BaseException as error:
        post.fail(error)
