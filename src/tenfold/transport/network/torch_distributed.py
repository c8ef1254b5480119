"""torch.distributed: gloo between CPUs, NCCL between GPUs."""

import os
import socket
from contextlib import suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from tenfold.errors import MachineError, TrainingError
from tenfold.launch.detect import World
from tenfold.transport.memory.waiting import LOOK_AROUND_SECONDS
from tenfold.transport.network.courier import Courier
from tenfold.transport.network.network import LEAVE_SECONDS, PATIENCE, Network, Parcels, told
from tenfold.transport.network.watch import BEAT, SILENCE, Watch

START_SECONDS = 120.0
"""How long ranks wait for one another at the start."""
OUTSIDE = "192.0.2.1"
"""An address that no machine has (RFC 5737): the way to it is the way to other hosts."""


class TorchDistributed(Network):
    """A rank of torch's process group: the one there is, or one made here."""

    name = "torch"

    def __init__(self, store: Any, rank: int, size: int, timeout: float = PATIENCE) -> None:
        """Join as `rank` through a store that all ranks reach; `timeout` ends the waiting for another rank."""
        super().__init__(rank, size)
        self._timeout = timeout
        self._courier = Courier()
        self._own_group = not dist.is_initialized()
        if self._own_group:
            self._make_group(_part(store, "group"))
        backends = dist.get_backend_config()
        if "cpu:" not in backends:
            raise MachineError(
                f"torch.distributed was begun with {backends}, which carries nothing between CPUs; "
                'say init_process_group("cpu:gloo,cuda:nccl")'
            )
        self._has_nccl = "nccl" in backends
        self._closed = False
        self._watch: Watch | None = None
        here = (socket.gethostname(), os.getpid())
        places = self.all_gather(here)
        names = [f"worker {other} (process {pid} on {host})" for other, (host, pid) in enumerate(places)]
        # NCCL asks the store now and then, and holds it meanwhile; gloo does not.
        watch = Watch(_part(store.clone() if self._has_nccl else store, "watch"), rank, names)
        self.barrier(START_SECONDS)
        watch.start({other: pid for other, (host, pid) in enumerate(places) if host == here[0] and other != rank})
        self._watch = watch

    @classmethod
    def join(cls, world: World) -> "TorchDistributed":
        """Join the ranks that a launcher started."""
        if dist.is_initialized():
            store = dist.distributed_c10d._get_default_store()
            return cls(_part(store, f"tenfold/{world.restarts}"), world.rank, world.size)
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise MachineError(
                f'machine.transport = "torch" under {world.launcher} needs {" and ".join(missing)} in the environment, '
                "where rank 0 can be reached; torchrun sets them by itself"
            )
        if world.size > world.local_size:
            name_interface(os.environ["MASTER_ADDR"])
        limit = timedelta(seconds=START_SECONDS)
        try:
            store, _, _ = next(iter(rendezvous("env://", world.rank, world.size, timeout=limit)))
        except (RuntimeError, ValueError) as error:
            raise MachineError(
                f"rank {world.rank} cannot reach the others at {os.environ['MASTER_ADDR']}:"
                f"{os.environ['MASTER_PORT']}: {_first_line(error)}"
            ) from None
        return cls(_part(store, f"tenfold/{world.restarts}"), world.rank, world.size)

    def exchange(self, sends: Parcels, receives: Parcels, timeout: float | None = None) -> None:
        """Send and receive in one batch."""
        ends = ((dist.irecv, receives), (dist.isend, sends))
        batch = [dist.P2POp(end, tensor, rank) for end, parcels in ends for rank, tensor in parcels]
        if batch:
            self._finish(lambda: dist.batch_isend_irecv(batch), batch[0].tensor, timeout)

    def add_up(self, tensor: Tensor) -> None:
        """Add by gloo's or NCCL's own all-reduce."""
        self._finish(lambda: [dist.all_reduce(tensor, async_op=True)], tensor)

    def carries(self, device: torch.device) -> bool:
        """NCCL takes CUDA tensors where each rank has a GPU of its own; gloo takes those of the CPU."""
        if device.type != "cuda":
            return device.type == "cpu"
        return self._has_nccl and self._has_own_gpu(device)

    def fail(self, error: BaseException | None = None) -> None:
        """Announce it through the store."""
        if self._watch is not None:
            self._watch.announce(told(error, self.rank))

    def trouble(self, within: float = 0.0) -> BaseException | None:
        """Return what the watch knows."""
        return self._watch.trouble(within) if self._watch is not None else None

    @property
    def is_stuck(self) -> bool:
        """The courier waits in gloo, which knows no way back."""
        return not self._courier.is_idle

    def close(self) -> None:
        """Say goodbye, and leave the group if it was made here."""
        if self._closed:
            return
        self._closed = True
        self._courier.stop()
        if self._watch is not None:
            self._watch.stop(LEAVE_SECONDS)
        if self._own_group and (self.trouble() is None or not self._has_nccl):  # NCCL would wait for the dead
            with suppress(RuntimeError):
                dist.destroy_process_group()

    def _make_group(self, store: Any) -> None:
        has_gpus = torch.cuda.is_available() and dist.is_nccl_available()
        backends = "cpu:gloo,cuda:nccl" if has_gpus else "gloo"
        limit = timedelta(seconds=self._timeout)

        def make() -> None:
            dist.init_process_group(backends, store=store, rank=self.rank, world_size=self.size, timeout=limit)

        try:
            self._courier.wait(make, lambda _: None, START_SECONDS)
        except (RuntimeError, TimeoutError) as error:
            why = _first_line(error) or f"they did not come within {START_SECONDS:g} s"
            raise MachineError(f"rank {self.rank} of {self.size} cannot reach all others: {why}") from None

    def _finish(self, begin: Any, tensor: Tensor, timeout: float | None = None) -> None:
        patience = self._timeout if timeout is None else timeout
        try:
            works = begin()
            if tensor.is_cuda:
                _wait_for_device(works, self._look, patience)
            else:
                self._courier.wait(lambda: [work.wait() for work in works], self._look, patience)
        except TimeoutError:
            raise TrainingError(
                f"a worker did not come within {patience:g} s; it hangs, or needs a longer timeout"
            ) from None
        except RuntimeError as error:  # a connection broke; who is behind it is found out by the watch
            trouble = self.trouble(within=SILENCE + 4 * BEAT)
            if trouble is not None:
                raise trouble from None
            raise TrainingError(f"the network between the workers failed: {_first_line(error)}") from None

    def _look(self, seconds: float) -> None:
        if self._watch is not None:
            self._watch.look(seconds)

    def _has_own_gpu(self, device: torch.device) -> bool:
        """Ask all ranks, which must therefore ask together."""
        places = self.all_gather((socket.gethostname(), str(torch.cuda.get_device_properties(device).uuid)))
        return len(set(places)) == self.size


def name_interface(master: str) -> None:
    """Tell gloo which network to use: the one that leads to the first host; it would guess by the host's name."""
    with suppress(OSError):
        address = socket.gethostbyname(master)
        if address.startswith("127.") and master not in ("localhost", address):
            address = OUTSIDE  # a host may know its own name as 127.0.1.1, where no other reaches it
        interfaces = {known.address: name for name, all_known in psutil.net_if_addrs().items() for known in all_known}
        if address not in interfaces:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # sends nothing, but chooses the way
                address = probe.getsockname()[0]
        if address in interfaces:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interfaces[address])


def _wait_for_device(works: Any, look: Any, timeout: float) -> None:
    """Wait until the device has done the work: NCCL's own wait only puts it before what is asked for next."""
    for work in works:
        work.wait()
    done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    started = looked = monotonic()
    while not done.query():
        now = monotonic()
        if now - started > timeout:
            raise TimeoutError
        if now - looked > LOOK_AROUND_SECONDS:
            look(now - looked)
            looked = now
        sleep(0 if now - started < 0.01 else 0.001)


def _part(store: Any, name: str) -> Any:
    """Return a store within the store, so that names do not meet."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
