"""The ranks of a launcher meet through a store at the launcher's address, and then connect."""

import atexit
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import psutil
import torch
import torch.distributed as dist

from tenfold.errors import MachineError, WorkerLost
from tenfold.experiment.values import member_of
from tenfold.launchers import World, detect_world
from tenfold.machine.liveness import LifeWatch
from tenfold.machine.rank_guard import addresses_of_host, describe_stop, kill_if_stopped, start_guard
from tenfold.registry import NETWORK_TRANSPORTS
from tenfold.transport.base import Transport
from tenfold.transport.codec import decode_error, encode_error
from tenfold.transport.network import START_SECONDS, Hosts, Network, NetworkTransport, connect, hosts_of
from tenfold.transport.rank_failures import HEARTBEAT_SECONDS, HEARTBEAT_TIMEOUT_SECONDS

REPORT_STOP = "tenfold.transport.meeting:report_stop"
"""The import path of `report_stop`, for a guard."""
READ_SECONDS = 4 * HEARTBEAT_SECONDS
"""Seconds after which every rank that waits has read a report."""


class StartupStore:
    """Records which ranks have arrived and which will not; it has its own connection, because others may be blocked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store: Any = None

    def connect(self) -> bool:
        """Try to connect, for a few seconds at most; return whether there is a connection."""
        if self._store is None:
            with suppress(OSError, RuntimeError):
                with socket.create_connection(self._address, timeout=CONNECT_SECONDS):
                    pass  # torch would print a warning for each address without an answer
                self._store = self._open(is_master=False)
        return self._store is not None

    def serve(self) -> None:
        """Host the store in place of a rank 0 that has not done so."""
        with suppress(OSError, RuntimeError):
            self._store = self._open(is_master=True)

    def arrive(self) -> None:
        self._store.set(f"arrived/{self._world.rank}", "1")
        self._store.add("arrived", 1)

    def all_are_here(self) -> bool:
        """Return whether all ranks have arrived, in one request."""
        return bool(self._store.add("arrived", 0) >= self._world.size)

    def find_missing(self) -> list[int]:
        return [rank for rank in range(self._world.size) if not self._store.check([f"arrived/{rank}"])]

    def report(self, lost: WorkerLost) -> None:
        """Report a rank that will not arrive; only the first report is kept."""
        self._store.compare_set("lost", "", encode_error(lost, lost.rank))

    def read_error(self) -> Exception | None:
        return decode_error(self._store.get("lost")) if self._store.check(["lost"]) else None

    def _open(self, *, is_master: bool) -> Any:
        store = open_tcp_store(*self._address, CONNECT_SECONDS, is_master=is_master)
        return dist.PrefixStore(f"tenfold-start/{self._world.restarts}", store)  # type: ignore[attr-defined]


def has_address() -> bool:
    return bool(os.environ.get("MASTER_ADDR")) and os.environ.get("MASTER_PORT", "").isdecimal()


def report_stop(world: World, lost: WorkerLost) -> None:
    """Tell the ranks of other hosts that a rank of this host was stopped; under MPI they notice when it ends."""
    if not has_address():
        return
    store = StartupStore(world)
    if not store.connect() and world.rank == 0:
        store.serve()
    with suppress(RuntimeError):
        if store.connect():
            store.report(lost)
            time.sleep(READ_SECONDS)


CONNECT_SECONDS = 3.0
STORE_SECONDS = 30.0
LOOPBACK = "127.0.0.1"


def open_store(network: Network) -> Any:
    """Return a store that rank 0 hosts and all ranks reach; None if some rank cannot reach rank 0's host by TCP.

    All ranks call this together. Ranks of one host use the loopback interface, which other hosts cannot reach. The keys
    have a random prefix, so a program that only finds the port does not know them.
    """
    here = socket.gethostname()
    hosts = set(network.all_gather(here))
    server, offer = None, None
    if network.rank == 0:
        with suppress(OSError, RuntimeError):
            server, port = _serve(LOOPBACK if len(hosts) == 1 else "")
            offer = [port, [LOOPBACK] if len(hosts) == 1 else list(addresses_of_host()), secrets.token_hex(16)]
    offer = network.broadcast(offer)
    store = None
    if offer is not None:
        port, addresses, prefix = offer
        with suppress(OSError, RuntimeError):
            opened = server or open_tcp_store(_reachable(addresses, port), port, STORE_SECONDS, is_master=False)
            store = dist.PrefixStore(prefix, opened)  # type: ignore[attr-defined]
    return store if all(network.all_gather(store is not None)) else None


def _serve(address: str) -> tuple[Any, int]:
    """Host a store on a free port of an address; "" means all interfaces."""
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    return open_tcp_store(LOOPBACK, port, STORE_SECONDS, is_master=True, master_listen_fd=listener.detach()), port


def open_tcp_store(address: str, port: int, seconds: float, **options: Any) -> Any:
    """Return torch's store at this address; `seconds` is the timeout of its requests."""
    limit = timedelta(seconds=seconds)
    return dist.TCPStore(address, port, wait_for_workers=False, timeout=limit, **options)  # type: ignore[attr-defined]


def _reachable(addresses: list[str], port: int) -> str:
    for address in addresses:
        with suppress(OSError), socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return str(address)
    raise OSError("no address of rank 0 answers")


BLOCKED_SECONDS = 2.0
"""Seconds after which the thread that started the watch is assumed to be blocked in a library."""


class StartupWatch:
    """Watches the ranks of the same launcher, from threads, during a `with` block.

    It checks the processes of this host, and reads the reports of other hosts in the launcher's store. `check` raises
    WorkerLost if a rank was stopped or has not arrived. If a library blocks, so that `check` is never called, the
    process prints the message of that error and exits. In both cases a stopped process of this host is killed at the
    end, because launchers wait for it.
    """

    def __init__(
        self,
        world: World,
        launcher: int | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Watch the other ranks of a world; `launcher` is the process that started them (default: the parent process).

        A rank may arrive up to `start_seconds` later than this one.
        """
        self._world = world
        self.start_seconds = start_seconds
        self._own = os.getpid()
        self._launcher = launcher or os.getppid()
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
        """Raise the error about a stopped or missing rank, if there is one."""
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def in_another_process(self) -> Iterator[None]:
        """Watch from another process, for a library that holds Python's global lock while it waits for others."""
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # the fork has only this thread, and does not use the others
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
        stopped = self._find_stopped(self._over.wait)
        if stopped is None:
            return
        pid, lost = stopped
        if self._world.local_size < self._world.size:
            report_stop(self._world, lost)
        # Not now: launchers end all ranks when one ends, before the error is shown.
        atexit.register(kill_if_stopped, pid)
        self._give_up(lost, pid)

    def _read_store(self) -> None:
        """Read the reports of other hosts, and detect ranks that do not arrive."""
        store = StartupStore(self._world)
        while not store.connect():
            if self._over.wait(HEARTBEAT_SECONDS):
                return
        with suppress(RuntimeError):  # the store ended with its host; the ranks that wait for it report that
            store.arrive()
            came = time.monotonic()
            while not self._over.wait(HEARTBEAT_SECONDS):
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
            f"{'workers' if several else 'worker'} {listed} did not start within "
            f"{self.start_seconds:g} s of worker {self._world.rank}; look for stopped processes and for slow or "
            "unreachable hosts, then start the ranks again, with a larger machine.stall_after if they need more time",
        )

    def _give_up(self, error: Exception, pid: int | None = None) -> None:
        """Make `check` raise an error; if it is not called, print it and end this process and the stopped one."""
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

        stopped = self._find_stopped(wait)
        if stopped is not None:
            self._print(stopped[1])
            kill_if_stopped(stopped[0])
            os.kill(self._own, signal.SIGKILL)  # it is blocked, and reacts to nothing else

    def _find_stopped(self, wait: Callable[[float], bool]) -> tuple[int, WorkerLost] | None:
        """Return a stopped process and the error that names its rank; None when `wait` returns that the watch is over.

        `wait` is called with the seconds to wait.
        """
        watch = LifeWatch()
        while not wait(HEARTBEAT_SECONDS):
            now = time.monotonic()
            watch.look(now)
            ranks = dict(self._ranks())
            for pid, seconds in watch.stopped_for(ranks, now).items():
                if seconds >= HEARTBEAT_TIMEOUT_SECONDS:
                    return pid, WorkerLost(ranks[pid], describe_stop(ranks[pid], pid))
        return None

    def _ranks(self) -> Iterator[tuple[int, int]]:
        """Yield process and rank of each other rank on this host that the launcher itself has started."""
        with suppress(psutil.Error):
            for process in psutil.Process(self._launcher).children():
                with suppress(psutil.Error, OSError):
                    world = detect_world(process.environ()) if process.pid != self._own else None
                    if world is not None and (world.size, world.launch) == (self._world.size, self._world.launch):
                        yield process.pid, world.rank

    def _print(self, lost: Exception) -> None:
        rank = f"[rank {self._world.rank}] " if self._world.rank else ""
        print(f"{rank}error: {lost}", file=sys.stderr, flush=True)


SHORTEST_START_SECONDS = 30.0


@dataclass
class JoinedRank:
    """This rank and its connections to the others."""

    world: World
    network: Network
    names: list[str]
    """Each rank's host."""

    @cached_property
    def hosts(self) -> Hosts:
        return hosts_of(self.names)

    def transport(
        self,
        numel: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        share_memory: bool = True,
    ) -> Transport:
        """Return a transport for `numel` weights; all ranks call this together.

        Ranks of one host use shared memory, unless `share_memory` is False.
        """
        if share_memory:
            return connect(self.network, self.hosts, numel, dtype, device)
        return NetworkTransport(self.network, torch.zeros(numel, dtype=dtype, device=device))


_joined: dict[str, JoinedRank] = {}


def join(world: World, transport: Any = "auto", stall_after: float | None = None) -> JoinedRank:
    """Join the ranks of a launcher, once per process, by this transport (default: the one for the launcher).

    Each rank waits 120 s for the others; with several hosts `stall_after`, if set, but at least 30 s, because importing
    torch may take 20 s. The network remains until the process ends, because a launcher's ranks can meet only once.
    """
    name = network_of(world, os.environ) if transport in ("auto", "shared-memory") else transport
    if name not in _joined:
        several_hosts = world.local_size < world.size
        shorter = stall_after is not None and several_hosts
        seconds = max(stall_after or 0.0, SHORTEST_START_SECONDS) if shorter else START_SECONDS
        guard = start_guard(world, REPORT_STOP) if several_hosts else None
        try:
            network: Network = member_of(NETWORK_TRANSPORTS, name).join(world, seconds)
        finally:
            if guard is not None:
                guard.note_meeting()
        atexit.register(_leave, network)
        _joined[name] = JoinedRank(world, network, network.all_gather(socket.gethostname()))
    elif (before := _joined[name].network.failure()) is not None:
        why = str(before).strip().splitlines()[-1]
        raise MachineError(f"these ranks cannot continue since one of them failed ({why}); start them again")
    return _joined[name]


def network_of(world: World, variables: Any) -> str:
    """Return the network for a launcher: torch if the address of rank 0 is given, otherwise mpi."""
    by_mpi, at_address = world.traits.meets_by_mpi, world.traits.meets_at_address
    return "torch" if at_address and (variables.get("MASTER_ADDR") or not by_mpi) else "mpi"


def _leave(network: Network) -> None:
    """Leave at the end of the process, and report an uncaught error, because other ranks may be waiting."""
    error = getattr(sys, "last_value", None)  # of an exception that was not caught
    if error is not None:
        network.report_failure(error)
    network.close()
