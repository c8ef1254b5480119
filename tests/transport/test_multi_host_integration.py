"""Ranks of one host share memory, and only one of them talks over the network; hosts are made up here."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_distributed_integration import crew, made_world
from transport_contract import (
    Join,
    TransportContract,
    WorkerPool,
    everybody,
    expected,
    mix_all,
    random_groups,
    receive,
    starting_weights,
)

from tenfold.errors import WorkerLost
from tenfold.mixing import Round
from tenfold.transport import SharedMemoryTransport, Transport
from tenfold.transport.network import Hosts, MultiHostTransport, NetworkTransport, connect, hosts_of

pytestmark = pytest.mark.timeout(60)
__all__ = ["crew"]
TWO_HOSTS: Hosts = ((0, 2), (1, 3))


class Together:
    """A transport that closes its network with itself."""

    def __init__(self, transport: Transport, network: Any) -> None:
        self.transport, self.network = transport, network

    def __enter__(self) -> Transport:
        return self.transport

    def __exit__(self, *problem: Any) -> None:
        self.transport.__exit__(*problem)
        self.network.close()


def join_hosts(networked: Join, hosts: Hosts, numel: int, dtype: torch.dtype, rank: int) -> Together:
    network = networked(rank)._network
    mine = tuple(here for host in hosts if (here := tuple(item for item in host if item < network.size)))
    return Together(connect(network, mine, numel, dtype), network)


class TestOnHosts(TransportContract):
    sizes = (1, 2, 4)
    in_rank_order = False
    hosts = TWO_HOSTS

    @pytest.fixture(autouse=True)
    def _crew(self, crew: WorkerPool) -> None:
        self.crew = crew

    @contextmanager
    def world(self, size: int, numel: int, dtype: torch.dtype = torch.float32) -> Iterator[Join]:
        with made_world(size, 1) as networked:
            yield partial(join_hosts, networked, self.hosts, numel, dtype)

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        return self.crew.run(size, scenario, *arguments)


def kind_of(join: Join, rank: int) -> tuple[str, int, int]:
    """Mix over all and then in the first host, and return how many bytes went over the network each time."""
    with join(rank) as transport:
        kind = type(transport).__name__
        if not isinstance(transport, MultiHostTransport):
            return kind, 0, 0
        moved = []
        for round_ in (everybody(4), Round(((0, 2), (1,), (0, 2), (3,)))):
            before = transport._network.sent
            transport.mix(round_)
            moved.append(transport._network.sent - before)
        return kind, moved[0], moved[1]


def counting(networked: Join, hosts: Hosts, numel: int, dtype: torch.dtype, rank: int) -> Together:
    together = join_hosts(networked, hosts, numel, dtype, rank)
    network, exchange = together.network, together.network.exchange
    network.sent = 0

    def counted(sends: Any, receives: Any, timeout: float | None = None) -> None:
        network.sent += sum(tensor.nbytes for _, tensor in sends)
        exchange(sends, receives, timeout)

    network.exchange = counted
    return together


def test_only_the_first_of_a_host_talks_over_the_network(crew: WorkerPool) -> None:
    with made_world(4, 1) as networked:
        told = crew.run(4, kind_of, partial(counting, networked, TWO_HOSTS, 100, torch.float32))
    assert told == [
        ("MultiHostTransport", 400, 0),
        ("MultiHostTransport", 400, 0),
        ("MultiHostTransport", 0, 0),
        ("MultiHostTransport", 0, 0),
    ]


@pytest.mark.parametrize(
    ("hosts", "kind"),
    [(((0, 1, 2),), "SharedMemoryTransport"), (((0,), (1,), (2,)), "NetworkTransport")],
    ids=["one-host", "apart"],
)
def test_where_there_is_nothing_to_combine_there_is_one_way(crew: WorkerPool, hosts: Hosts, kind: str) -> None:
    with made_world(3, 1) as networked:
        told = crew.run(3, kind_of, partial(join_hosts, networked, hosts, 10, torch.float32))
    assert (
        {name for name, *_ in told}
        == {kind}
        == {SharedMemoryTransport.__name__ if len(hosts) == 1 else NetworkTransport.__name__}
    )


def test_groups_within_hosts_have_the_bits_of_shared_memory(crew: WorkerPool) -> None:
    hosts: Hosts = ((0, 1, 2), (3,))
    weights, start = [3.0, 1.0, 2.0, 5.0], starting_weights(4, 1001)
    rounds = [Round(((0, 1, 2), (0, 1, 2), (0, 1, 2), (3,))), random_groups(4, random.Random(3), 3)]
    with made_world(4, 1) as networked:
        join_them = partial(join_hosts, networked, hosts, 1001, torch.float32)
        mixed = np.stack([item for item, _ in crew.run(4, mix_all, join_them, start, rounds, weights)])
    assert np.array_equal(mixed, expected(start, rounds, weights).numpy())


def mix_until_lost(join: Join, rank: int, ready: Path) -> tuple[int, str]:
    with join(rank) as transport:
        try:
            transport.barrier(timeout=30)
            if rank == 3:
                ready.touch()
                time.sleep(60)
            while True:
                transport.mix(everybody(4))
        except WorkerLost as lost:
            return lost.rank, str(lost)
        except Exception:
            failure = transport._network.failure(within=5)
            return getattr(failure, "rank", -1), str(failure)


def test_the_lost_of_another_host_are_named_by_everybody(crew: WorkerPool, tmp_path: Path) -> None:
    with made_world(4, 1) as networked:
        join_them = partial(join_hosts, networked, TWO_HOSTS, 100, torch.float32)
        members = crew.start(4, mix_until_lost, join_them, tmp_path / "ready")
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        os.kill(members[3][0].pid, signal.SIGKILL)
        told = [receive(connection, within=10) for _, connection in members[:3]]
        members[3][0].join()
    assert [rank for rank, _ in told] == [3, 3, 3]
    assert all(message.startswith("worker 3 (p") for _, message in told)


def test_hosts_come_in_the_order_of_their_first_ranks() -> None:
    assert hosts_of(["b", "a", "b", "a", "c"]) == ((0, 2), (1, 3), (4,))
