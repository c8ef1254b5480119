"""MPI by mpi4py; only buffers are sent, and nothing is pickled."""

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import MachineError
from tenfold.launchers import World
from tenfold.transport.base import LONGEST_NAP, SPINS
from tenfold.transport.codec import decode_error, encode_error
from tenfold.transport.meeting import StartupWatch, open_store
from tenfold.transport.network import LEAVE_SECONDS, START_SECONDS, WAIT_SECONDS, Network, Transfers
from tenfold.transport.rank_failures import HEARTBEAT_SECONDS, start_detector


class MPI(Network):
    """A rank of MPI's world.

    Failures are detected through a store that rank 0 hosts. If its host cannot be reached by TCP, a rank that fails
    tells the others by MPI messages, and only mpirun notices a rank that dies.
    """

    name = "mpi"

    def __init__(
        self, communicator: Any, timeout: float = WAIT_SECONDS, starting: Callable[[], None] | None = None
    ) -> None:
        """Join all ranks of a communicator; `timeout` is the maximum wait for another rank.

        `starting` is called repeatedly until the ranks have met, and raises an error if one of them will not arrive.
        """
        super().__init__(communicator.Get_rank(), communicator.Get_size())
        self.waiting = starting
        self._comm = communicator.Dup()
        self._reports = communicator.Dup()
        self._timeout = min(timeout, START_SECONDS)
        self._reported: BaseException | None = None
        self._pending: list[Any] = []
        self._closed = False
        self._detector = start_detector(self, open_store(self))
        self.waiting, self._timeout = None, timeout

    @classmethod
    def join(cls, world: World, start_seconds: float = START_SECONDS) -> "MPI":
        """Join the ranks that mpirun, mpiexec or srun started; MPI itself has no timeout for this."""
        with StartupWatch(world, start_seconds=start_seconds) as watch:
            with watch.in_another_process():
                communicator = _world_communicator(world)
            return cls(communicator, starting=watch.check)

    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None = None) -> None:
        requests = [self._comm.Irecv(tensor.numpy(), source=rank) for rank, tensor in receives]
        requests += [self._comm.Isend(tensor.numpy(), dest=rank) for rank, tensor in sends]
        self._wait(requests, timeout)

    def all_reduce(self, tensor: Tensor) -> None:
        from mpi4py import MPI as library  # noqa: N811

        self._wait([self._comm.Iallreduce(library.IN_PLACE, tensor.numpy())])

    def gather_tensor(self, tensor: Tensor, rows: Tensor | None) -> None:
        self._wait([self._comm.Igather(tensor.numpy(), None if rows is None else rows.numpy(), root=0)])

    def broadcast_tensor(self, tensor: Tensor) -> None:
        self._wait([self._comm.Ibcast(tensor.numpy(), root=0)])

    def supports(self, device: torch.device) -> bool:
        return device.type == "cpu"

    def report_failure(self, error: BaseException | None = None) -> None:
        super().report_failure(error)
        if self._detector is None and self.failure() is None:
            content = bytearray(encode_error(error, self.rank))
            self._reported = decode_error(content)
            others = (rank for rank in range(self.size) if rank != self.rank)
            self._pending = [self._reports.Isend(content, dest=rank) for rank in others]

    def failure(self, within: float = 0.0) -> BaseException | None:
        if self._detector is not None:
            return super().failure(within)
        from mpi4py import MPI as library  # noqa: N811

        until = perf_counter() + within
        while self._reported is None:
            status = library.Status()
            if self._reports.Iprobe(status=status):
                content = bytearray(status.Get_count(library.BYTE))
                self._reports.Recv(content, source=status.Get_source())
                self._reported = decode_error(content)
            elif perf_counter() >= until:
                break
            else:
                sleep(LONGEST_NAP)
        return self._reported

    def check(self, seconds: float) -> None:
        super().check(seconds)
        if self._detector is None and (failure := self.failure()) is not None:
            raise failure

    def close(self) -> None:
        """Leave; after a failure, end all ranks once all others are leaving or `LEAVE_SECONDS` have passed."""
        if self._closed:
            return
        self._closed = True
        failed = self.failure() is not None
        if self._detector is not None and failed:
            self._detector.stop(LEAVE_SECONDS)
        if not failed:
            self._comm.Free()  # waits for all ranks, which are watched until then
            self._reports.Free()
            if self._detector is not None:
                self._detector.stop(LEAVE_SECONDS)
            return
        arrived, until = (
            self._reports.Ibarrier(),
            perf_counter() + (2 * HEARTBEAT_SECONDS if self._detector else LEAVE_SECONDS),
        )
        while not arrived.Test():
            if perf_counter() > until:
                self._reports.Abort(2)
            sleep(0.01)

    def _wait(self, requests: list[Any], timeout: float | None = None) -> None:
        from mpi4py import MPI as library  # noqa: N811

        for _ in range(SPINS):
            if library.Request.Testall(requests):
                return
        self.poll(lambda: bool(library.Request.Testall(requests)), self._timeout if timeout is None else timeout)


def _world_communicator(world: World) -> Any:
    """Return MPI's communicator of all ranks; importing mpi4py starts MPI, which waits for them."""
    try:
        from mpi4py import MPI as library  # noqa: N811
    except (ImportError, RuntimeError) as error:
        raise MachineError(
            f"{world.launcher} started this program, but mpi4py cannot be loaded: {error}; "
            "install it with `pip install mpi4py`, built for the MPI of your mpirun"
        ) from None
    if library.COMM_WORLD.Get_size() != world.size:
        raise MachineError(
            f"{world.launcher} started {world.size} ranks, but mpi4py sees {library.COMM_WORLD.Get_size()}, because it "
            f"uses another MPI ({library.Get_library_version().split(',')[0].strip()}); use the mpirun of that MPI"
        )
    return library.COMM_WORLD
