"""What every transport must do, whatever carries the weights. Subclass `TransportContract` and say how to join."""

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch
from forked import programs_server

from tenfold.mixing import Round
from tenfold.mixing.round import Server, exact_round
from tenfold.transport import Transport, average_in_rank_order, compute_shares
from tenfold.workers.fork_server import context, start_server

Join = Callable[[int], Transport]
"""Makes the transport of a rank; it must travel to another process."""

LENGTHS: list[Callable[[int], int]] = [lambda rank: rank, lambda _: 0, lambda _: 3, lambda rank: 63 * (rank % 2)]
"""How many values each rank tells in one `gather` after another."""


def everybody(n: int) -> Round:
    return Round((tuple(range(n)),) * n)


def ring(n: int, *hops: int) -> Round:
    return Round(tuple(tuple(sorted({i, *((i + hop) % n for hop in hops)})) for i in range(n)))


def random_groups(n: int, chance: random.Random, largest: int = 2) -> Round:
    ranks = chance.sample(range(n), n)
    sources: list[tuple[int, ...]] = [()] * n
    while ranks:
        group = tuple(sorted(ranks.pop() for _ in range(min(len(ranks), chance.randint(1, largest)))))
        for rank in group:
            sources[rank] = group
    return Round(tuple(sources))


def assorted(n: int, count: int, seed: int) -> list[Round]:
    """Return rounds of all kinds in random order: exact, in pairs, in uneven groups, rings, one-way and idle."""
    chance = random.Random(seed)
    kinds: list[Callable[[], Round]] = [
        lambda: everybody(n),
        lambda: random_groups(n, chance),
        lambda: random_groups(n, chance, largest=n),
        lambda: ring(n, 1),
        lambda: ring(n, -1, 1),
        lambda: ring(n, 1, 2),
        lambda: Round(tuple((i,) for i in range(n))),
    ]
    return [chance.choice(kinds)() for _ in range(count)]


def expected(start: torch.Tensor, rounds: Sequence[Round], weights: Sequence[float] | None) -> torch.Tensor:
    """Return what the rounds make of the replicas, computed in one process, whole vectors at a time."""
    now = start.clone()
    for this in rounds:
        before = now.clone()
        for rank, sources in enumerate(this.sources):
            if len(sources) > 1:
                average_in_rank_order([before[j] for j in sources], compute_shares(this, weights, rank), now[rank])
    return now


def starting_weights(size: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, numel, generator=torch.Generator().manual_seed(size), dtype=dtype)


def mix_all(
    join: Join,
    rank: int,
    start: torch.Tensor,
    rounds: Sequence[Round],
    weights: Sequence[float] | None,
    longest_pause: float = 0.0,
) -> tuple[np.ndarray, dict[str, float]]:
    chance = random.Random(rank)
    with join(rank) as transport:
        transport.buffer.copy_(start[rank])
        for this in rounds:
            if longest_pause and chance.random() < 0.2:
                time.sleep(chance.uniform(0, longest_pause))
            transport.mix(this, weights)
        counters = {
            "wait": transport.wait_seconds,
            "work": transport.communicate_seconds,
        }
        return transport.buffer.numpy().copy(), counters


def talk(join: Join, rank: int) -> tuple[list[list[list[float]]], list[float]]:
    with join(rank) as transport:
        last = transport.size - 1
        gathered = []
        for length in (length(rank) for length in LENGTHS):
            gathered.append(transport.gather([rank + k / 4 for k in range(length)]))
            transport.barrier(timeout=20)
        transport.buffer.fill_(rank + 1)
        transport.broadcast(root=last)
        received = [float(transport.buffer.min()), float(transport.buffer.max())]
        transport.buffer.fill_(rank + 1)
        transport.broadcast()
        return gathered, [*received, float(transport.buffer.min()), float(transport.buffer.max())]


class TransportContract:
    """The laws of transports."""

    sizes: tuple[int, ...]
    in_rank_order = True
    """Whether the mean over all adds in rank order, too; a library's own all-reduce need not."""

    def check(self, mixed: np.ndarray, rounds: Sequence[Round], reference: torch.Tensor) -> None:
        """Compare bit for bit, or where a library did the sum within 1e-6 of the largest weight for every such sum."""
        sums = 0 if self.in_rank_order else sum(max(map(len, this.sources)) > 2 for this in rounds)
        if sums:
            tolerance = 1e-6 * min(sums, 10) * float(reference.abs().max())
            np.testing.assert_allclose(mixed, reference.numpy(), rtol=0, atol=tolerance)
        else:
            assert np.array_equal(mixed, reference.numpy())

    def world(self, size: int, numel: int, dtype: torch.dtype = torch.float32) -> AbstractContextManager[Join]:
        raise NotImplementedError

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what the scenario gives on each rank, all ranks running at the same time."""
        raise NotImplementedError

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("weighted", [False, True])
    @pytest.mark.parametrize("numel", [1, 1001])
    def test_rounds_of_all_kinds_do_what_their_matrices_say(self, numel: int, weighted: bool) -> None:
        for size in self.sizes:
            rounds, weights = assorted(size, 12, seed=size), [1.0 + i for i in range(size)] if weighted else None
            start = starting_weights(size, numel)
            with self.world(size, numel) as join:
                mixed = np.stack([weights for weights, _ in self.run(size, mix_all, join, start, rounds, weights)])
            reference = start.double().numpy()
            for this in rounds:
                reference = this.matrix(weights) @ reference
            np.testing.assert_allclose(mixed, reference, rtol=0, atol=1e-5)
            self.check(mixed, rounds, expected(start, rounds, weights))

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_many_blocks_give_the_bits_of_one(self, dtype: torch.dtype) -> None:
        size, numel = self.sizes[-1], 400_003
        rounds, start = [everybody(size), ring(size, 1)], starting_weights(size, numel, dtype)
        with self.world(size, numel, dtype) as join:
            mixed = np.stack([weights for weights, _ in self.run(size, mix_all, join, start, rounds, None)])
        self.check(mixed, rounds, expected(start, rounds, None))

    @pytest.mark.timeout(60)
    def test_partners_and_smaller_groups_add_in_rank_order(self) -> None:
        size = self.sizes[-1]
        chance, start = random.Random(size), starting_weights(size, 1001)
        pairs = Round(tuple(tuple(sorted({i, i ^ 1} & set(range(size)))) for i in range(size)))
        trio = Round(tuple((0, 1, 2) if i < 3 < size else (i,) for i in range(size)))
        rounds = [pairs, ring(size, 1), trio, random_groups(size, chance)]
        with self.world(size, 1001) as join:
            mixed = np.stack([weights for weights, _ in self.run(size, mix_all, join, start, rounds, None)])
        assert np.array_equal(mixed, expected(start, rounds, None).numpy())

    @pytest.mark.timeout(60)
    def test_a_server_takes_the_mean(self) -> None:
        for size in self.sizes:
            start, rounds = starting_weights(size, 333), [exact_round(size, Server())]
            for weights in (None, [1.0 + i for i in range(size)]):
                with self.world(size, 333) as join:
                    mixed = np.stack([item for item, _ in self.run(size, mix_all, join, start, rounds, weights)])
                self.check(mixed, rounds, expected(start, rounds, weights))

    @pytest.mark.timeout(60)
    def test_the_mean_is_kept(self) -> None:
        for size in self.sizes:
            start = starting_weights(size, 64)
            rounds = [everybody(size), ring(size, 1), ring(size, -1, 1), random_groups(size, random.Random(1))]
            with self.world(size, 64) as join:
                mixed = np.stack([weights for weights, _ in self.run(size, mix_all, join, start, rounds, None)])
            np.testing.assert_allclose(mixed.mean(0), start.numpy().mean(0), atol=1e-6)

    @pytest.mark.timeout(60)
    def test_changing_patterns_and_uneven_pace(self) -> None:
        for size in self.sizes:
            start, rounds = starting_weights(size, 333), assorted(size, 200, seed=size)
            with self.world(size, 333) as join:
                results = self.run(size, mix_all, join, start, rounds, None, 0.001)
            self.check(np.stack([weights for weights, _ in results]), rounds, expected(start, rounds, None))
            for _, counters in results:
                assert counters["wait"] >= 0
                assert counters["work"] >= 0

    @pytest.mark.timeout(60)
    def test_gather_and_broadcast_reach_everybody(self) -> None:
        for size in self.sizes:
            with self.world(size, 10) as join:
                results = self.run(size, talk, join)
            told = [[[r + k / 4 for k in range(length(r))] for r in range(size)] for length in LENGTHS]
            assert results == [(told, [size, size, 1, 1])] * size


class MemberConnection:
    """The connection to a process of a `WorkerPool`, which owes an answer from when it is sent something until then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.is_owed_an_answer = False

    def send(self, question: Any) -> None:
        self.is_owed_an_answer = True
        self._connection.send(question)

    def poll(self, within: float = 0.0) -> bool:
        return self._connection.poll(within)

    def recv(self) -> Any:
        answer = self._connection.recv()
        self.is_owed_an_answer = False
        return answer

    def close(self) -> None:
        self._connection.close()


class WorkerPool:
    """Processes that wait for scenarios to play, forked from a server that has what the tests import.

    Those whose answer nobody has received, as a test failed before, are replaced: it would be taken for the next one.
    """

    def __init__(self) -> None:
        self._context = multiprocessing.get_context(context().get_start_method())
        self._members: list[tuple[Any, MemberConnection]] = []

    def start(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[tuple[Any, MemberConnection]]:
        """Let `size` members play the scenario; return (process, connection) of each."""
        for process, connection in self._members:
            if connection.is_owed_an_answer:
                process.kill()
                process.join(10)
                connection.close()
        alive = [member for member in self._members if member[0].is_alive()]
        while len(alive) < size:
            here, there = self._context.Pipe()
            process = self._context.Process(target=serve, args=(there,), daemon=True)
            with programs_server():
                start_server()
                process.start()
            there.close()
            alive.append((process, MemberConnection(here)))
        self._members = alive
        join, *rest = arguments
        for rank, (_, connection) in enumerate(alive[:size]):
            connection.send((scenario, (join, rank, *rest)))
        return alive[:size]

    def run(self, size: int, scenario: Callable[..., Any], *arguments: Any) -> list[Any]:
        return [receive(connection) for _, connection in self.start(size, scenario, *arguments)]

    def close(self) -> None:
        for process, connection in self._members:
            connection.close()
            process.join(10)
            process.kill()


def receive(connection: MemberConnection, within: float = 40) -> Any:
    """Return what a crew member sends, raising what it raised."""
    assert connection.poll(within), f"no answer within {within} s"
    answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            scenario, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send(scenario(*arguments))
        except Exception as error:
            connection.send(error)
