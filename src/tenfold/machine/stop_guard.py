"""A small process beside a rank that notices when the rank is stopped before it can send heartbeats.

A stopped process cannot report anything itself, and one that still imports libraries looks the same to other hosts. The
guard shares the rank's host, so it can tell the two apart: it reads the state of the process from the system.
"""

import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World
from tenfold.machine.process_state import is_stopped

LOOK_SECONDS = 0.5
"""Seconds between two checks of the rank."""
STOPPED_SECONDS = 5.0
"""Seconds that a rank may be stopped."""
REPORT_SECONDS = 30.0
"""Seconds that the report to the other ranks may take, which imports torch on a busy machine."""

Report = Callable[[World, WorkerLost], None]

_guards: dict[int, int] = {}
"""The guard of this process, by its own process id: a fork has none."""


def start_guard(world: World, report: Report, stopped_seconds: float = STOPPED_SECONDS) -> None:
    """Guard this rank, once, if the ranks are on several hosts; those of one host watch each other.

    When it is stopped, the guard calls `report`, prints an error that names the rank, and kills it: launchers wait for
    it.
    """
    own = os.getpid()
    if world.local_size == world.size or own in _guards or not hasattr(os, "fork"):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the fork has this thread only, and leaves the rest alone
        guard = os.fork()
    if guard == 0:
        try:
            _guard(own, world, report, stopped_seconds)
        finally:
            os._exit(0)
    _guards[own] = guard


def end_guard() -> None:
    """End the guard of this process, if it has one: the ranks have met."""
    guard = _guards.pop(os.getpid(), None)
    if guard is not None:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(guard, signal.SIGKILL)
            os.waitpid(guard, 0)


def describe_stop(rank: int, pid: int) -> str:
    """Return the sentence about a rank of this host that was stopped before the ranks have met."""
    name = f"worker {rank} (process {pid} on {socket.gethostname()})"
    return f"{name} was stopped before training began; start the ranks again"


def kill_if_stopped(pid: int) -> None:
    """Kill a process, unless it continues or another has its number by now."""
    if is_stopped(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _guard(pid: int, world: World, report: Report, stopped_seconds: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the rank's own handlers are not for the guard
        signal.signal(number, signal.SIG_DFL)
    if not _wait_for_stop(pid, stopped_seconds):
        return
    lost = WorkerLost(world.rank, describe_stop(world.rank, pid))
    reporting = threading.Thread(target=report, args=(world, lost), daemon=True)
    reporting.start()
    reporting.join(REPORT_SECONDS)
    if is_stopped(pid):
        print(f"{f'[rank {world.rank}] ' if world.rank else ''}error: {lost}", file=sys.stderr, flush=True)
        kill_if_stopped(pid)


def _wait_for_stop(pid: int, stopped_seconds: float) -> bool:
    """Return True once the process has been stopped for `stopped_seconds`, and False when it has ended."""
    since: float | None = None
    looked = time.monotonic()
    while os.getppid() == pid:
        time.sleep(min(LOOK_SECONDS, stopped_seconds / 2))
        now = time.monotonic()
        held_up, looked = now - looked > 4 * LOOK_SECONDS, now  # this process was paused: what it knew is outdated
        if not is_stopped(pid):
            since = None
        elif since is None or held_up:
            since = now
        elif now - since >= stopped_seconds:
            return True
    return False
