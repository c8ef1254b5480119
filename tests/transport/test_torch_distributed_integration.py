"""gloo carries rounds between processes, and nobody waits for the dead."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transport_contract import Join, TransportContract, WorkerPool, everybody, receive, ring

from tenfold.errors import TenfoldError, TrainingError, WorkerLost
from tenfold.mixing import Round
from tenfold.transport.network import NetworkTransport
from tenfold.transport.torch_distributed import TorchDistributed

pytestmark = pytest.mark.timeout(60)
WORLDS = count()


class OwnNetwork(NetworkTransport):
    """Closes its network with itself."""

    def close(self) -> None:
        self._network.close()


@cache
def store_at(port: int) -> Any:
    return dist.TCPStore("127.0.0.1", port, is_master=False)


@cache
def own_store() -> Any:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def join(port: int, number: int, size: int, numel: int, dtype: torch.dtype, timeout: float, rank: int) -> OwnNetwork:
    store = dist.PrefixStore(str(number), store_at(port))
    return OwnNetwork(TorchDistributed(store, rank, size, timeout), torch.zeros(numel, dtype=dtype))


@contextmanager
def made_world(size: int, numel: int, dtype: torch.dtype = torch.float32, timeout: float = 30.0) -> Iterator[Join]:
    yield partial(join, own_store().port, next(WORLDS), size, numel, dtype, timeout)


@pytest.fixture(scope="module")
def crew() -> Iterator[WorkerPool]:
    crew = WorkerPool()
    yield crew
    crew.close()


class TestTorchDistributed(TransportContract):
    sizes = (1, 2, 4)
    in_rank_order = False

    @pytest.fixture(autouse=True)
    def _crew(self, crew: WorkerPool) -> None:
        self.crew = crew

    world = staticmethod(made_world)

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self.crew.run(size, scenario, *arguments)


def mix_until_told(join: Join, rank: int, round_: Round, silent: int, ready: Path) -> tuple[str, str]:
    """Mix for ever, except for one rank which keeps silent; return the error that ends it."""
    with join(rank) as transport:
        try:
            transport.barrier(timeout=30)
            if rank == silent:
                ready.touch()
                time.sleep(60)
            while True:
                transport.mix(round_)
        except TenfoldError as error:
            return type(error).__name__, str(error)


@pytest.mark.parametrize(
    ("round_", "number"),
    [(everybody(3), signal.SIGKILL), (ring(3, 1), signal.SIGKILL), (ring(3, 1), signal.SIGSTOP)],
    ids=["group-killed", "ring-killed", "ring-stopped"],
)
def test_the_lost_are_named_by_everybody(crew: WorkerPool, round_: Round, number: int, tmp_path: Path) -> None:
    with made_world(3, 100) as join:
        members = crew.start(3, mix_until_told, join, round_, 2, tmp_path / "ready")
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        victim = members[2][0]
        os.kill(victim.pid, number)
        told = [receive(connection, within=10) for _, connection in members[:2]]
        victim.kill()
        victim.join()
    assert all(kind == "WorkerLost" for kind, _ in told)
    assert all(message.startswith(f"worker 2 (process {victim.pid} on ") for _, message in told)


def fail_on(join: Join, rank: int, failing: int) -> str:
    with join(rank) as transport:
        try:
            if rank == failing:
                transport._network.report_failure(TrainingError("the loss became nan"))
                return "failed"
            transport.barrier()
        except (TrainingError, WorkerLost) as error:
            return f"{type(error).__name__}: {error}"
    return "passed"


def test_who_gives_up_says_why(crew: WorkerPool) -> None:
    with made_world(3, 1) as join:
        told = crew.run(3, fail_on, join, 1)
    assert told == ["TrainingError: worker 1: the loss became nan", "failed", told[0]]


def wait_for_nobody(join: Join, rank: int, given_up: Path) -> str:
    with join(rank) as transport:
        if rank == 1:
            while not given_up.exists():
                time.sleep(0.05)
            return "left"
        try:
            transport.barrier(timeout=0.5)
        except TrainingError as error:
            return str(error)
        finally:
            given_up.touch()
    return "somebody came"


def test_waiting_ends(crew: WorkerPool, tmp_path: Path) -> None:
    with made_world(2, 1) as join:
        told = crew.run(2, wait_for_nobody, join, tmp_path / "given up")
    assert told[0].startswith("another rank did not respond within 0.5 s")
