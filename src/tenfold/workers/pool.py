"""The pool of worker processes: starts them, reads their messages, and detects lost workers."""

import contextlib
import math
import os
import pickle
import signal
import struct
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil
import torch

from tenfold.common.imports import describe_error, user_frames
from tenfold.errors import TenfoldError, UserCodeError, WorkerLost, name_workers
from tenfold.machine.cores import SPARE_ONCE_RECORDED, MemoryHint
from tenfold.machine.liveness import (
    BEGAN,
    FIELDS,
    LOOK_SECONDS,
    STOPPED_SECONDS,
    LifeWatch,
    WorkerProgress,
    describe_stall,
    is_alive,
    is_stopped,
)
from tenfold.runs.events import Event
from tenfold.transport.segment import SharedTensor
from tenfold.transport.shared_memory import MembersChanged
from tenfold.workers.coordinator import Decision, Message
from tenfold.workers.fork_server import context, start_process, start_server_for

EVENTS_TOGETHER = 256
SECONDS_BETWEEN = 0.25
POLL_SECONDS = 0.5
ELASTIC_POLL_SECONDS = 0.02
CHUNK = 1 << 20


def attach_to_parent(process: int, lifeline: Connection, floats: SharedTensor) -> WorkerProgress:
    """In a worker: exit with the parent, leave Ctrl-C to the parent, and return the progress to publish."""
    try:
        progress = WorkerProgress(floats.open().numpy().data, process)
    except FileNotFoundError:  # the program was killed while it started this process
        raise SystemExit(1) from None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    progress.begin()

    def end_with_parent() -> None:
        lifeline.poll(None)  # nothing is ever written, so this returns when the other end closes
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True, name="tenfold-lifeline").start()
    return progress


class WorkerConnection:
    """A worker process's connection to the coordinator: events are sent in batches, messages wait for an answer."""

    def __init__(self, pipe: Connection, waiting: Callable[[], None] = lambda: None) -> None:
        """`waiting` is called repeatedly while waiting for an answer."""
        self._pipe = pipe
        self.is_outdated: Callable[[], bool] | None = None
        """Returns whether the members have changed, so that `report` will not be answered."""
        self._waiting = waiting
        self.printed: Callable[[], list[Event]] = list
        """Returns the output since the last call, as events."""
        self._events: list[Event] = []
        self._sent = time.monotonic()
        self._sending = threading.RLock()  # threads of the user's may warn and print at any time

    def emit(self, event: Event) -> None:
        with self._sending:
            self._events.append(event)
        if len(self._events) >= EVENTS_TOGETHER or time.monotonic() - self._sent > SECONDS_BETWEEN:
            self.flush()

    def report(self, messages: tuple[Message, ...]) -> Decision:
        """Send the messages of all workers in this process and return the coordinator's answer."""
        decision: Decision = self._ask(messages, self.is_outdated)
        return decision

    def ask(self, message: Any) -> Any:
        return self._ask(message, None)

    def send(self, message: Any) -> None:
        self.flush()
        self._send(message)

    def _ask(self, content: Any, is_outdated: Callable[[], bool] | None) -> Any:
        self.flush()
        self._send(content)
        seconds = POLL_SECONDS if is_outdated is None else ELASTIC_POLL_SECONDS
        try:
            while not self._pipe.poll(seconds):
                self._waiting()
                # Earlier answers arrive before a change of members, because the same process sends both.
                if is_outdated is not None and is_outdated() and not self._pipe.poll():
                    raise MembersChanged
            answer = self._pipe.recv_bytes()
        except (EOFError, ConnectionResetError):
            os._exit(1)
        return pickle.loads(answer)

    def flush(self) -> None:
        with self._sending:
            self._sent = time.monotonic()
            events, self._events = self._events, []
            events += self.printed()
            if events:
                self._send(events)

    def fail(self, error: BaseException) -> None:
        """Send an error: unchanged if it is a TenfoldError, otherwise with the lines of user code or the traceback."""
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
    """Reads the messages of `Connection.send_bytes` without waiting for the rest of an incomplete one.

    A message follows its length, in 4 bytes, or -1 and 8 bytes.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._received = bytearray()

    def read(self) -> tuple[list[Any], bool]:
        """Return the complete messages, and whether the other end is closed."""
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
        while (span := self._find_message(begin)) is not None:
            start, begin = span
            messages.append(pickle.loads(self._received[start:begin]))
        del self._received[:begin]
        return messages

    def _find_message(self, begin: int) -> tuple[int, int] | None:
        """Return the start and end of the content of the message that begins here, if it is complete."""
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


STARTUP_SECONDS = 60.0
"""Seconds that a worker has until it runs its own code."""
UNKNOWN_CODE = 255
"""The exit code that `multiprocessing` gives a process whose server is gone."""
GROUP_SECONDS = 0.2
"""Seconds in which SIGTERM reaches this process as well, if it was sent to the whole group."""
WAIT_SECONDS = 1.0
"""Seconds a worker has to end by itself before it is killed."""


class WorkerPool:
    """Processes that run `target(process, connection, lifeline, floats, *arguments)`; `process` is its index here.

    They exit when this process does, even if it is killed: each holds one end of a pipe whose other end is only here.
    """

    def __init__(
        self,
        size: int,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        *,
        ranks: Sequence[range] | None = None,
        stall_after: float | None = None,
    ) -> None:
        """Start the processes; `ranks` are the workers in each, for error messages (default: one in each).

        A worker without progress for `stall_after` seconds is stalled; by default the limit is much longer than its
        longest pause so far.
        """
        start_server_for(size, SPARE_ONCE_RECORDED)
        started = context()
        self.ranks = ranks or [range(index, index + 1) for index in range(size)]
        self._floats = SharedTensor(torch.zeros(size * FIELDS, dtype=torch.float64))
        floats = self._floats.open().numpy().data
        self._progress = [WorkerProgress(floats, index) for index in range(size)]
        self._watch = LifeWatch(self._progress, stall_after)
        self._memory = MemoryHint()
        self._theirs, self._lifeline = started.Pipe(duplex=False)
        self._target, self._arguments = target, arguments
        self.connections: list[Connection] = []
        self.processes: list[Any] = []
        self._readers: list[MessageReader] = []
        self._started: list[float] = []
        self._absent: set[int] = set()
        self._orphans: set[int] = set()
        """Processes that live on without the server that they were forked from."""
        self._unheard: list[tuple[int, Any]] = []
        try:
            with _deferring_interrupts():
                for index in range(size):
                    connection, process = self._start(index)
                    self.connections.append(connection)
                    self.processes.append(process)
                    self._readers.append(MessageReader(connection))
                    self._started.append(time.monotonic())
        except BaseException:
            self.end()
            raise

    def _start(self, index: int, **more: Any) -> tuple[Connection, Any]:
        started = context()
        here, there = started.Pipe()
        arguments = (index, there, self._theirs, self._floats, *self._arguments)
        process = started.Process(  # type: ignore[attr-defined]
            target=self._target, args=arguments, kwargs=more, name=f"tenfold-worker-{index}"
        )
        start_process(process)
        there.close()
        return here, process

    @property
    def present(self) -> list[int]:
        return [index for index in range(len(self.processes)) if index not in self._absent]

    def remove(self, index: int) -> None:
        """Kill a lost process and remove it from the pool."""
        if index in self._absent:
            return
        _kill(self.processes[index])
        self.connections[index].close()
        self._progress[index].reset()
        self._absent.add(index)
        self._orphans.discard(index)
        self._unheard = [(other, message) for other, message in self._unheard if other != index]

    def replace(self, index: int, **more: Any) -> None:
        """Start a process in place of a lost one; `more` are additional arguments for it."""
        self.remove(index)
        with _deferring_interrupts():
            self.connections[index], self.processes[index] = self._start(index, **more)
            self._readers[index] = MessageReader(self.connections[index])
            self._started[index] = time.monotonic()
            self._absent.discard(index)

    def messages(self) -> Iterator[tuple[int, Any]]:
        """Yield (index of the process, message) as messages arrive; raise WorkerLost when a process is lost.

        All messages of the lost process are yielded first. Messages of the others, such as errors because they wait for
        the lost one, are yielded only by the next call, after `remove` or `replace`.
        """
        looked = -math.inf
        while True:
            while self._unheard:
                yield self._unheard.pop(0)
            present = self.present
            ends: list[Any] = [self.connections[index] for index in present]
            self._orphans = {index for index in present if _is_orphan(self.processes[index])} | self._orphans
            ends += [self.processes[index].sentinel for index in present if index not in self._orphans]
            wait(ends, timeout=LOOK_SECONDS)
            heard = {index: self._read(index) for index in present}
            lost = next((index for index, (_, gone) in heard.items() if gone), None)
            self._unheard = [(index, message) for index, (messages, _) in heard.items() for message in messages]
            self._unheard.sort(
                key=lambda item: isinstance(item[1], WorkerLost)
            )  # the lost worker's own error explains more
            if lost is not None:
                for message in heard[lost][0]:
                    yield lost, message
                raise self._exit_error(lost)
            now = time.monotonic()
            if now - looked >= LOOK_SECONDS:  # not after every message
                looked = now
                self._check_life(now)

    def send(self, index: int, message: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is noticed by `messages`
            self.connections[index].send_bytes(pickle.dumps(message))

    def _read(self, index: int) -> tuple[list[Any], bool]:
        process = self.processes[index]  # checked before reading: messages of a dead process can still be read
        alive = process.is_alive() or _is_orphan(process)
        messages, closed = self._readers[index].read()
        return messages, closed or not alive

    def _exit_error(self, index: int) -> WorkerLost:
        process = self.processes[index]
        process.join(WAIT_SECONDS)
        code = process.exitcode
        if code == -signal.SIGTERM:
            time.sleep(GROUP_SECONDS)
        if index in self._orphans:
            return self._worker_lost(index, "ended; how is not known, since the server it was forked from was killed")
        if code is None or code >= 0:
            return self._worker_lost(index, "ended" if code is None else f"ended with code {code}")
        hint = str(self._memory) if code == -signal.SIGKILL else ""
        return self._worker_lost(index, f"was killed by {signal.Signals(-code).name}{hint}")

    def _worker_lost(self, index: int, what: str) -> WorkerLost:
        ranks = self.ranks[index]
        return WorkerLost(ranks[0], f"{name_workers(ranks)} (process {self.processes[index].pid}) {what}")

    def _check_life(self, now: float) -> None:
        """Raise WorkerLost for a process that is stopped, does not start or makes no progress."""
        pids = {index: self.processes[index].pid for index in self.present}
        if self._watch.look(now):
            self._started = [now] * len(self._started)
        stopped = self._watch.stopped_for(pids.values(), now)
        for index, pid in pids.items():
            seconds = stopped.get(pid, 0.0)
            if seconds >= STOPPED_SECONDS:
                raise self._worker_lost(index, f"was stopped by a signal and has not continued for {seconds:.0f} s")
            if not self._progress[index].get(BEGAN) and now - self._started[index] > STARTUP_SECONDS:
                raise self._worker_lost(index, f"has not started to work within {STARTUP_SECONDS:g} s")
        stalled = self._watch.find_stalled(now, pids)
        if stalled:
            first, *others = stalled
            names = ", ".join(name_workers(self.ranks[index]) for index in others)
            also = f", nor has {names}" if others else ""
            raise self._worker_lost(first, describe_stall(max(stalled.values()), self._watch.stall_after, also))

    def end(self) -> None:
        """Kill all processes."""
        processes = [self.processes[index] for index in self.present]
        for process in processes:
            if process.is_alive():
                process.terminate()
        until = time.monotonic() + WAIT_SECONDS
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            _kill(process)
        for connection in (*self.connections, self._theirs, self._lifeline):
            connection.close()
        self._floats.close()
        self._progress, self._watch = [], LifeWatch()  # nothing maps the memory any more
        self.processes, self.connections, self._readers, self._absent, self._orphans = [], [], [], set(), set()

    def join(self) -> None:
        """Wait for finished processes to exit."""
        for index in self.present:
            self.processes[index].join(WAIT_SECONDS)
        self.end()


def _is_orphan(process: Any) -> bool:
    """Return whether a process is alive although its fork server, which would report its end, has died."""
    return process.exitcode == UNKNOWN_CODE and is_alive(process.pid)


def _kill(process: Any) -> None:
    """Kill a process if it is alive, and wait for its end by asking the kernel; its server may be stopped or dead."""
    while is_alive(process.pid) and process.exitcode in (None, UNKNOWN_CODE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.join(0.01)
    process.join(WAIT_SECONDS)
    if process.exitcode is None:  # its server, which reports its end, is stopped; Python would wait for it at exit
        _continue_parent(process.pid)
        process.join(WAIT_SECONDS)
    with contextlib.suppress(ValueError):  # its end is still not reported
        process.close()


def _continue_parent(pid: int) -> None:
    """Continue the parent of a process, if the parent is stopped."""
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid).parent()
        if parent is not None and is_stopped(parent.pid):
            parent.resume()


@contextlib.contextmanager
def _deferring_interrupts() -> Iterator[None]:
    """Delay Ctrl-C, and SIGTERM if it is handled, until a process has fully started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[tuple[int, types.FrameType | None]] = []
    handled = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, lambda *caught: heard.append(caught)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for caught, frame in heard[:1]:
        handler = before[signal.Signals(caught)]
        assert callable(handler)
        handler(caught, frame)
