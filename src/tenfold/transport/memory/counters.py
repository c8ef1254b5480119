"""Synchronization through shared counters.

Every worker has one counter, which only it writes and which only grows. All workers run through the same operations,
and an operation moves the counter by the same number of ticks on every worker, whether or not it has anything to do. So
"worker j has reached tick t" means the same to every worker, a worker that is ahead has simply passed it, and each can
wait for just those that it depends on.

On x86 stores become visible in order, so a tick also publishes the weights written before it; elsewhere the words are
locked (see `LockedIntegers`).
"""

import os
from collections.abc import Callable, Iterable, Sequence

from tenfold.errors import TrainingError, WorkerLost
from tenfold.machine.process_state import is_alive
from tenfold.transport.base import CHECK_SECONDS, SPINS, wait
from tenfold.transport.memory.segment import Segment, StopReason

Until = Callable[[Callable[[], bool]], None]
"""Returns when the function that it is given returns True."""
Check = Callable[[float], None]
"""Raises when ranks have failed; called repeatedly while waiting, about every given number of seconds."""


class MembersChanged(Exception):  # noqa: N818 - it is no error
    """Other workers take part from now on; what the members were doing together must be repeated with them."""


class Counters:
    """One worker's counter, and its view of the others'."""

    def __init__(
        self,
        segment: Segment,
        rank: int,
        timeout: float,
        ranks: Sequence[int] | None = None,
        until: Until | None = None,
        check: Check | None = None,
    ) -> None:
        """Join as `rank`; `ranks` are the workers' numbers in error messages, where these differ.

        `until` is how to wait where several workers share a process, so that polling would block the others. `check`
        knows of failures that cannot be seen in the shared memory.
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
        """Take part with these members of the segment only, all of which count from `ticks`, until that changes.

        From the first call on, `MembersChanged` is raised when another membership is asked for, and the process that
        changes memberships handles workers that die.
        """
        self._members, self._membership = tuple(members), membership
        self._theirs = [self._segment.counter_at(member) for member in members]
        self._ticks = ticks
        self._words[self._mine] = ticks

    def check_members(self) -> None:
        """Raise MembersChanged if another membership is asked for."""
        if self._is_outdated():
            raise MembersChanged

    def _is_outdated(self) -> bool:
        return self._membership is not None and self._segment.membership != self._membership

    def tick(self) -> int:
        """Advance this worker's counter by one tick, and return that tick."""
        self._ticks += 1
        self._words[self._mine] = self._ticks
        return self._ticks

    def wait(self, ranks: Iterable[int], timeout: float | None = None, ticks: int | None = None) -> None:
        """Wait until each of the ranks has reached a tick, by default this worker's."""
        words, until = self._words, self._until
        ticks = self._ticks if ticks is None else ticks
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

    def _wait_long(self, rank: int, timeout: float, ticks: int) -> None:
        words, at = self._words, self._theirs[rank]
        wait(
            lambda: words[at] >= ticks or self._is_outdated(),
            lambda waited: self._check_for_failure(rank, waited, timeout, ticks),
            timeout,
        )
        if words[at] < ticks:
            raise MembersChanged

    def _check_for_failure(self, rank: int, waited: float, timeout: float, ticks: int) -> None:
        if self._check is not None:
            self._check(CHECK_SECONDS)
        segment = self._segment
        pid = self._words[segment.pid_at(self._members[rank])]
        # The counter is read after the death is seen: a worker may finish its part and then leave.
        dead = self._membership is None and pid and not is_alive(pid)
        if dead and self._words[self._theirs[rank]] < ticks:
            segment.stop(StopReason.DIED, rank)
        elif waited >= timeout:
            segment.stop(StopReason.LATE, rank)
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
