"""A key-value store that rank 0 hosts for the others, where the launcher has not provided one."""

import secrets
import socket
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist

from tenfold.machine.rank_guard import addresses_of_host

CONNECT_SECONDS = 3.0
STORE_SECONDS = 30.0
LOOPBACK = "127.0.0.1"


class Collectives(Protocol):
    """The parts of a `Network` that are needed to agree on a store."""

    rank: int
    size: int

    def broadcast(self, value: Any = None) -> Any: ...  # noqa: D102
    def all_gather(self, value: Any) -> list[Any]: ...  # noqa: D102


def open_store(network: Collectives) -> Any:
    """Return a store that rank 0 hosts and all ranks reach; None where some rank cannot reach rank 0's host by TCP.

    All ranks call this together. Ranks of one host use the loopback interface, which no other host reaches. The keys
    have a random prefix, so that a program that only finds the port does not know them.
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
            found = server or _connect(LOOPBACK if network.rank == 0 else _reachable(addresses, port), port)
            store = dist.PrefixStore(prefix, found)  # type: ignore[attr-defined]
    return store if all(network.all_gather(store is not None)) else None


def _serve(address: str) -> tuple[Any, int]:
    """Host a store on a free port of an address; "" means all interfaces."""
    listener = socket.create_server((address, 0))
    port = listener.getsockname()[1]
    limit = timedelta(seconds=STORE_SECONDS)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        LOOPBACK, port, is_master=True, wait_for_workers=False, timeout=limit, master_listen_fd=listener.detach()
    )
    return store, port


def _connect(address: str, port: int) -> Any:
    return dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=STORE_SECONDS)
    )


def _reachable(addresses: list[str], port: int) -> str:
    """Return the first address that answers."""
    for address in addresses:
        with suppress(OSError), socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return str(address)
    raise OSError("no address of rank 0 answers")
