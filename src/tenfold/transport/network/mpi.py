"""MPI, through mpi4py: tensors go as buffers, nothing is pickled but small talk."""

import pickle
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import MachineError, TrainingError
from tenfold.launch.detect import World
from tenfold.transport.memory.waiting import LONGEST_NAP, SPINS, wait
from tenfold.transport.network.network import LEAVE_SECONDS, PATIENCE, Network, Parcels, told


class MPI(Network):
    """A rank of MPI's world.

    A rank that gives up says so on a line of its own, at which those who wait look now and then. Who dies without a
    word takes all with it: mpirun ends the others.
    """

    name = "mpi"
    watches = False

    def __init__(self, communicator: Any, timeout: float = PATIENCE) -> None:
        """Join all ranks of a communicator; `timeout` ends the waiting for another rank."""
        super().__init__(communicator.Get_rank(), communicator.Get_size())
        self._comm = communicator.Dup()
        self._line = communicator.Dup()
        self._timeout = timeout
        self._known: BaseException | None = None
        self._farewells: list[Any] = []
        self._closed = False

    @classmethod
    def join(cls, world: World) -> "MPI":
        """Join the ranks that mpirun, mpiexec or srun started."""
        try:
            from mpi4py import MPI as library  # noqa: N811
        except (ImportError, RuntimeError) as error:
            raise MachineError(
                f"{world.launcher} started this program, but mpi4py cannot be used: {error}; "
                "`pip install mpi4py` beside the MPI whose mpirun you use"
            ) from None
        if library.COMM_WORLD.Get_size() != world.size:
            raise MachineError(
                f"{world.launcher} started {world.size} ranks, but mpi4py sees {library.COMM_WORLD.Get_size()}: it "
                f"uses another MPI ({library.Get_library_version().split(',')[0].strip()}); take that one's mpirun"
            )
        return cls(library.COMM_WORLD)

    def exchange(self, sends: Parcels, receives: Parcels, timeout: float | None = None) -> None:
        """Send and receive without waiting in between."""
        requests = [self._comm.Irecv(tensor.numpy(), source=rank) for rank, tensor in receives]
        requests += [self._comm.Isend(tensor.numpy(), dest=rank) for rank, tensor in sends]
        self._wait(requests, timeout)

    def add_up(self, tensor: Tensor) -> None:
        """Add by MPI's own all-reduce."""
        from mpi4py import MPI as library  # noqa: N811

        self._wait([self._comm.Iallreduce(library.IN_PLACE, tensor.numpy())])

    def carries(self, device: torch.device) -> bool:
        """Take what numpy can show: tensors of the CPU."""
        return device.type == "cpu"

    def fail(self, error: BaseException | None = None) -> None:
        """Tell every rank, unless another has been first."""
        if self.trouble() is not None:
            return
        self._known = told(error, self.rank)
        content = bytearray(pickle.dumps(self._known))
        others = (rank for rank in range(self.size) if rank != self.rank)
        self._farewells = [self._line.Isend(content, dest=rank) for rank in others]

    def trouble(self, within: float = 0.0) -> BaseException | None:
        """Return what another rank has told."""
        from mpi4py import MPI as library  # noqa: N811

        until = perf_counter() + within
        while self._known is None:
            status = library.Status()
            if self._line.Iprobe(status=status):
                content = bytearray(status.Get_count(library.BYTE))
                self._line.Recv(content, source=status.Get_source())
                self._known = pickle.loads(content)
            elif perf_counter() >= until:
                break
            else:
                sleep(LONGEST_NAP)
        return self._known

    def close(self) -> None:
        """Leave; after a failure, when all others have come here or are not coming at all."""
        if self._closed:
            return
        self._closed = True
        if self.trouble() is None:
            self._comm.Free()
            self._line.Free()
            return
        farewell, until = self._line.Ibarrier(), perf_counter() + LEAVE_SECONDS
        while not farewell.Test():
            if perf_counter() > until:
                self._line.Abort(2)
            sleep(0.01)

    def _wait(self, requests: list[Any], timeout: float | None = None) -> None:
        """Poll, then wait with patience."""
        from mpi4py import MPI as library  # noqa: N811

        patience = self._timeout if timeout is None else timeout
        for _ in range(SPINS):
            if library.Request.Testall(requests):
                return

        def look_around(waited: float) -> None:
            trouble = self.trouble()
            if trouble is not None:
                raise trouble
            if waited > patience:
                raise TrainingError(f"a worker did not come within {patience:g} s; it hangs, or needs a longer timeout")

        wait(lambda: bool(library.Request.Testall(requests)), look_around)
