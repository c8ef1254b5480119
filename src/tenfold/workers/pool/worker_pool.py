"""The worker processes of a run: started together, watched, and ended together."""

import contextlib
import pickle
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from tenfold.errors import WorkerLost, name_workers
from tenfold.machine.process_state import is_stopped
from tenfold.workers.pool.fork_server import context, start_process, start_server_for
from tenfold.workers.pool.worker_reports import BEAT, FIELDS, MessageReader, StallWatch, WorkerProgress, describe_stall

SILENCE = 4.0
"""Seconds without a heartbeat after which a worker is lost."""
STARTUP = 60.0
"""Seconds that a worker has until its first heartbeat."""
PATIENCE = 1.0
"""Seconds a worker has to end by itself before it is killed."""


class WorkerPool:
    """Processes that run `target(process, connection, lifeline, beats, *arguments)`; `process` is its index here.

    They end when this process does, however that happens: each holds one end of a pipe whose other end is only here.
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
        """Start the processes; `ranks` are the workers in each, by which errors name it (default: one in each).

        A worker that publishes progress may go without for `stall_after` seconds, or for much longer than it ever took.
        """
        from tenfold.transport.memory.shared_arrays import SharedFloats  # not above: it imports torch

        start_server_for(size)
        started = context()
        self.ranks = ranks or [range(index, index + 1) for index in range(size)]
        self.beats = SharedFloats(size * (1 + FIELDS))
        """First the time of each process's last heartbeat, then the progress of each."""
        self._progress = [WorkerProgress(self.beats, index) for index in range(size)]
        self._stall_after = stall_after
        self._stalls = StallWatch(self._progress, stall_after)
        self._theirs, self._lifeline = started.Pipe(duplex=False)
        self._target, self._arguments = target, arguments
        self.connections: list[Connection] = []
        self.processes: list[Any] = []
        self._readers: list[MessageReader] = []
        self._started: list[float] = []
        self._absent: set[int] = set()
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
        arguments = (index, there, self._theirs, self.beats, *self._arguments)
        process = started.Process(  # type: ignore[attr-defined]
            target=self._target, args=arguments, kwargs=more, name=f"tenfold-worker-{index}"
        )
        start_process(process)
        there.close()
        return here, process

    @property
    def present(self) -> list[int]:
        """The indices of the processes."""
        return [index for index in range(len(self.processes)) if index not in self._absent]

    def remove(self, index: int) -> None:
        """Kill a process that was lost, and forget it."""
        if index in self._absent:
            return
        process = self.processes[index]
        process.kill()
        process.join()
        process.close()
        self.connections[index].close()
        self.beats[index] = 0.0
        self._progress[index].clear()
        self._absent.add(index)
        self._unheard = [(other, message) for other, message in self._unheard if other != index]

    def replace(self, index: int, **more: Any) -> None:
        """Start another process in the place of one that was lost; `more` are arguments that only this one is given."""
        self.remove(index)
        with _deferring_interrupts():
            self.connections[index], self.processes[index] = self._start(index, **more)
            self._readers[index] = MessageReader(self.connections[index])
            self._started[index] = time.monotonic()
            self._absent.discard(index)

    def messages(self) -> Iterator[tuple[int, Any]]:
        """Yield (index of the process, message) as messages arrive; raise WorkerLost when a process is lost.

        Everything that the lost process had sent is yielded first. What the others have sent by then, such as errors
        because they wait for the lost one, is yielded only if this is called again, after `remove` or `replace`.
        """
        looked = time.monotonic()
        while True:
            while self._unheard:
                yield self._unheard.pop(0)
            present = self.present
            ends = [(self.connections[index], self.processes[index].sentinel) for index in present]
            wait([end for both in ends for end in both], timeout=BEAT)
            heard = {index: self._read(index) for index in present}
            lost = next((index for index, (_, gone) in heard.items() if gone), None)
            self._unheard = [(index, message) for index, (messages, _) in heard.items() for message in messages]
            self._unheard.sort(key=lambda one: isinstance(one[1], WorkerLost))  # the lost one's own error explains more
            if lost is not None:
                for message in heard[lost][0]:
                    yield lost, message
                raise self._exit_error(lost)
            now = time.monotonic()
            if now - looked < 2 * BEAT:  # otherwise this process itself was held up, and cannot tell
                self._check_beats(now)
                self._check_progress(now)
            else:
                self._stalls.restart(now)
            looked = now

    def send(self, index: int, message: Any) -> None:
        """Send a message to one worker."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is noticed by `messages`
            self.connections[index].send_bytes(pickle.dumps(message))

    def _read(self, index: int) -> tuple[list[Any], bool]:
        """Return what a worker has sent, and whether it is gone."""
        alive = self.processes[index].is_alive()  # asked before reading: what a dead process has sent can still be read
        messages, closed = self._readers[index].read()
        return messages, closed or not alive

    def _exit_error(self, index: int) -> WorkerLost:
        """Return the error that says how a process ended."""
        process = self.processes[index]
        process.join(PATIENCE)
        code = process.exitcode
        return self._worker_lost(
            index, f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with code {code}"
        )

    def _worker_lost(self, index: int, what: str) -> WorkerLost:
        """Return the error that names the workers of a process."""
        ranks = self.ranks[index]
        return WorkerLost(ranks[0], f"{name_workers(ranks)} (process {self.processes[index].pid}) {what}")

    def _check_beats(self, now: float) -> None:
        for index in self.present:
            process = self.processes[index]
            beat, waited = self.beats[index], now - self._started[index]
            if beat and now - beat > SILENCE:
                raise self._worker_lost(index, f"has sent no heartbeat for {SILENCE:g} s")
            if not beat and waited > SILENCE and is_stopped(process.pid):
                raise self._worker_lost(index, "was stopped before its first heartbeat")
            if not beat and waited > STARTUP:
                raise self._worker_lost(index, f"has sent no heartbeat within {STARTUP:g} s of its start")

    def _check_progress(self, now: float) -> None:
        stalled = self._stalls.find_stalled(now)
        if not stalled:
            return
        first, *others = stalled
        names = ", ".join(name_workers(self.ranks[index]) for index in others)
        also = f", nor has {names}" if others else ""
        raise self._worker_lost(first, describe_stall(max(stalled.values()), self._stall_after, also))

    def end(self) -> None:
        """End all processes, whatever they are doing."""
        processes = [self.processes[index] for index in self.present]
        for process in processes:
            if process.is_alive():
                process.terminate()
        until = time.monotonic() + PATIENCE
        for process in processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for connection in (*self.connections, self._theirs, self._lifeline):
            connection.close()
        self.beats.close()
        self.processes, self.connections, self._readers, self._absent = [], [], [], set()

    def join(self) -> None:
        """Wait for processes that are done."""
        for index in self.present:
            self.processes[index].join(PATIENCE)
        self.end()


@contextlib.contextmanager
def _deferring_interrupts() -> Iterator[None]:
    """Delay Ctrl-C, so that no process is left half started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[tuple[int, types.FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard and callable(before):
        before(*heard[0])
