"""What worker processes report to the one that started them: events, messages and errors."""

import os
import pickle
import signal
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tenfold.common.user_code import describe_error, user_frames
from tenfold.errors import TenfoldError, UserCodeError
from tenfold.machine.liveness import WorkerProgress
from tenfold.runs import Event
from tenfold.workers.messages import Decision, Message

EVENTS_TOGETHER = 256
SECONDS_BETWEEN = 0.25
POLL_SECONDS = 0.5
ELASTIC_POLL_SECONDS = 0.02
CHUNK = 1 << 20


def attach_to_parent(process: int, lifeline: Connection, floats: Any) -> WorkerProgress:
    """In a worker: end when the parent does, leave Ctrl-C to the parent, and return where progress is published."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    progress = WorkerProgress(floats, process)
    progress.begin()

    def end_with_parent() -> None:
        lifeline.poll(None)  # nothing is ever written: the other end is gone
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True, name="tenfold-lifeline").start()
    return progress


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
        self._sending = threading.RLock()  # threads of the user's may warn and print at any time

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
        with self._sending:
            self._sent = time.monotonic()
            events, self._events = self._events, []
            events += self.printed()
            if events:
                self._send(events)

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
            with self._sending:
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
