"""Notices a rank of this host that is stopped before the ranks have met, when it sends no heartbeats yet."""

import atexit
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World, detect_world
from tenfold.machine.process_state import is_stopped
from tenfold.transport.network.failure_detector import BEAT, SILENCE

BLOCKED_SECONDS = 2.0
"""Seconds after which the thread that started the watch is taken to be blocked in a library."""


class StartWatch:
    """Watches the processes that the same launcher has started on this host, from a thread, during a `with` block.

    `check` raises WorkerLost when one of them was stopped. Where a library blocks, so that nobody calls it, the process
    ends with the sentence that the error would have. Either way the stopped process is killed at the end, since
    launchers wait for it.
    """

    def __init__(self, world: World, launcher: int | None = None, silence: float = SILENCE) -> None:
        """Watch the other ranks of a world; `launcher` is the process that started them (default: this one's parent).

        A rank may be stopped for `silence` seconds.
        """
        self._world = world
        self._own = os.getpid()
        self._launcher = launcher or os.getppid()
        self._silence = silence
        self._lost: WorkerLost | None = None
        self._over = threading.Event()

    def __enter__(self) -> "StartWatch":
        threading.Thread(target=self._watch_in_thread, daemon=True, name="tenfold-start-watch").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def check(self) -> None:
        """Raise the error that names a rank that was stopped, if there is one."""
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def in_another_process(self) -> Iterator[None]:
        """Watch from a process instead: for a library that holds the interpreter's lock while it waits for others."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the fork has this thread only, and leaves the rest
            watcher = os.fork()
        if watcher == 0:
            try:
                self._watch_in_process()
            finally:
                os._exit(0)
        try:
            yield
        finally:
            os.kill(watcher, signal.SIGKILL)
            os.waitpid(watcher, 0)

    def _watch_in_thread(self) -> None:
        found = self._find_stopped(self._over.wait)
        if found is None:
            return
        pid, self._lost = found
        atexit.register(_end, pid)  # not now: launchers end all ranks when one ends, before the error can be shown
        if not self._over.wait(BLOCKED_SECONDS):
            self._print(self._lost)
            _end(pid)
            os._exit(2)

    def _watch_in_process(self) -> None:
        def wait(seconds: float) -> bool:
            time.sleep(seconds)
            return os.getppid() != self._own

        found = self._find_stopped(wait)
        if found is not None:
            self._print(found[1])
            _end(found[0])
            os.kill(self._own, signal.SIGKILL)  # it is blocked, and hears nothing else

    def _find_stopped(self, wait: Callable[[float], bool]) -> tuple[int, WorkerLost] | None:
        """Return a process that was stopped, and the error that names its rank; None when `wait` says that it is over.

        `wait` is given seconds to wait.
        """
        since: dict[int, float] = {}
        looked = time.monotonic()
        while not wait(min(BEAT, self._silence / 2)):
            now = time.monotonic()
            held_up, looked = now - looked > 4 * BEAT, now
            stopped = {pid: rank for pid, rank in self._ranks() if is_stopped(pid)}
            since = {pid: now if held_up else since.get(pid, now) for pid in stopped}
            for pid, first in since.items():
                if now - first >= self._silence:
                    name = f"worker {stopped[pid]} (process {pid} on {socket.gethostname()})"
                    sentence = f"{name} was stopped before training began; start the ranks again"
                    return pid, WorkerLost(stopped[pid], sentence)
        return None

    def _ranks(self) -> Iterator[tuple[int, int]]:
        """Yield the process and the rank of each other rank on this host that the launcher itself has started."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._launcher).children():
                with suppress(psutil.Error, OSError):
                    world = detect_world(process.environ()) if process.pid != self._own else None
                    if world is not None and (world.size, world.launch) == (self._world.size, self._world.launch):
                        yield process.pid, world.rank

    def _print(self, lost: WorkerLost) -> None:
        rank = f"[rank {self._world.rank}] " if self._world.rank else ""
        print(f"{rank}error: {lost}", file=sys.stderr, flush=True)


def _end(pid: int) -> None:
    """Kill a process, unless it continues or another has its number by now."""
    if is_stopped(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
