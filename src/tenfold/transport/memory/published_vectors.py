"""Rounds that take place while the workers of one machine compute their next step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter

import numpy as np
import torch

from tenfold.mixing import Round
from tenfold.transport.base import average_in_rank_order, check_size, compute_shares
from tenfold.transport.memory.counters import Check, Counters, Until
from tenfold.transport.memory.segment import Segment

SLOTS = 3
"""The rounds whose vectors a worker keeps published. Two would be enough, but workers would wait for each other to read
the last one; with three, this happens only where one is more than two steps ahead of another."""
BLOCK = 1 << 16
"""Numbers that are averaged at a time."""


@dataclass(frozen=True)
class _Role:
    """What one worker does in an overlapped round."""

    sources: tuple[int, ...]
    reads: tuple[int, ...]
    """The workers whose vectors it waits for."""
    read_by: tuple[int, ...]
    shares: tuple[float, ...] | None


@dataclass(frozen=True)
class _Started:
    """A round in which this worker has published its vector."""

    role: _Role
    slot: int
    size: int
    tick: int
    """A worker that has reached this tick has published its vector."""


class PublishedVectors:
    """One worker's part in rounds that begin after one step and end after the next.

    `publish` begins a round and does not wait for workers that are at most two rounds behind. `collect` ends it and
    returns what it adds to the vector: the average of what the worker and its sources have published for this round,
    less its own. It waits only for sources that have not published yet. What is added does not depend on timing, and
    the mean over all workers does not change.
    """

    def __init__(
        self,
        segment: Segment,
        rank: int,
        timeout: float = 1800.0,
        until: Until | None = None,
        check: Check | None = None,
    ) -> None:
        """Join as `rank`; the segment has room for `SLOTS` vectors of each worker."""
        self.rank, self.size = rank, segment.size
        self.wait_seconds = 0.0
        self.communicate_seconds = 0.0
        self._counters = Counters(segment, rank, timeout, until=until, check=check)
        self._slots = segment.buffers.reshape(segment.size, SLOTS, -1)
        self._started: _Started | None = None
        self._read_by: list[tuple[tuple[int, ...], int]] = [((), 0)] * SLOTS
        """For each slot, the workers that read it last, and the tick by which they have done so."""
        self._next = 0
        self._scratch = np.empty((2, BLOCK), self._slots.dtype)
        self._added = np.empty_like(self._slots[rank, 0])
        self._role = lru_cache(maxsize=256)(self._make_role)

    def publish(self, vectors: Sequence[torch.Tensor], round_: Round, samples: Sequence[float] | None = None) -> None:
        """Publish vectors, one after another; `samples` are the weights of the ranks."""
        began, waited = perf_counter(), self.wait_seconds
        slot, self._next = self._next, (self._next + 1) % SLOTS
        self._wait(*self._read_by[slot])
        own, size = self._slots[self.rank, slot], 0
        for vector in vectors:
            own[size : size + vector.numel()] = vector.detach().reshape(-1).numpy()
            size += vector.numel()
        role = self._role(round_, None if samples is None else tuple(samples))
        self._started = _Started(role, slot, size, self._counters.tick())
        self._count(began, waited)

    def collect(self) -> torch.Tensor:
        """Return what the round adds to the published vectors, as one vector, which the next call overwrites."""
        started = self._started
        assert started is not None, "publish comes first"
        began, waited = perf_counter(), self.wait_seconds
        role = started.role
        self._wait(role.reads, started.tick)
        published = self._slots[:, started.slot, : started.size]
        added = self._added[: started.size]
        with np.errstate(all="ignore"):  # a diverging model is reported by the training itself
            for first in range(0, started.size, BLOCK):
                block = slice(first, min(first + BLOCK, started.size))
                members = [published[source, block] for source in role.sources]
                average_in_rank_order(members, role.shares, added[block], self._scratch[:, : block.stop - first])
                np.subtract(added[block], published[self.rank, block], out=added[block])
        self._read_by[started.slot] = role.read_by, self._counters.tick()
        self._started = None
        self._count(began, waited)
        return torch.from_numpy(added)

    @property
    def own(self) -> torch.Tensor:
        """A copy of what this worker has published in the round that has not ended."""
        started = self._started
        assert started is not None, "publish comes first"
        return torch.from_numpy(self._slots[self.rank, started.slot, : started.size].copy())

    def _make_role(self, round_: Round, samples: tuple[float, ...] | None) -> _Role:
        check_size(round_, self.size)
        sources = round_.sources[self.rank]
        others = [other for other in range(self.size) if other != self.rank]
        return _Role(
            sources=sources,
            reads=tuple(other for other in others if other in sources),
            read_by=tuple(other for other in others if self.rank in round_.sources[other]),
            shares=compute_shares(round_, samples, self.rank),
        )

    def _wait(self, ranks: tuple[int, ...], tick: int) -> None:
        began = perf_counter()
        self._counters.wait(ranks, ticks=tick)
        self.wait_seconds += perf_counter() - began

    def _count(self, began: float, waited: float) -> None:
        self.communicate_seconds += perf_counter() - began - (self.wait_seconds - waited)
