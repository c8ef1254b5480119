"""What worker processes report to the one that started them: messages, and in shared memory heartbeats and progress."""

import os
import pickle
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from tenfold.common.user_code import describe_error, user_frames
from tenfold.errors import TenfoldError, UserCodeError
from tenfold.runs import Event
from tenfold.workers.messages import Decision, Message

if TYPE_CHECKING:
    from tenfold.transport.memory.shared_arrays import SharedFloats

EVENTS_TOGETHER = 256
SECONDS_BETWEEN = 0.25
POLL_SECONDS = 0.5
ELASTIC_POLL_SECONDS = 0.02
CHUNK = 1 << 20
BEAT = 0.5
"""Seconds between two heartbeats of a worker."""
SHORTEST_LIMIT = 60.0
"""Seconds without progress that are always allowed, unless the experiment sets a limit."""
SLOW_LIMIT = 600.0
"""Seconds allowed where much time may pass without a step: at startup, in the first steps, while saving."""
FACTOR = 20
"""How many times as long as the longest interval so far a worker may take."""
FIRST_STEPS = 3
"""Steps after which the next ones are expected to take as long."""
AT, COUNT, LONGEST, SLOW = range(4)
FIELDS = 4


def start_heartbeat(process: int, lifeline: Connection, beats: Any) -> None:
    """In a worker: show that it is alive, end when the parent does, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def beat() -> None:
        while True:
            beats[process] = time.monotonic()
            if lifeline.poll(BEAT):  # nothing is ever written: the other end is gone
                os._exit(1)

    threading.Thread(target=beat, daemon=True, name="tenfold-beat").start()


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
                    from tenfold.transport.memory.counters import MembersChanged  # not above: it imports torch

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


class MessageReader:
    """Collects what `Connection.send_bytes` wrote, without ever waiting for the rest of a message.

    Each message comes after its length, 4 bytes, or -1 and 8 bytes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._received = bytearray()

    def read(self) -> tuple[list[Any], bool]:
        """Return the messages that are complete, and whether the other end is closed."""
        messages: list[Any] = []
        try:
            while self._connection.poll():
                chunk = os.read(self._connection.fileno(), CHUNK)
                if not chunk:
                    return messages, True
                self._received += chunk
                messages += self._take_complete()
        except OSError:
            return messages, True
        return messages, False

    def _take_complete(self) -> list[Any]:
        messages, begin = [], 0
        while (found := self._find_message(begin)) is not None:
            start, begin = found
            messages.append(pickle.loads(self._received[start:begin]))
        del self._received[:begin]
        return messages

    def _find_message(self, begin: int) -> tuple[int, int] | None:
        """Return where the content of the message that begins here starts and ends, if all of it is there."""
        start, there = begin + 4, len(self._received)
        if there < start:
            return None
        (length,) = struct.unpack_from("!i", self._received, begin)
        if length == -1:
            start += 8
            if there < start:
                return None
            (length,) = struct.unpack_from("!Q", self._received, begin + 4)
        return (start, start + length) if there >= start + length else None


class WorkerProgress:
    """One worker's progress, in memory that it shares with its parent: when its last step was, and how long it took."""

    def __init__(self, floats: "SharedFloats | list[float] | None" = None, process: int = 0) -> None:
        """Use the fields behind the heartbeats of all processes; by default those of a worker without a parent."""
        self._floats = [0.0] * (1 + FIELDS) if floats is None else floats
        self._first = len(self._floats) // (1 + FIELDS) + FIELDS * process

    def mark(self) -> None:
        """Publish that a step or the evaluation of a batch is done."""
        floats, first, now = self._floats, self._first, time.monotonic()
        taken = now - floats[first + AT]
        if floats[first + COUNT] >= FIRST_STEPS and taken > floats[first + LONGEST]:
            floats[first + LONGEST] = taken
        floats[first + COUNT] += 1
        floats[first + AT] = now

    def mark_waiting(self) -> None:
        """Publish that this worker waits for others, so that it is not taken for stalled; called repeatedly."""
        self._floats[self._first + AT] = time.monotonic()

    @contextmanager
    def allow_more_time(self) -> Iterator[None]:
        """Raise the limit on time without progress during this block."""
        self._floats[self._first + SLOW] = 1.0
        self.mark_waiting()
        try:
            yield
        finally:
            self.mark_waiting()
            self._floats[self._first + SLOW] = 0.0

    def clear(self) -> None:
        """Reset everything, for the process that replaces this one."""
        for field in range(FIELDS):
            self._floats[self._first + field] = 0.0

    def get(self, field: int) -> float:
        """Return one of the published numbers; all are 0 for a worker that publishes nothing."""
        return self._floats[self._first + field]


class StallWatch:
    """Finds the workers that have made no progress for too long; `limit` in seconds, or None to derive it."""

    def __init__(self, workers: Sequence[WorkerProgress], limit: float | None) -> None:
        self._workers = workers
        self._limit = limit
        self._since = 0.0

    def restart(self, now: float) -> None:
        """Ignore the time before `now`: this process was held up, and perhaps the others with it."""
        self._since = now

    def find_stalled(self, now: float) -> dict[int, float]:
        """Return the processes that are stalled, with the limit that each has exceeded."""
        last = [worker.get(AT) for worker in self._workers]  # read once: a worker may clear it at any moment
        ages = {process: now - max(at, self._since) for process, at in enumerate(last) if at}
        limits = {process: self._allowed(self._workers[process]) for process in ages}
        if not any(ages[process] > limits[process] for process in limits):
            return {}
        # Waiting workers publish that they wait, so those that are close to the limit are stalled as well.
        return {process: limit for process, limit in limits.items() if ages[process] > 0.75 * limit}

    def _allowed(self, worker: WorkerProgress) -> float:
        slow = bool(worker.get(SLOW))
        if self._limit is not None:
            return max(self._limit, SHORTEST_LIMIT) if slow else self._limit
        derived = max(SHORTEST_LIMIT, FACTOR * max(one.get(LONGEST) for one in self._workers))
        return max(derived, SLOW_LIMIT) if slow or worker.get(COUNT) < FIRST_STEPS else derived


def describe_stall(seconds: float, stall_after: float | None, also: str = "") -> str:
    """Return the text that follows the name of a worker without progress for `seconds`."""
    value = "derived from the times of steps" if stall_after is None else f"{stall_after:g}"
    return (
        f"has made no progress for {seconds:.3g} s{also}; it may wait for a lock or for data. "
        f"If a step can take that long, set machine.stall_after ({value}) to more seconds"
    )
