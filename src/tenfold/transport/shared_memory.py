"""Averaging in shared memory on one machine: the counters that synchronize workers, and the rounds."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.errors import TrainingError, WorkerLost
from tenfold.machine.liveness import is_alive
from tenfold.mixing import Round
from tenfold.transport.base import (
    CHECK_SECONDS,
    SPINS,
    Transport,
    average_in_rank_order,
    check_size,
    compute_shares,
    wait,
)
from tenfold.transport.segment import Segment, SharedIntegers, StopReason, round_up

# Synchronization through shared counters.
#
# Every worker has one counter, which only it writes and which only grows. All workers perform the same operations, and
# an operation advances the counter by the same number of ticks on every worker, even on one with nothing to do.
# Therefore "worker j has reached tick t" has the same meaning for every worker, and each waits only for the workers it
# depends on.
#
# On x86 stores become visible in order, so a tick also publishes the weights written before it; on other processors
# accesses are locked (see `LockedIntegers`).

Until = Callable[[Callable[[], bool]], None]
"""Returns when the function that it is given returns True."""
Check = Callable[[float], None]
"""Raises when ranks have failed; called repeatedly while waiting, about every given number of seconds."""


class MembersChanged(Exception):  # noqa: N818 - it is no error
    """The members have changed; their current operation must be repeated with the new ones."""


class Counters:
    """One worker's counter, and its view of the others' counters."""

    def __init__(
        self,
        segment: Segment,
        rank: int,
        timeout: float,
        ranks: Sequence[int] | None = None,
        until: Until | None = None,
        check: Check | None = None,
    ) -> None:
        """Join as `rank`; `ranks` are the workers' numbers in error messages, if these differ.

        `until` replaces polling if several workers share a process, because polling would block the others. `check`
        raises failures that are not visible in the shared memory.
        """
        self._segment = segment
        self._ranks = range(segment.size) if ranks is None else ranks
        self._words = segment.words
        self._timeout = timeout
        self._until = until
        self._check = check
        self._mine = segment.counter_at(rank)
        self._members = tuple(range(segment.size))
        self._theirs = [segment.counter_at(other) for other in self._members]
        self._ticks = self._words[self._mine]
        self._membership: int | None = None
        self._words[segment.pid_at(rank)] = os.getpid()

    def regroup(self, members: Sequence[int], membership: int, ticks: int) -> None:
        """Restrict the segment's workers to these members, which all count from `ticks`, until the next change.

        From the first call on, `MembersChanged` is raised when another membership is requested, and the process that
        changes memberships handles dead workers.
        """
        self._members, self._membership = tuple(members), membership
        self._theirs = [self._segment.counter_at(member) for member in members]
        self._ticks = ticks
        self._words[self._mine] = ticks

    @property
    def is_outdated(self) -> bool:
        """Whether a different membership is requested."""
        return self._membership is not None and self._segment.membership != self._membership

    def tick(self) -> int:
        self._ticks += 1
        self._words[self._mine] = self._ticks
        return self._ticks

    def arrival(self, ranks: Sequence[int]) -> "Arrival":
        """Return a function that returns whether each of the ranks has reached this worker's tick."""
        return Arrival(self._words, self._theirs, ranks, self._ticks)

    def wait(self, ranks: Iterable[int], timeout: float | None = None) -> None:
        """Wait until each of the ranks has reached this worker's tick."""
        words, until, ticks = self._words, self._until, self._ticks
        for rank in ranks:
            at = self._theirs[rank]
            if until is not None:
                until(lambda at=at: words[at] >= ticks)  # type: ignore[misc]
                continue
            for _ in range(SPINS):
                if words[at] >= ticks:
                    break
            else:
                self._wait_long(rank, timeout if timeout is not None else self._timeout, ticks)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` is true; raise WorkerLost or MembersChanged if that cannot happen."""
        if self._until is not None:
            self._until(ready)
            return
        for _ in range(SPINS):
            if ready():
                return

        def check(_: float) -> None:
            if self._check is not None:
                self._check(CHECK_SECONDS)
            self._raise_if_stopped()

        wait(lambda: ready() or self.is_outdated, check)
        if self.is_outdated:
            raise MembersChanged

    def _wait_long(self, rank: int, timeout: float, ticks: int) -> None:
        words, at = self._words, self._theirs[rank]
        wait(
            lambda: words[at] >= ticks or self.is_outdated,
            lambda waited: self.check_for_failure(rank, waited, timeout, ticks),
            timeout,
        )
        if words[at] < ticks:
            raise MembersChanged

    def check_for_failure(self, rank: int, waited: float, timeout: float, ticks: int) -> None:
        """Raise an error if a rank that has not reached a tick is dead or late, or if all must stop."""
        if self._check is not None:
            self._check(CHECK_SECONDS)
        segment = self._segment
        pid = self._words[segment.pid_at(self._members[rank])]
        # The counter is read after the death is detected, because a worker may finish its part and then leave.
        dead = self._membership is None and pid and not is_alive(pid)
        if dead and self._words[self._theirs[rank]] < ticks:
            segment.stop(StopReason.DIED, rank)
        elif waited >= timeout:
            segment.stop(StopReason.LATE, rank)
        self._raise_if_stopped(timeout)

    def _raise_if_stopped(self, timeout: float = math.inf) -> None:
        """If all workers must stop, raise the error with the reason."""
        segment = self._segment
        reason, about = segment.stop_reason
        if reason is StopReason.NONE:
            return
        worker = f"worker {self._ranks[about]} (pid {self._words[segment.pid_at(about)] or 'unknown'})"
        if reason is StopReason.ASKED:
            raise TrainingError("training was stopped by another worker or by the main process; see its message")
        if reason is StopReason.LATE:
            sentence = f"{worker} did not respond within {timeout:g} s; it hangs, or needs a longer timeout"
        else:
            sentence = f"{worker} died; look for its own error message, or for a lack of memory on this machine"
        raise WorkerLost(self._ranks[about], sentence)


class Arrival:
    """A function that returns whether each of the ranks has reached a tick; ranks that have are not checked again."""

    __slots__ = ("_awaited", "_counters", "_ticks", "_words")

    def __init__(self, words: SharedIntegers, counters: Sequence[int], ranks: Sequence[int], ticks: int) -> None:
        self._words, self._counters, self._ticks = words, counters, ticks
        self._awaited = list(ranks)

    def __call__(self) -> bool:
        words, counters, ticks, left = self._words, self._counters, self._ticks, self._awaited
        while left:
            if words[counters[left[-1]]] < ticks:
                return False
            left.pop()
        return True

    def missing(self) -> list[int]:
        """Return the ranks that have not reached the tick yet."""
        return sorted(rank for rank in self._awaited if self._words[self._counters[rank]] < self._ticks)


CACHE, LARGEST_BLOCK, SMALLEST_BLOCK = 1 << 20, 1 << 18, 1 << 16
"""Bytes of cache a core has to itself, and of one worker's weights in a block."""
ALIGNMENT = 32
"""Slices start on multiples of this many elements, so that no two workers write to one cache line."""

Block = tuple[list[NDArray[Any]], NDArray[Any], list[NDArray[Any]], NDArray[Any]]
"""What to average, where to write the average, where to copy it from there, and scratch to work in."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """One worker's part in a round."""

    reads: tuple[int, ...]
    """The ranks whose arrival it waits for."""
    read_by: tuple[int, ...]
    """The ranks that must be done before it may change its weights."""
    blocks: list[Block]
    shares: tuple[float, ...] | None
    pending: NDArray[Any] | None
    """Where its new weights are kept until no other rank reads the old ones; None if they are written in place."""


class SharedMemoryTransport(Transport):
    """One of N processes on one machine.

        A round takes two ticks of the counters: "my weights are ready" and "I have finished reading". Between them

    - in a group that averages exactly, member k averages slice k of all members' weights and writes it to all members;
    - otherwise each worker combines its sources in separate memory, and copies the result when its readers have
      finished.

    Each worker waits only for its partners. Every first tick precedes any waiting in its round, and every second tick
    depends only on first ticks, so no pattern of sources can deadlock.
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

        `ranks` are the workers' numbers in error messages, if there are several machines; `until` waits for workers of
        the same process; `check` raises failures that are not visible in the shared memory.
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
        """Restrict the segment's workers to these members; their order defines their ranks from now on."""
        self._counters.regroup(members, membership, ticks)
        self._members = tuple(members)
        self.rank, self.size = self._members.index(self._number), len(members)
        self._all = [self._segment.buffers[member] for member in members]
        self._others = tuple(other for other in range(self.size) if other != self.rank)
        for cached in (self._plan, self._group_blocks, self._own_blocks):
            cached.cache_clear()

    @property
    def is_outdated(self) -> bool:
        """Whether the requested members differ from those of the last `regroup`."""
        return self._counters.is_outdated

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        """Carry out one round; after an error the weights may be partly averaged."""
        # Training itself reports a diverging model, so numpy need not warn about an overflow.
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

    def barrier(self, timeout: float | None = None) -> None:
        self._meet(self._others, timeout)

    def wait_until(self, ready: Callable[[], bool]) -> None:
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

    def copy_to_others(self, parts: Sequence[slice]) -> None:
        """Copy parts of this worker's weights to all others; return when every worker has done so.

        Workers must not copy the same part, or use the others' parts before this returns.
        """
        with self._working:
            for part in parts:
                for other in self._others:
                    np.copyto(self._all[other][part], self._mine[part])
            self._meet(self._others)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        boxes = [self._segment.mailboxes[member] for member in self._members]
        with self._working:
            boxes[self.rank][: 1 + len(values)] = len(values), *values
            self._meet(self._others)
            gathered = [box[1 : 1 + int(box[0])].tolist() for box in boxes]
            self._meet(self._others)
        return gathered

    def abort(self) -> None:
        self._segment.abort()

    def close(self) -> None:
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
        return ReadPlan(reads, read_by, blocks, compute_shares(round_, samples, rank), pending)

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
        """Divide a range of the ranks' weights into blocks small enough to stay in the cache."""
        longest = max(SMALLEST_BLOCK, min(LARGEST_BLOCK, CACHE // len(ranks))) // self._mine.itemsize
        stop = min(stop, self._mine.size)
        for first in range(start, stop, longest):
            part = slice(first, min(first + longest, stop))
            yield [self._all[rank][part] for rank in ranks], part, self._scratch[:, : part.stop - part.start]
