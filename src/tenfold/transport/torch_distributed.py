"""torch.distributed: gloo between CPUs, NCCL between GPUs."""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from tenfold.errors import MachineError, TrainingError
from tenfold.launchers import World
from tenfold.transport.meeting import StartupWatch, open_store
from tenfold.transport.network import LEAVE_SECONDS, START_SECONDS, WAIT_SECONDS, Network, Transfers
from tenfold.transport.rank_failures import (
    HEARTBEAT_SECONDS,
    HEARTBEAT_TIMEOUT_SECONDS,
    WaitingThread,
    start_detector,
)

MARGIN = 10.0
"""Seconds beyond what ranks may wait for one another at the start, in which a missing one is named."""
OUTSIDE = "192.0.2.1"
"""An address that no machine has (RFC 5737): the route to it is the route to other hosts."""


class TorchDistributed(Network):
    """A rank of torch's process group: the existing one, or one created here."""

    name = "torch"

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: float = WAIT_SECONDS,
        starting: Callable[[], None] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Join as `rank`; `timeout` is the maximum wait for another rank.

        `store` is a store that all ranks reach; None, in a process group of the user's: rank 0 hosts one. `starting` is
        called repeatedly until the ranks are connected, and raises an error if one of them will not arrive, at the
        latest `start_seconds` after this rank has arrived.
        """
        super().__init__(rank, size)
        self.waiting = starting
        self._start_seconds = start_seconds + MARGIN
        self._timeout = min(timeout, self._start_seconds)
        self._waiter = WaitingThread()
        self._own_group = not dist.is_initialized()
        if self._own_group:
            self._make_group(_part(store, "group"), timeout)
        backends = dist.get_backend_config()
        if "cpu:" not in backends:
            raise MachineError(
                f"the process group uses {backends}, which cannot send CPU tensors; "
                'call init_process_group("cpu:gloo,cuda:nccl")'
            )
        self._has_nccl = "nccl" in backends
        self._closed = False
        self._hosts_store = store is None and rank == 0
        if store is None:
            store = open_store(self)
        elif self._has_nccl:  # NCCL polls the store, and blocks it in the meantime; gloo does not.
            store = store.clone()
        self._detector = start_detector(self, store)
        self.waiting, self._timeout = None, timeout

    @classmethod
    def join(cls, world: World, start_seconds: float = START_SECONDS) -> "TorchDistributed":
        """Join the ranks that a launcher started; each waits `start_seconds` for the others."""
        with StartupWatch(world, start_seconds=start_seconds) as watch:
            store = None if dist.is_initialized() else _meet(world, watch)
            return cls(store, world.rank, world.size, starting=watch.check, start_seconds=start_seconds)

    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None = None) -> None:
        ends = ((dist.irecv, receives), (dist.isend, sends))
        batch = [dist.P2POp(end, tensor, rank) for end, parcels in ends for rank, tensor in parcels]
        if batch:
            self._finish(lambda: dist.batch_isend_irecv(batch), batch[0].tensor, timeout)

    def all_reduce(self, tensor: Tensor) -> None:
        self._finish(lambda: [dist.all_reduce(tensor, async_op=True)], tensor)

    def supports(self, device: torch.device) -> bool:
        """Return whether this is the CPU, or (with NCCL) a GPU that no other rank uses."""
        if device.type != "cuda":
            return device.type == "cpu"
        return self._has_nccl and self._has_own_gpu(device)

    def close(self) -> None:
        """Leave, and destroy the process group if it was created here."""
        if self._closed:
            return
        self._closed = True
        self._waiter.stop()
        if self._detector is not None:
            self._detector.stop(LEAVE_SECONDS, hosts_store=self._hosts_store)
        if self._own_group and (self.failure() is None or not self._has_nccl):  # NCCL would wait for dead ranks
            with suppress(RuntimeError):
                dist.destroy_process_group()

    def _make_group(self, store: Any, timeout: float) -> None:
        has_gpus = torch.cuda.is_available() and dist.is_nccl_available()
        backends = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
        limit = timedelta(seconds=timeout)

        def make() -> None:
            dist.init_process_group(backends, store=store, rank=self.rank, world_size=self.size, timeout=limit)

        try:
            self._waiter.wait(make, self.check, self._start_seconds)
        except (RuntimeError, TimeoutError) as error:
            why = _first_line(error) or f"they did not come within {self._start_seconds:g} s"
            raise MachineError(f"rank {self.rank} of {self.size} cannot reach all other ranks: {why}") from None

    def _finish(self, begin: Any, tensor: Tensor, timeout: float | None = None) -> None:
        patience = self._timeout if timeout is None else timeout
        try:
            works = begin()
            if tensor.is_cuda:
                for work in works:
                    work.wait()  # with NCCL this only orders it before later work of the device
                done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                done.record()
                self.poll(done.query, patience)
            else:
                self._waiter.wait(lambda: [work.wait() for work in works], self.check, patience)
        except TimeoutError:
            raise TrainingError(f"another rank did not respond within {patience:g} s") from None
        except RuntimeError as error:  # a connection broke; the failure detector finds out which
            failure = self.failure(within=HEARTBEAT_TIMEOUT_SECONDS + 4 * HEARTBEAT_SECONDS)
            if failure is not None:
                raise failure from None
            raise TrainingError(f"the network between the workers failed: {_first_line(error)}") from None

    def _has_own_gpu(self, device: torch.device) -> bool:
        """Return whether no other rank uses this GPU; all ranks must call this together."""
        places = self.all_gather(f"{socket.gethostname()} {torch.cuda.get_device_properties(device).uuid}")
        return len(set(places)) == self.size


def _meet(world: World, watch: StartupWatch) -> Any:
    """Return the store at the launcher's address, once it answers."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise MachineError(
            f'machine.transport = "torch" under {world.launcher} needs {" and ".join(missing)} in the environment, '
            "for the address of rank 0; torchrun sets them"
        )
    if world.size > world.local_size:
        choose_interface(os.environ["MASTER_ADDR"])
    seconds, waiter = watch.start_seconds + MARGIN, WaitingThread()
    connected: list[Any] = []

    def meet() -> None:
        limit = timedelta(seconds=seconds)
        connected.append(next(iter(rendezvous("env://", world.rank, world.size, timeout=limit)))[0])

    try:
        waiter.wait(meet, lambda _: watch.check(), 2 * seconds)
    except (RuntimeError, ValueError, TimeoutError) as error:
        raise MachineError(
            f"rank {world.rank} cannot reach rank 0 at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']}: {_first_line(error)}"
        ) from None
    finally:
        waiter.stop()
    return _part(connected[0], f"tenfold/{world.restarts}")


def choose_interface(master: str) -> None:
    """Make gloo use the network interface that leads to the first host; its default is guessed from the host's name."""
    with suppress(OSError):
        address = socket.gethostbyname(master)
        if address.startswith("127.") and master not in ("localhost", address):
            address = OUTSIDE  # a host may resolve its own name to 127.0.1.1, which other hosts cannot reach
        interfaces = {entry.address: name for name, all_known in psutil.net_if_addrs().items() for entry in all_known}
        if address not in interfaces:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # sends nothing, but selects the route
                address = probe.getsockname()[0]
        if address in interfaces:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interfaces[address])


def _part(store: Any, name: str) -> Any:
    """Return a store with a prefix, so that names do not collide."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
