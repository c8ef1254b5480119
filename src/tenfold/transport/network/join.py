"""Joining the world that a launcher made."""

import atexit
import os
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from tenfold.errors import MachineError
from tenfold.launch.detect import World
from tenfold.transport.base import Transport
from tenfold.transport.network.hosts_transport import Hosts, connect, hosts_of
from tenfold.transport.network.network import Network
from tenfold.transport.network.network_transport import Networked


@dataclass
class Joined:
    """A rank that has joined the others, and knows who shares its host."""

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
        """Return a transport for so many weights; all ranks ask together. Not sharing memory, all use the network."""
        if share_memory:
            return connect(self.network, self.hosts, numel, dtype, device)
        return Networked(self.network, numel, dtype, device)


_joined: dict[str, Joined] = {}


def join(world: World, transport: str = "auto") -> Joined:
    """Join the ranks that a launcher started, by "torch", "mpi" or what fits the launcher; once a process.

    The network stays until the process ends: launchers give one meeting place a launch.
    """
    name = network_of(world, os.environ) if transport in ("auto", "shared-memory") else transport
    if name not in _joined:
        network = _network(world, name)
        atexit.register(_leave, network)
        sys.excepthook = partial(_tell_first, network, sys.excepthook)
        _joined[name] = Joined(world, network, network.all_gather(socket.gethostname()))
    elif (before := _joined[name].network.trouble()) is not None:
        why = str(before).strip().splitlines()[-1]
        raise MachineError(f"these ranks cannot go on together since one of them failed ({why}); start them anew")
    return _joined[name]


def network_of(world: World, variables: Any) -> str:
    """Return the network that fits a launcher: torch where a meeting place is given, else mpi."""
    if world.launcher == "torchrun" or (world.launcher == "slurm" and variables.get("MASTER_ADDR")):
        return "torch"
    return "mpi"


def _leave(network: Network) -> None:
    """Leave at the end of the process; at once where it could only crash."""
    network.close()
    if network.is_stuck:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(2)


def _tell_first(network: Network, hook: Any, kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Let the others know of an error that ends this process, for they may be waiting for it."""
    network.fail(error)
    hook(kind, error, trace)


def _network(world: World, name: str) -> Network:
    if name == "torch":
        from tenfold.transport.network.torch_distributed import TorchDistributed

        return TorchDistributed.join(world)
    if name == "mpi":
        from tenfold.transport.network.mpi import MPI

        return MPI.join(world)
    raise MachineError(f"unknown transport '{name}'; known: auto, shared-memory, torch, mpi")
