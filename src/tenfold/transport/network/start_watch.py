"""Notices a rank of this host that is stopped before the ranks have met, when it sends no heartbeats yet."""

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World, detect_world
from tenfold.machine.process_state import is_stopped
from tenfold.transport.network.failure_detector import BEAT, SILENCE

BLOCKED_SECONDS = 2.0
"""Seconds after which the thread that started the watch is taken to be blocked in a library."""


class StartWatch:
    """Watches the processes that the same launcher has started on this host; used in a `with` block.

    `check` raises WorkerLost when one of them was stopped. Libraries that wait for all ranks, such as MPI's start, call
    nothing meanwhile; then the process ends with the sentence that the error would have. Either way the stopped process
    is killed at the end, since launchers wait for it.
    """

    def __init__(self, world: World, launcher: int | None = None, silence: float = SILENCE) -> None:
        """Watch the other ranks of a world; `launcher` is the process that started them (default: this one's parent).

        A rank may be stopped for `silence` seconds.
        """
        self._world = world
        self._launcher = launcher or os.getppid()
        self._silence = silence
        self._lost: WorkerLost | None = None
        self._over = threading.Event()

    def __enter__(self) -> "StartWatch":
        threading.Thread(target=self._watch, daemon=True, name="tenfold-start-watch").start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def check(self) -> None:
        """Raise the error that names a rank that was stopped, if there is one."""
        if self._lost is not None:
            raise self._lost

    def _watch(self) -> None:
        since: dict[int, float] = {}
        looked = time.monotonic()
        while not self._over.wait(min(BEAT, self._silence / 2)):
            now = time.monotonic()
            held_up, looked = now - looked > 4 * BEAT, now
            stopped = {pid: rank for pid, rank in self._ranks() if is_stopped(pid)}
            since = {pid: now if held_up else since.get(pid, now) for pid in stopped}
            for pid, first in since.items():
                if now - first >= self._silence:
                    self._lose(stopped[pid], pid)
                    return

    def _ranks(self) -> Iterator[tuple[int, int]]:
        """Yield the process and the rank of each other rank on this host that the launcher itself has started."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._launcher).children():
                with suppress(psutil.Error, OSError):
                    world = detect_world(process.environ()) if process.pid != os.getpid() else None
                    if world is not None and (world.size, world.launch) == (self._world.size, self._world.launch):
                        yield process.pid, world.rank

    def _lose(self, rank: int, pid: int) -> None:
        name = f"worker {rank} (process {pid} on {socket.gethostname()})"
        sentence = f"{name} was stopped before training began; start the ranks again"
        atexit.register(_end, pid)  # not now: launchers end all ranks when one ends, before the error can be shown
        self._lost = WorkerLost(rank, sentence)
        if not self._over.wait(BLOCKED_SECONDS):
            print(f"error: {sentence}", file=sys.stderr, flush=True)
            _end(pid)
            os._exit(2)


def _end(pid: int) -> None:
    """Kill a process, unless it continues or another has its number by now."""
    if not is_stopped(pid):
        return
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
