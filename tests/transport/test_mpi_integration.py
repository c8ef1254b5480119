"""MPI carries rounds between ranks; skipped with a reason where there is no mpi4py or no mpirun that fits it."""

import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import forked_python
from launchers import mpirun
from transport_contract import Join, TransportContract, receive

from tenfold.errors import TrainingError
from tenfold.launchers import detect_world
from tenfold.transport.network import NetworkTransport

pytestmark = pytest.mark.timeout(60)
HERE = Path(__file__).parents[1] / "support"
SIZE = 4


class Ranks:
    """Ranks under one mpirun that play scenarios; a world of fewer is a communicator of the first ones."""

    def __init__(self, folder: Path) -> None:
        address = str(folder / "socket")
        places = [str(HERE.parents[1] / "src"), str(HERE), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        key = multiprocessing.current_process().authkey  # tensors travel by it, too
        extra = {"PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1", "TENFOLD_TEST_KEY": key.hex()}
        with Listener(address, "AF_UNIX", backlog=SIZE, authkey=key) as listener:
            self.process = subprocess.Popen(
                [*mpirun(), "-n", str(SIZE), *forked_python(), str(HERE / "mpi_member.py"), address],
                env=os.environ | extra,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            joined: dict[int, Connection] = {}
            for _ in range(SIZE):
                connection = listener.accept()
                joined[connection.recv()[0]] = connection
        self.connections = [joined[rank] for rank in range(SIZE)]

    def run(self, size: int, scenario: Callable[..., Any], join: Join, *rest: Any) -> list[Any]:
        for rank, connection in enumerate(self.connections[:size]):
            connection.send((scenario, (join, rank, *rest)))
        return [receive(connection) for connection in self.connections[:size]]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path_factory.mktemp("mpi"))
    yield ranks
    ranks.close()


class OwnNetwork(NetworkTransport):
    """Closes its network with itself."""

    def close(self) -> None:
        self._network.close()


def join(size: int, numel: int, dtype: torch.dtype, timeout: float, rank: int) -> OwnNetwork:
    from mpi4py import MPI as library  # noqa: N811

    from tenfold.transport.mpi import MPI

    world = library.COMM_WORLD
    first = world.Create_group(world.Get_group().Incl(list(range(size))))
    assert first.Get_rank() == rank
    return OwnNetwork(MPI(first, timeout), torch.zeros(numel, dtype=dtype))


class TestMPI(TransportContract):
    sizes = (1, 2, 4)
    in_rank_order = False

    @pytest.fixture(autouse=True)
    def _ranks(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @contextmanager
    def world(self, size: int, numel: int, dtype: torch.dtype = torch.float32) -> Iterator[Join]:
        yield partial(join, size, numel, dtype, 30.0)

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self.ranks.run(size, scenario, *arguments)


def fail_on(join: Join, rank: int, failing: int) -> str:
    with join(rank) as transport:
        try:
            if rank == failing:
                transport._network.report_failure(TrainingError("the loss became nan"))
                return "failed"
            transport.barrier()
        except TrainingError as error:
            return str(error)
    return "passed"


def test_who_gives_up_says_why(ranks: Ranks) -> None:
    told = ranks.run(3, fail_on, partial(join, 3, 1, torch.float32, 30.0), 1)
    assert told == ["worker 1: the loss became nan", "failed", "worker 1: the loss became nan"]


def wait_for_nobody(join: Join, rank: int) -> str:
    from mpi4py import MPI as library  # noqa: N811

    transport = join(rank)
    if rank == 1:
        library.COMM_WORLD.recv(source=0)
        transport._network.exchange([(0, torch.zeros(1))], [])
        return "came when nobody waited any more"
    try:
        transport.barrier(timeout=0.5)
    except TrainingError as error:
        return str(error)
    finally:
        library.COMM_WORLD.send("gave up", dest=1)
    return "somebody came"


def test_waiting_ends(ranks: Ranks) -> None:
    told = ranks.run(2, wait_for_nobody, partial(join, 2, 1, torch.float32, 30.0))
    assert told[0].startswith("another rank did not respond within 0.5 s")


def recognised(_: Join, rank: int) -> tuple[int, int, int, int]:
    world = detect_world()
    assert world is not None
    return world.rank, world.size, world.local_rank, world.local_size


def test_the_launcher_is_recognised(ranks: Ranks) -> None:
    told = ranks.run(SIZE, recognised, partial(join, SIZE))
    assert [(rank, size, here) for rank, size, _, here in told] == [(rank, SIZE, SIZE) for rank in range(SIZE)]
    assert sorted(local for _, _, local, _ in told) == list(range(SIZE))
