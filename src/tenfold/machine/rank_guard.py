"""The rank guard: a small process beside a rank that tells other hosts whether the rank is running.

A rank sends nothing to other hosts if it is stopped, if it still imports libraries, or if a call into C holds Python's
global lock; other hosts cannot distinguish these cases. The guard, a separate process on the rank's host, can: it asks
the kernel, and reads the progress that the rank publishes in shared memory.
"""

import importlib
import json
import mmap
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from tenfold.errors import WorkerLost
from tenfold.launchers import World
from tenfold.machine.liveness import (
    FIELDS,
    LOOK_SECONDS,
    STOPPED_SECONDS,
    LifeWatch,
    WorkerProgress,
    describe_stall,
    is_stopped,
)

KILL_SECONDS = 5.0
"""Once the ranks have met, they have this long to report a stopped or stalled rank before its guard kills it."""
REPORT_SECONDS = 30.0
"""Timeout in seconds for the report to the other ranks, which has to import torch on a busy machine."""
ANSWER_SECONDS = 1.5
"""Seconds that a guard on another host has to answer."""
HAVE_MET, STALL_AFTER = FIELDS, FIELDS + 1
"""After the fields of the rank's progress: whether the ranks have met, and `machine.stall_after`, 0 if not set."""
PROGRAM = "from tenfold.machine.rank_guard import main; main()"


@dataclass(frozen=True)
class GuardAddress:
    """The address at which a guard answers other hosts, and the secret in its answer."""

    addresses: tuple[str, ...]
    port: int
    token: str

    def answers(self) -> bool:
        """Return whether the guard reports that its rank is running; False if it does not answer."""
        with ThreadPoolExecutor(max(1, len(self.addresses))) as pool:  # an unreachable host does not refuse connections
            return any(list(pool.map(self._answers_at, self.addresses)))

    def _answers_at(self, address: str) -> bool:
        with suppress(OSError), socket.create_connection((address, self.port), ANSWER_SECONDS) as connection:
            return connection.makefile("rb").read(len(self.token)) == self.token.encode()
        return False


class RankGuard:
    """This process's handle of its guard."""

    def __init__(
        self,
        world: World,
        report: str,
        stopped_seconds: float = STOPPED_SECONDS,
        kill_seconds: float = KILL_SECONDS,
    ) -> None:
        """Start the guard; `report` is the import path of a function that tells other ranks of the loss of this one."""
        memory = _allocate(8 * (STALL_AFTER + 1))
        self._floats = _floats(memory)
        self.progress = WorkerProgress(self._floats)
        """The progress that this rank publishes for the guard."""
        self.address: GuardAddress | None = None
        """The address at which other hosts reach the guard; None if all ranks are on this host."""
        passed, setup = [memory], {"pid": os.getpid(), "memory": memory, "world": asdict(world), "report": report}
        setup |= {"stopped_seconds": stopped_seconds, "kill_seconds": kill_seconds}
        listener = None
        if world.local_size == world.size:
            self.note_meeting()  # ranks of one host watch one another from the start
        else:
            listener = socket.create_server(("", 0))
            self.address = GuardAddress(addresses_of_host(), listener.getsockname()[1], secrets.token_hex(16))
            passed.append(listener.fileno())
            setup |= {"listener": listener.fileno(), "token": self.address.token}
        path = os.pathsep.join(os.path.abspath(place) for place in sys.path if place)  # noqa: PTH100 - no links followed
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, json.dumps(setup)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path},
                pass_fds=passed,
            )
        finally:
            os.close(memory)
            if listener is not None:
                listener.close()

    def note_meeting(self) -> None:
        """Tell the guard that the ranks have met, and watch one another from now on."""
        self._floats[HAVE_MET] = 1.0

    def watch_progress(self, stall_after: float | None) -> WorkerProgress:
        """Make the guard watch the progress published from now on."""
        self.progress.clear()
        self._floats[STALL_AFTER] = stall_after or 0.0
        return self.progress


_guards: dict[int, RankGuard] = {}
"""The guard of this process, by its own process id: a fork has none."""


def start_guard(world: World, report: str) -> RankGuard | None:
    """Return the guard of this rank, which is started once; None where no program can be started."""
    own = os.getpid()
    if own not in _guards:
        with suppress(OSError, ValueError):
            _guards[own] = RankGuard(world, report)
    return _guards.get(own)


def current_guard() -> RankGuard | None:
    """Return the guard of this process, if it has one."""
    return _guards.get(os.getpid())


def addresses_of_host() -> tuple[str, ...]:
    """Return the addresses of this host by which others may reach it."""
    interfaces = [address for every in psutil.net_if_addrs().values() for address in every]
    addresses = [address.address for address in interfaces if address.family == socket.AF_INET]
    return tuple(address for address in addresses if not address.startswith("127."))


def describe_stop(rank: int, pid: int) -> str:
    """Return the sentence about a rank of this host that was stopped before the ranks have met."""
    return f"{_name(rank, pid)} was stopped before training began; start the ranks again"


def kill_if_stopped(pid: int) -> None:
    """Kill a process, unless it has continued or its id now belongs to another process."""
    if is_stopped(pid):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """In the guard: watch the rank until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both processes
    setup = json.loads(sys.argv[1])
    pid, world, floats = setup["pid"], World(**setup["world"]), _floats(setup["memory"])
    watch, token = LifeWatch([WorkerProgress(floats)]), setup.get("token", "")
    listener = socket.socket(fileno=setup["listener"]) if "listener" in setup else None
    waiting = [*([listener.fileno()] if listener else []), *_end_of(pid)]
    while os.getppid() == pid:
        ready, _, _ = select.select(waiting, [], [], LOOK_SECONDS)
        if listener is not None and listener.fileno() in ready:
            _answer(listener, token, pid)
        now = time.monotonic()
        watch.look(now)
        watch.stall_after = floats[STALL_AFTER] or None
        stopped, stalled = watch.stopped_for([pid], now).get(pid, 0.0), watch.find_stalled(now, {0: pid}).get(0)
        if floats[HAVE_MET] and stopped >= setup["stopped_seconds"] + setup["kill_seconds"]:
            # The other ranks have reported it by now, but launchers wait for it.
            _print(world.rank, f"{_name(world.rank, pid)} was stopped and has not continued for {stopped:.0f} s")
            kill_if_stopped(pid)
        elif not floats[HAVE_MET] and stopped >= setup["stopped_seconds"]:
            _report_stop(world, pid, setup["report"])
        elif stalled is not None and watch.find_stalled(now - 2 * setup["kill_seconds"], {0: pid}):
            # The rank's own thread that would report this is not running.
            text = f"{_name(world.rank, pid)} {describe_stall(stalled, watch.stall_after)}"
            _print(world.rank, text)
            os.kill(pid, signal.SIGKILL)


def _answer(listener: socket.socket, token: str, pid: int) -> None:
    """Send the token to a connected client if the rank is running."""
    with suppress(OSError):
        connection, _ = listener.accept()
        with connection:
            if not is_stopped(pid) and os.getppid() == pid:
                connection.settimeout(LOOK_SECONDS)
                connection.sendall(token.encode())


def _end_of(pid: int) -> list[int]:
    """Return a descriptor that becomes readable when the process ends, if the system supports this."""
    with suppress(AttributeError, OSError):
        return [os.pidfd_open(pid)]
    return []


def _report_stop(world: World, pid: int, report: str) -> None:
    """Tell the ranks of other hosts that this one is stopped, print it, and kill the rank: launchers wait for it."""
    lost = WorkerLost(world.rank, describe_stop(world.rank, pid))
    module, _, name = report.partition(":")

    def tell() -> None:
        getattr(importlib.import_module(module), name)(world, lost)

    reporting = threading.Thread(target=tell, daemon=True)
    reporting.start()
    reporting.join(REPORT_SECONDS)
    if is_stopped(pid):
        _print(world.rank, str(lost))
        kill_if_stopped(pid)


def _print(rank: int, text: str) -> None:
    print(f"{f'[rank {rank}] ' if rank else ''}error: {text}", file=sys.stderr, flush=True)


def _name(rank: int, pid: int) -> str:
    return f"worker {rank} (process {pid} on {socket.gethostname()})"


def _allocate(nbytes: int) -> int:
    """Return the descriptor of shared memory that a child can inherit."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("tenfold-guard")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd


def _floats(fd: int) -> Any:
    return memoryview(mmap.mmap(fd, 0)).cast("d")
