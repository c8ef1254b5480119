import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import start_program
from transport_contract import (
    Join,
    TransportContract,
    WorkerPool,
    everybody,
    mix_all,
    receive,
    ring,
    starting_weights,
)

from tenfold.errors import TrainingError
from tenfold.mixing import Round
from tenfold.transport import Segment, SharedMemoryTransport, clean_up_orphans
from tenfold.transport.segment import LockedIntegers


def join(name: str, timeout: float, rank: int) -> SharedMemoryTransport:
    return SharedMemoryTransport(Segment.attach(name), rank, timeout)


def join_fenced(name: str, rank: int) -> SharedMemoryTransport:
    segment = Segment.attach(name)
    segment.words = LockedIntegers(segment.words, segment._fd)
    return SharedMemoryTransport(segment, rank, timeout=30)


@pytest.fixture(scope="module")
def crew() -> Iterator[WorkerPool]:
    crew = WorkerPool()
    yield crew
    crew.close()


class TestSharedMemory(TransportContract):
    sizes = (1, 2, 3, 4, 5)

    @pytest.fixture(autouse=True)
    def _crew(self, crew: WorkerPool) -> None:
        self.crew = crew

    @contextmanager
    def world(self, size: int, numel: int, dtype: torch.dtype = torch.float32) -> Iterator[Join]:
        with closing(Segment.create(size, numel, dtype)) as segment:
            yield partial(join, segment.name, 30.0)
        assert not Path(segment.name).exists()

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self.crew.run(size, scenario, *arguments)


@pytest.mark.timeout(60)
def test_fenced_words_carry_rounds(crew: WorkerPool) -> None:
    start, rounds = starting_weights(3, 50), [everybody(3), ring(3, 1)] * 20
    with closing(Segment.create(3, 50)) as segment:
        results = crew.run(3, mix_all, partial(join_fenced, segment.name), start, rounds, None)
    torch.testing.assert_close(torch.from_numpy(results[0][0]), start.mean(0))


@pytest.mark.timeout(60)
def test_the_same_workers_may_come_again(crew: WorkerPool) -> None:
    start = starting_weights(2, 50)
    with closing(Segment.create(2, 50)) as segment:
        for _ in range(2):
            results = crew.run(2, mix_all, partial(join, segment.name, 30.0), start, [everybody(2)] * 3, None)
            torch.testing.assert_close(torch.from_numpy(results[0][0]), start.mean(0))


def mix_strictly(join: Join, rank: int, round_: Round) -> float:
    with warnings.catch_warnings(), join(rank) as transport:
        warnings.simplefilter("error")
        transport.buffer.fill_(3e38)
        transport.mix(round_)
        return float(transport.buffer.max())


@pytest.mark.timeout(60)
def test_overflow_is_infinite_and_silent(crew: WorkerPool) -> None:
    with closing(Segment.create(2, 5)) as segment:
        assert crew.run(2, mix_strictly, partial(join, segment.name, 30.0), everybody(2)) == [float("inf")] * 2


def mix_until_told(join: Join, rank: int, round_: Round, silent: int, silence: float) -> str:
    """Mix for ever, except for one rank which keeps silent; return the error that ends it."""
    try:
        with join(rank) as transport:
            transport.barrier(timeout=30)
            if rank == silent:
                time.sleep(silence)
                return "silent"
            while True:
                transport.mix(round_)
    except TrainingError as error:
        return str(error)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("round_", [everybody(4), ring(4, 1)], ids=["group", "ring"])
def test_the_dead_are_named_by_everybody(crew: WorkerPool, round_: Round) -> None:
    with closing(Segment.create(4, 100)) as segment:
        members = crew.start(4, mix_until_told, partial(join, segment.name, 60.0), round_, 2, 60.0)
        victim = members[2][0]
        while segment.words[segment.pid_at(2)] != victim.pid:
            time.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)
        told = [receive(connection, within=5) for rank, (_, connection) in enumerate(members) if rank != 2]
    assert all(message.startswith(f"worker 2 (pid {victim.pid}) died; ") for message in told)


@pytest.mark.timeout(60)
def test_who_hangs_is_named(crew: WorkerPool) -> None:
    with closing(Segment.create(3, 100)) as segment:
        told = crew.run(3, mix_until_told, partial(join, segment.name, 1.0), everybody(3), 1, 3.0)
    assert told[1] == "silent"
    assert all(told[rank].startswith("worker 1 (pid ") and "did not respond within" in told[rank] for rank in (0, 2))


@pytest.mark.timeout(60)
def test_abort_ends_all_waiting(crew: WorkerPool) -> None:
    with closing(Segment.create(3, 100)) as segment:
        members = crew.start(3, mix_until_told, partial(join, segment.name, 60.0), everybody(3), 1, 0.0)
        segment.abort()
        told = [receive(connection, within=5) for _, connection in members]
    assert told[0] == told[2] != "silent"
    assert told[0].startswith("training was stopped by another worker or by the main process")


def fail_on(join: Join, rank: int, failing: int) -> str:
    try:
        with join(rank) as transport:
            if rank == failing:
                raise ZeroDivisionError
            transport.barrier()
    except (TrainingError, ZeroDivisionError) as error:
        return type(error).__name__
    return "passed"


@pytest.mark.timeout(60)
def test_an_exception_in_one_stops_the_others(crew: WorkerPool) -> None:
    with closing(Segment.create(3, 1)) as segment:
        told = crew.run(3, fail_on, partial(join, segment.name, 60.0), 0)
    assert told == ["ZeroDivisionError", "TrainingError", "TrainingError"]


def create_and_hang(folder: Path, answer: Connection) -> None:
    files, memory = Segment.create(2, 1000, directory=folder), Segment.create(2, 1000)
    answer.send((files.name, memory.name))
    time.sleep(60)


@pytest.mark.timeout(60)
def test_nothing_is_left_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe()
    parent = start_program(create_and_hang, tmp_path, there)
    _, name = here.recv()
    held = Segment.attach(name)
    assert clean_up_orphans(tmp_path) == []
    parent.kill()
    parent.join()
    assert len(clean_up_orphans(tmp_path)) == 1
    assert list(tmp_path.iterdir()) == []
    assert not Path(name).exists()
    held.buffers[1] = 4
    assert held.buffers[1].sum() == 4000
    held.close()
