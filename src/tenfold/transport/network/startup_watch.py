"""Detects a rank that is stopped or does not arrive while the ranks connect, when none sends heartbeats yet."""

import atexit
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World, detect_world
from tenfold.machine.liveness import LifeWatch
from tenfold.machine.rank_guard import describe_stop, kill_if_stopped
from tenfold.transport.network.abstract_network import START_SECONDS
from tenfold.transport.network.failure_detector import BEAT, SILENCE
from tenfold.transport.network.meeting_store import CONNECT_SECONDS
from tenfold.transport.network.startup_store import READ_SECONDS, StartupStore, has_address, report_stop

BLOCKED_SECONDS = 2.0
"""Seconds after which the thread that started the watch is assumed to be blocked in a library."""


class StartupWatch:
    """Watches the ranks that the same launcher has started, from threads, during a `with` block.

    It looks at the processes of this host, and reads what other hosts report in the launcher's store. `check` raises
    WorkerLost when a rank was stopped or has not arrived. Where a library blocks, so that it is never called, the
    process ends with the message that the error would have. Either way a stopped process of this host is killed at
    the end, since launchers wait for it.
    """

    def __init__(
        self,
        world: World,
        launcher: int | None = None,
        silence: float = SILENCE,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Watch the other ranks of a world; `launcher` is the process that started them (default: this one's parent).

        A rank may be stopped for `silence` seconds, and arrive `start_seconds` later than this one.
        """
        self._world = world
        self.start_seconds = start_seconds
        self._own = os.getpid()
        self._launcher = launcher or os.getppid()
        self._silence = silence
        self._lost: Exception | None = None
        self._reader: threading.Thread | None = None
        self._over = threading.Event()

    def __enter__(self) -> "StartupWatch":
        threading.Thread(target=self._watch_in_thread, daemon=True, name="tenfold-startup-watch").start()
        if self._world.local_size < self._world.size and has_address():
            self._reader = threading.Thread(target=self._read_store, daemon=True, name="tenfold-startup-store")
            self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._reader is not None:
            self._reader.join(2 * CONNECT_SECONDS)  # a thread in torch's store would crash an interpreter that ends

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
        pid, lost = found
        if self._world.local_size < self._world.size:
            report_stop(self._world, lost)
        # Not now: launchers end all ranks when one ends, before the error is shown.
        atexit.register(kill_if_stopped, pid)
        self._give_up(lost, pid)

    def _read_store(self) -> None:
        """Read the reports of other hosts, and find ranks that do not arrive."""
        store = StartupStore(self._world)
        while not store.connect():
            if self._over.wait(BEAT):
                return
        with suppress(RuntimeError):  # the store ended with its host: the ranks that wait for it report that
            store.arrive()
            came = time.monotonic()
            while not self._over.wait(BEAT):
                is_late = time.monotonic() - came > self.start_seconds and not store.all_are_here()
                if is_late and (missing := store.find_missing()):
                    store.report(self._describe_missing(missing))
                reported = store.read_error()
                if reported is not None:
                    if self._world.rank == 0:
                        time.sleep(READ_SECONDS)  # the store may end with this rank
                    self._give_up(reported)
                    return

    def _describe_missing(self, ranks: list[int]) -> WorkerLost:
        several = len(ranks) > 1
        listed = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
        return WorkerLost(
            ranks[0],
            f"{'workers' if several else 'worker'} {listed} {'have' if several else 'has'} not come within "
            f"{self.start_seconds:g} s of worker {self._world.rank}; look for stopped processes and for slow or "
            "unreachable hosts, then start the ranks again, with a larger machine.stall_after if they need more time",
        )

    def _give_up(self, error: Exception, pid: int | None = None) -> None:
        """Make `check` raise an error; if it is not called, print it and end this process and one that was stopped."""
        self._lost = error
        if not self._over.wait(BLOCKED_SECONDS):
            self._print(error)
            if pid is not None:
                kill_if_stopped(pid)
            os._exit(2)

    def _watch_in_process(self) -> None:
        def wait(seconds: float) -> bool:
            time.sleep(seconds)
            return os.getppid() != self._own

        found = self._find_stopped(wait)
        if found is not None:
            self._print(found[1])
            kill_if_stopped(found[0])
            os.kill(self._own, signal.SIGKILL)  # it is blocked, and does not react to anything else

    def _find_stopped(self, wait: Callable[[float], bool]) -> tuple[int, WorkerLost] | None:
        """Return a process that was stopped, and the error that names its rank; None when `wait` says that it is over.

        `wait` is given seconds to wait.
        """
        watch = LifeWatch()
        while not wait(min(BEAT, self._silence / 2)):
            now = time.monotonic()
            watch.look(now)
            ranks = dict(self._ranks())
            for pid, seconds in watch.stopped_for(ranks, now).items():
                if seconds >= self._silence:
                    return pid, WorkerLost(ranks[pid], describe_stop(ranks[pid], pid))
        return None

    def _ranks(self) -> Iterator[tuple[int, int]]:
        """Yield the process and the rank of each other rank on this host that the launcher itself has started."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._launcher).children():
                with suppress(psutil.Error, OSError):
                    world = detect_world(process.environ()) if process.pid != self._own else None
                    if world is not None and (world.size, world.launch) == (self._world.size, self._world.launch):
                        yield process.pid, world.rank

    def _print(self, lost: Exception) -> None:
        rank = f"[rank {self._world.rank}] " if self._world.rank else ""
        print(f"{rank}error: {lost}", file=sys.stderr, flush=True)
