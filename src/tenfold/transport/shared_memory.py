"""Rounds of workers on one machine, whose weights are in memory that all of them share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.mixing import Round
from tenfold.transport.base import Transport, average_in_rank_order, check_size, compute_shares
from tenfold.transport.segment import MAILBOX, Check, Counters, Segment, Until, round_up

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

    A round takes two ticks of the counters (see `segment.py`): "my weights are ready" and "I have read". Between them

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

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` is true; raise if a worker is lost."""
        self._counters.wait_until(ready)

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
        index, share = group.index(self.rank), round_up(-(-self._mine.size // len(group)), ALIGNMENT)
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
