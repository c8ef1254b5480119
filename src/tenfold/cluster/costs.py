"""The cost of a round on the links of a cluster.

Phases follow one another; the messages of a phase travel at the same time. A message from s to d takes

    latency + max(seconds of all messages sent by this port of s, seconds of all messages received by this port of d)
            + seconds of all additions by d in this phase

where a port belongs to one worker and kind of link, or to a node or line shared by several workers, and can send and
receive at the same time. A phase of a group ends with its last message. If all links are equal, this gives the closed
forms of `tenfold.mixing.round`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tenfold.cluster.hardware import Floats
from tenfold.errors import ExperimentError
from tenfold.mixing import Round
from tenfold.mixing.round import Integers, Wave, operation_waves


@dataclass(frozen=True, eq=False)
class Wiring:
    """The link and the port of each message. Links are rows of `latency` and `per_byte`."""

    latency: Floats
    per_byte: Floats
    node_group: Integers
    """Each worker's node group."""
    node: Integers
    """Each worker's node."""
    inside: Integers
    """For each node group, the link between workers of one node."""
    across: Integers
    """For each pair of node groups, the link between nodes."""
    shares_port: NDArray[np.bool_]
    """For each node group, whether the workers of a node share its port to other nodes."""
    shares_line: NDArray[np.bool_]
    """For each pair of node groups, whether all messages between them share one line."""
    server: int | None = None
    """The link of servers; None for the link of the worker at the other end."""
    adding: float = 0.0
    """Seconds to add one byte."""

    @property
    def workers(self) -> int:
        return len(self.node)

    @property
    def is_uniform(self) -> bool:
        """Whether all pairs of workers have the same link and no two workers share a port."""
        return len(self.across) == 1 and not self.shares_line.any() and len(np.unique(self.node)) == self.workers

    def links(self, src: Integers, dst: Integers) -> Integers:
        s, d = np.where(src < 0, dst, src), np.where(dst < 0, src, dst)
        same_node = (self.node[s] == self.node[d]) & (src >= 0) & (dst >= 0)
        chosen: Integers = np.where(
            same_node, self.inside[self.node_group[s]], self.across[self.node_group[s], self.node_group[d]]
        )
        return chosen

    def ports(self, near: Integers, far: Integers, link: Integers) -> Integers:
        """Return the number of the port that each message uses at its near end."""
        n, node_groups = self.workers, len(self.across)
        g, h = self.node_group[near], self.node_group[np.where(far < 0, near, far)]
        leaves_node = (far < 0) | (self.node[near] != self.node[far])
        port = np.where(leaves_node & self.shares_port[g], n + self.node[near], near)
        port = np.where(leaves_node & self.shares_line[g, h], 2 * n + g * node_groups + h, port)
        port = np.where(near < 0, 2 * n + node_groups**2 - 1 - near, port)
        numbers: Integers = port * len(self.latency) + np.where(near < 0, 0, link)
        return numbers

    def seconds(self, src: Integers, dst: Integers, nbytes: Integers, adding: NDArray[np.bool_]) -> Floats:
        link = self.links(src, dst)
        at_server = self.per_byte[link] if self.server is None else self.per_byte[self.server]
        leaving = nbytes * np.where(src < 0, at_server, self.per_byte[link])
        entering = nbytes * np.where(dst < 0, at_server, self.per_byte[link])
        out, into = self.ports(src, dst, link), self.ports(dst, src, link)
        receiver = dst - dst.min()
        busy = np.maximum(np.bincount(out, leaving)[out], np.bincount(into, entering)[into])
        added = np.bincount(receiver, nbytes * adding)[receiver] * self.adding
        total: Floats = self._latencies(src, dst, link) + busy + added
        return total

    def _latencies(self, src: Integers, dst: Integers, link: Integers) -> Floats:
        """Return the latency of each message: the larger one of the links at its two ends."""
        latency: Floats = self.latency[link]
        if self.server is None:
            return latency
        return np.where((src < 0) | (dst < 0), np.maximum(latency, self.latency[self.server]), latency)


@dataclass(frozen=True, eq=False)
class LinkCost:
    """Returns the seconds that a round takes on the links of a cluster: a `RoundCost` computed from its wiring."""

    wiring: Wiring

    @property
    def is_uniform(self) -> bool:
        """Whether the cost of a round depends only on the sizes of its groups of replicas, not on their members."""
        return self.wiring.is_uniform

    def __call__(self, round_: Round, nbytes: int) -> float | Floats:
        """Return the seconds of a round: one number for all workers, or one per worker if they differ."""
        n = self.wiring.workers
        if len(round_.sources) != n:
            raise ExperimentError(f"a round of {len(round_.sources)} replicas was timed on links of {n} workers")
        sequences = round_.waves(nbytes)
        if not sequences:
            return 0.0
        seconds = self._of_groups(sequences) if round_.groups is not None else self._of_neighbors(sequences[0][0])
        return float(seconds[0]) if (seconds == seconds[0]).all() else seconds

    def _of_neighbors(self, wave: Wave) -> Floats:
        """Return when each worker has sent and received all of its own messages."""
        src, dst = wave.src.ravel(), wave.dst.ravel()
        each = self.wiring.seconds(src, dst, wave.nbytes.ravel(), np.full(src.shape, wave.adds))
        seconds = np.zeros(self.wiring.workers)
        np.maximum.at(seconds, src, each)
        np.maximum.at(seconds, dst, each)
        return seconds

    def _of_groups(self, sequences: Sequence[Sequence[Wave]]) -> Floats:
        """Return when each worker's group is done; groups of different sizes run their own phases at the same time."""
        totals = [np.zeros(len(waves[0].src)) for waves in sequences]
        for times, at_once in _lockstep(sequences):
            src = np.concatenate([wave.src.ravel() for _, wave in at_once])
            dst = np.concatenate([wave.dst.ravel() for _, wave in at_once])
            nbytes = np.concatenate([_sizes(wave).ravel() for _, wave in at_once])
            adding = np.concatenate([np.full(wave.src.size, wave.adds) for _, wave in at_once])
            each = self.wiring.seconds(src, dst, nbytes, adding)
            cuts = np.cumsum([wave.src.size for _, wave in at_once])[:-1]
            for (sequence, wave), part in zip(at_once, np.split(each, cuts), strict=True):
                totals[sequence] += times * part.reshape(wave.src.shape).max(axis=1)
        seconds = np.zeros(self.wiring.workers)
        for waves, total in zip(sequences, totals, strict=True):
            for wave in waves:
                for ends in (wave.src, wave.dst):
                    at_worker = ends >= 0
                    seconds[ends[at_worker]] = np.broadcast_to(total[:, None], ends.shape)[at_worker]
        return seconds

    def operation(self, name: str, members: Sequence[int], nbytes: int, root: int = 0) -> float | Floats:
        """Return the seconds of an operation of torch.distributed, see `operation_waves`: for all, or by worker."""
        waves = operation_waves(name, np.array(members), nbytes, root)
        return self._of_groups([waves]) if waves else 0.0

    def exchange(self, worker: int, other: int, there: int, back: int) -> float:
        """Return the seconds of an exchange without a round, as an `ExchangeCost`.

        The center adds the vector that it receives before it answers; two workers send to each other simultaneously.
        """
        node_group, node = self._placed
        g, h = node_group[worker], node_group[other] if other >= 0 else -1
        key = g, h, other >= 0 and node[worker] == node[other], there, back
        if key not in self._exchanges:
            ways = [(worker, other, there, True), (other, worker, back, other >= 0)]
            seconds = [self._alone(*way) for way in ways if way[2]]
            self._exchanges[key] = max(seconds, default=0.0) if other >= 0 else sum(seconds)
        return self._exchanges[key]

    def _alone(self, src: int, dst: int, nbytes: int, adds: bool) -> float:
        return float(self.wiring.seconds(np.array([src]), np.array([dst]), np.array([nbytes]), np.array([adds]))[0])

    @cached_property
    def _exchanges(self) -> dict[tuple[int, int, bool, int, int], float]:
        return {}

    @cached_property
    def _placed(self) -> tuple[list[int], list[int]]:
        return self.wiring.node_group.tolist(), self.wiring.node.tolist()


def _sizes(wave: Wave) -> Integers:
    """Return the message sizes of a phase; if they rotate, they differ by at most a byte, so the largest is used."""
    return np.broadcast_to(wave.nbytes.max(axis=1, keepdims=True), wave.src.shape) if wave.times > 1 else wave.nbytes


def _lockstep(sequences: Sequence[Sequence[Wave]]) -> Iterator[tuple[int, list[tuple[int, Wave]]]]:
    """Walk through sequences side by side: yield how many phases pass with no change, and the wave of each sequence."""
    left = [[(wave.times, wave) for wave in waves] for waves in sequences]
    while any(left):
        going = [(number, waves) for number, waves in enumerate(left) if waves]
        times = min(waves[0][0] for _, waves in going)
        yield times, [(number, waves[0][1]) for number, waves in going]
        for _, waves in going:
            rest, wave = waves[0]
            waves[:1] = [(rest - times, wave)] if rest > times else []
