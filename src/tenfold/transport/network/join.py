"""Connecting the ranks that a launcher started."""

import atexit
import os
import socket
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tenfold.common.catalog import NETWORK_TRANSPORTS
from tenfold.errors import MachineError
from tenfold.launch.detect import World
from tenfold.machine.rank_guard import start_guard
from tenfold.transport.base import Transport
from tenfold.transport.network.abstract_network import START_SECONDS, Network
from tenfold.transport.network.multi_host_transport import Hosts, connect, hosts_of
from tenfold.transport.network.network_transport import NetworkTransport
from tenfold.transport.network.startup_store import REPORT_STOP

SHORTEST_START_SECONDS = 30.0


@dataclass
class JoinedRank:
    """This process as one of the ranks, connected to the others."""

    world: World
    network: Network
    names: list[str]
    """Each rank's host."""

    @cached_property
    def hosts(self) -> Hosts:
        """The ranks of each host."""
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
        return NetworkTransport(self.network, numel, dtype, device)


_joined: dict[str, JoinedRank] = {}


def join(world: World, transport: str = "auto", stall_after: float | None = None) -> JoinedRank:
    """Join the ranks that a launcher started, by this transport or the one that fits the launcher; once per process.

    Each rank waits 120 s for the others, with several hosts `stall_after` if it is set, at least 30 s: importing torch
    may take 20 s. The network stays until the process ends: a launcher's ranks can meet only once.
    """
    name = network_of(world, os.environ) if transport in ("auto", "shared-memory") else transport
    if name not in _joined:
        several_hosts = world.local_size < world.size
        shorter = stall_after is not None and several_hosts
        seconds = max(stall_after or 0.0, SHORTEST_START_SECONDS) if shorter else START_SECONDS
        guard = start_guard(world, REPORT_STOP) if several_hosts else None
        try:
            network: Network = NETWORK_TRANSPORTS[name].join(world, seconds)
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
    """Return the network for a launcher: torch where the address of rank 0 is given, else mpi."""
    if world.launcher == "torchrun" or (world.launcher == "slurm" and variables.get("MASTER_ADDR")):
        return "torch"
    return "mpi"


def _leave(network: Network) -> None:
    """Leave at the end of the process, and report the error that ends it, if any: other ranks may be waiting."""
    error = getattr(sys, "last_value", None)  # of an exception that was not caught
    if error is not None:
        network.report_failure(error)
    network.close()
