"""What ranks report before they are connected, in the store at the address that their launcher has set."""

import os
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World
from tenfold.transport.network.codec import decode_error, encode_error
from tenfold.transport.network.failure_detector import BEAT
from tenfold.transport.network.meeting_store import CONNECT_SECONDS

REPORT_STOP = "tenfold.transport.network.startup_store:report_stop"
"""The import path of `report_stop`, for a guard."""
READ_SECONDS = 4 * BEAT
"""Seconds after which every rank that waits has read a report."""


class StartupStore:
    """Records which ranks have arrived and which will not; it has its own connection, as another may be blocked."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store: Any = None

    def connect(self) -> bool:
        """Try to connect, for a few seconds at most; return whether there is a connection."""
        if self._store is None:
            with suppress(OSError, RuntimeError):
                with socket.create_connection(self._address, timeout=CONNECT_SECONDS):
                    pass  # torch would print a warning for each address that does not answer yet
                self._store = self._open(is_master=False)
        return self._store is not None

    def serve(self) -> None:
        """Take the place of a rank 0 that has not offered the store yet."""
        with suppress(OSError, RuntimeError):
            self._store = self._open(is_master=True)

    def arrive(self) -> None:
        """Record, once, that this rank has arrived."""
        self._store.set(f"arrived/{self._world.rank}", "1")
        self._store.add("arrived", 1)

    def all_are_here(self) -> bool:
        """Return whether all ranks have arrived, in one request."""
        return bool(self._store.add("arrived", 0) >= self._world.size)

    def find_missing(self) -> list[int]:
        """Return the ranks that have not arrived."""
        return [rank for rank in range(self._world.size) if not self._store.check([f"arrived/{rank}"])]

    def report(self, lost: WorkerLost) -> None:
        """Report a rank that will not arrive; the first report is kept."""
        self._store.compare_set("lost", "", encode_error(lost, lost.rank))

    def read_error(self) -> Exception | None:
        """Return the error that was reported, if any."""
        return decode_error(self._store.get("lost")) if self._store.check(["lost"]) else None

    def _open(self, *, is_master: bool) -> Any:
        host, port = self._address
        limit = timedelta(seconds=CONNECT_SECONDS)
        store = dist.TCPStore(host, port, is_master=is_master, wait_for_workers=False, timeout=limit)  # type: ignore[attr-defined]
        return dist.PrefixStore(f"tenfold-start/{self._world.restarts}", store)  # type: ignore[attr-defined]


def has_address() -> bool:
    """Return whether the launcher has set the address of a store."""
    return bool(os.environ.get("MASTER_ADDR")) and os.environ.get("MASTER_PORT", "").isdecimal()


def report_stop(world: World, lost: WorkerLost) -> None:
    """Tell the ranks of other hosts that a rank of this host was stopped; under MPI they learn it from its end."""
    if not has_address():
        return
    store = StartupStore(world)
    if not store.connect() and world.rank == 0:
        store.serve()
    with suppress(RuntimeError):
        if store.connect():
            store.report(lost)
            time.sleep(READ_SECONDS)
