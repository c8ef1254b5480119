"""Rounds that take place while the workers of one machine compute their next step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.mixing import Round
from tenfold.transport.base import Transport, average_in_rank_order, check_size, compute_shares
from tenfold.transport.segment import MAILBOX, Check, Counters, Segment, Until

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


CACHE, LARGEST_BLOCK, SMALLEST_BLOCK = 1 << 20, 1 << 18, 1 << 16
"""Bytes of cache a core has to itself, and of one worker's weights in a block."""
ALIGNMENT = 32
"""Slices start on multiples of this many elements, so that no two workers write to one cache line."""

Block = tuple[list[NDArray[Any]], NDArray[Any], list[NDArray[Any]], NDArray[Any]]
"""What to average, where to write the average, where to copy it from there, and scratch to work in."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What one worker does in a round."""

    reads: tuple[int, ...]
    """The ranks whose arrival it waits for."""
    read_by: tuple[int, ...]
    """The ranks that must be done before it may change its weights."""
    blocks: list[Block]
    shares: tuple[float, ...] | None
    pending: NDArray[Any] | None
    """Where its new weights are kept until no other rank reads the old ones; None if they are written in place."""
    nbytes: int


class SharedMemoryTransport(Transport):
    """One of N processes on one machine.

    A round takes two ticks of the counters (see `counters.py`): "my weights are ready" and "I have read". Between them

    - in a group that averages exactly, member k averages slice k of all members' weights and writes it into all;
    - otherwise each worker combines its sources into memory of its own, and takes it over when its readers are done.

    Each waits for its partners only. Every first tick comes before any waiting of its round, and every second one
    depends on first ones alone, so no pattern of sources can deadlock.
    """

    def __init__(
        self,
        segment: Segment,
        rank: int,
        timeout: float = 1800.0,
        ranks: Sequence[int] | None = None,
        until: Until | None = None,
        check: Check | None = None,
    ) -> None:
        """Join as `rank`; a partner that does not respond within `timeout` seconds is an error.

        `ranks` are the workers' numbers in error messages, where there are more machines; `until` is how to wait for
        workers of the same process; `check` raises failures that cannot be seen in the shared memory.
        """
        super().__init__(rank, segment.size)
        self._segment = segment
        self._number = rank
        self._members = tuple(range(segment.size))
        self._counters = Counters(segment, rank, timeout, ranks, until, check)
        self._all = list(segment.buffers)
        self._mine = segment.buffers[rank]
        self._others = tuple(other for other in range(self.size) if other != rank)
        self._scratch = np.empty((2, LARGEST_BLOCK // self._mine.itemsize), self._mine.dtype)
        self._pending: NDArray[Any] | None = None
        self._plan = lru_cache(maxsize=256)(self._make_plan)
        self._group_blocks = lru_cache(maxsize=64)(self._make_group_blocks)
        self._own_blocks = lru_cache(maxsize=64)(self._make_own_blocks)
        self.buffer: torch.Tensor = torch.from_numpy(self._mine)

    def regroup(self, members: Sequence[int], membership: int, ticks: int) -> None:
        """Take part with these members of the segment; their order gives their ranks from now on."""
        self._counters.regroup(members, membership, ticks)
        self._members = tuple(members)
        self.rank, self.size = self._members.index(self._number), len(members)
        self._all = [self._segment.buffers[member] for member in members]
        self._others = tuple(other for other in range(self.size) if other != self.rank)
        for cached in (self._plan, self._group_blocks, self._own_blocks):
            cached.cache_clear()

    def check_members(self) -> None:
        """Raise MembersChanged if other members are to take part than in the last `regroup`."""
        self._counters.check_members()

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        """Carry out one round; after an error the weights may be half averaged."""
        # A diverging model is reported by the training itself, so numpy need not warn of an overflow.
        with self._working, np.errstate(all="ignore"):
            plan = self._plan(round_, None if samples is None else tuple(samples))
            self._meet(plan.reads)
            for members, out, copies, scratch in plan.blocks:
                average_in_rank_order(members, plan.shares, out, scratch)
                for copy in copies:
                    np.copyto(copy, out)
            self._meet(plan.read_by)
            if plan.pending is not None:
                np.copyto(self._mine, plan.pending)
            self.bytes_moved += plan.nbytes

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every worker has called this."""
        self._meet(self._others, timeout)

    def broadcast(self, root: int = 0) -> None:
        """Copy the root's weights; the root waits until all have them."""
        with self._working:
            if self.rank == root:
                self._meet(())
                self._meet(self._others)
            else:
                self._meet((root,))
                np.copyto(self._mine, self._all[root])
                self._meet(())
                self.bytes_moved += self._mine.nbytes

    def copy_to_others(self, parts: Sequence[slice]) -> None:
        """Copy parts of this worker's weights into those of all others; return when every worker has done so.

        No two workers may copy the same part, and none may use the parts of others before this returns. The copies
        count towards this transport's `bytes_moved`, but not towards the bytes that a run reports (see `Trainer`).
        """
        with self._working:
            for part in parts:
                for other in self._others:
                    np.copyto(self._all[other][part], self._mine[part])
                    self.bytes_moved += self._mine[part].nbytes
            self._meet(self._others)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return every worker's values by rank, one mailbox full at a time."""
        room = MAILBOX - 1
        boxes = [self._segment.mailboxes[member] for member in self._members]
        gathered: list[list[float]] = [[] for _ in range(self.size)]
        sent, longest = 0, 1
        with self._working:
            while sent < longest:
                part = values[sent : sent + room]
                boxes[self.rank][0] = len(values)
                boxes[self.rank][1 : 1 + len(part)] = part
                self._meet(self._others)
                lengths = [int(box[0]) for box in boxes]
                for rank, length in enumerate(lengths):
                    gathered[rank] += boxes[rank][1 : 1 + max(0, min(room, length - sent))].tolist()
                self._meet(self._others)
                sent, longest = sent + room, max(lengths)
        return gathered

    def abort(self) -> None:
        """End the waiting of all workers with an error."""
        self._segment.abort()

    def close(self) -> None:
        """Release the memory, which stays mapped for as long as the buffer is in use."""
        self._segment.close()

    def _meet(self, ranks: tuple[int, ...], timeout: float | None = None) -> None:
        started = perf_counter()
        self._counters.tick()
        self._counters.wait(ranks, timeout)
        self.wait_seconds += perf_counter() - started

    def _make_plan(self, round_: Round, samples: tuple[float, ...] | None) -> ReadPlan:
        check_size(round_, self.size)
        rank, sources, pending = self.rank, round_.sources[self.rank], None
        reads = tuple(other for other in sources if other != rank)
        read_by = tuple(other for other in self._others if rank in round_.sources[other])
        if not reads:
            blocks: list[Block] = []
        elif round_.groups is not None:
            blocks = self._group_blocks(sources)
        else:
            blocks = self._own_blocks(sources)
            pending = self._pending
        read = sum(members[0].nbytes for members, *_ in blocks) * len(reads)
        nbytes = read if pending is not None else 2 * read
        return ReadPlan(reads, read_by, blocks, compute_shares(round_, samples, rank), pending, nbytes)

    def _make_group_blocks(self, group: tuple[int, ...]) -> list[Block]:
        index, share = group.index(self.rank), _round_up(-(-self._mine.size // len(group)), ALIGNMENT)
        return [
            (members, members[0], members[1:], scratch)
            for members, _, scratch in self._cut(group, index * share, (index + 1) * share)
        ]

    def _make_own_blocks(self, sources: tuple[int, ...]) -> list[Block]:
        if self._pending is None:
            self._pending = np.empty_like(self._mine)
        pending = self._pending
        return [(members, pending[part], [], scratch) for members, part, scratch in self._cut(sources, 0, pending.size)]

    def _cut(
        self, ranks: tuple[int, ...], start: int, stop: int
    ) -> Iterator[tuple[list[NDArray[Any]], slice, NDArray[Any]]]:
        """Cut a range of the ranks' weights into blocks that stay in the cache between reading and writing them."""
        longest = max(SMALLEST_BLOCK, min(LARGEST_BLOCK, CACHE // len(ranks))) // self._mine.itemsize
        stop = min(stop, self._mine.size)
        for first in range(start, stop, longest):
            part = slice(first, min(first + longest, stop))
            yield [self._all[rank][part] for rank in ranks], part, self._scratch[:, : part.stop - part.start]


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
