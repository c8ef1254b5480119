"""Decides which workers take part in rounds when some are lost and replaced; it starts and sends nothing."""

from tenfold.workers.messages import Handover, Joining, Membership, Paused, Welcome


class Roster:
    """The members of a run, the workers that wait to join, and the change of members in progress, if any."""

    def __init__(self, workers: int) -> None:
        self.members = set(range(workers))
        self.waiting: set[int] = set()
        """Workers that are ready to join."""
        self.number = 0
        """The number of the membership that is valid, or asked for."""
        self.mixed = 0
        """The last step, over the run, whose work is part of the members' weights, when the members last changed."""
        self._paused: dict[int, Paused] | None = None
        self._membership = Membership(number=0, members=tuple(range(workers)))

    @property
    def is_changing(self) -> bool:
        """Whether some members have yet to pause."""
        return self._paused is not None

    @property
    def can_change(self) -> bool:
        """Whether a worker waits to join, and no change is in progress."""
        return bool(self.waiting) and not self.is_changing and self._membership.joining is None

    def change(self) -> int:
        """Begin a change of members, and return the number of the membership to ask for."""
        if self._paused is None:
            self._paused = {}
            self.number += 1
        return self.number

    def lose(self, worker: int) -> bool:
        """Remove a worker, and return whether the others must pause: not if it had not joined yet."""
        joining = self._membership.joining
        awaited = worker in self.members or (joining is not None and worker in joining.workers)
        self.members.discard(worker)
        self.waiting.discard(worker)
        if self._paused is not None:
            self._paused.pop(worker, None)
        return awaited

    def pause(self, worker: int, paused: Paused) -> None:
        """Note that a member has paused."""
        if self._paused is not None and worker in self.members:
            self._paused[worker] = paused

    def decide(self) -> Membership | None:
        """Return the new membership when all members have paused, else None."""
        if self._paused is None or self._paused.keys() != self.members or not self.members:
            return None
        reports, self._paused = self._paused, None
        joining = None
        if self.waiting:
            point = max(report.passed for report in reports.values()) + 1
            joining = Joining(workers=tuple(sorted(self.waiting)), partner=min(self.members), point=point)
        self._membership = Membership(
            number=self.number,
            members=tuple(sorted(self.members)),
            rounds=max(report.rounds for report in reports.values()),
            joining=joining,
        )
        self.mixed = max(report.mixed for report in reports.values())
        return self._membership

    def hand_over(self, handover: Handover) -> dict[int, Welcome]:
        """Return what to send to the workers that join now; nothing if the members have changed again meanwhile."""
        membership = self._membership
        if self.is_changing or handover.membership != membership.number or membership.joining is None:
            return {}
        joined = membership.joining.workers
        self.members |= set(joined)
        self.waiting -= set(joined)
        self._membership = Membership(number=membership.number, members=tuple(sorted(self.members)))
        return dict.fromkeys(joined, Welcome(membership=membership, state=handover.state))
