"""Elastic training: lost workers are replaced while the others continue."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from tenfold.errors import WorkerLost
from tenfold.mixing import Round
from tenfold.transport import SharedMemoryTransport, Transport
from tenfold.transport.shared_memory import MembersChanged
from tenfold.workers.channels import Channels, MakeRound, Result, SharedChannels
from tenfold.workers.coordinator import Coordinator, EpochTrained, Finished, Message
from tenfold.workers.pool import WorkerPool

# Messages in addition to those of `coordinator.py`, sent when the members change.


@dataclass(frozen=True, kw_only=True)
class Paused:
    """This worker has paused because the members change, and reports its position."""

    rounds: int
    """How many rounds of its training it has completed."""
    mixed: int
    """The last step, over the run, whose work is part of such a round."""
    passed: int
    """The last join point that it has passed, see `ElasticChannels.reach_join_point`."""


@dataclass(frozen=True, kw_only=True)
class EvaluationBegan:
    """This worker begins an evaluation, which must be repeated if others join before it ends."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """This worker replaces a lost one, and waits for its weights."""


@dataclass(frozen=True, kw_only=True)
class Handover:
    """A member's state, for joining workers."""

    membership: int
    step: int
    """The last step that the state includes, over the run."""
    state: bytes


@dataclass(frozen=True, kw_only=True)
class Joining:
    """The joining workers; they join at the first join point with a number of at least `point`."""

    workers: tuple[int, ...]
    partner: int
    """The member whose state they copy."""
    point: int


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The current members: the workers that take part from now on."""

    number: int
    members: tuple[int, ...]
    rounds: int = 0
    """How many rounds the furthest of them has completed; the others do not take part in these any more."""
    joining: Joining | None = None


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """The state for a joining worker: the membership, and a partner's replica."""

    membership: Membership
    state: bytes


class Roster:
    """The members of a run, the workers waiting to join, and the membership change in progress, if any."""

    def __init__(self, workers: int) -> None:
        self.members = set(range(workers))
        self.waiting: set[int] = set()
        """Workers that are ready to join."""
        self.number = 0
        """The number of the membership that is valid, or requested."""
        self.mixed = 0
        """The last step, over the run, whose work is part of the members' weights, when the members last changed."""
        self._paused: dict[int, Paused] | None = None
        self._membership = Membership(number=0, members=tuple(range(workers)))

    @property
    def is_changing(self) -> bool:
        """Whether some members have not paused yet."""
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
        if self._paused is not None and worker in self.members:
            self._paused[worker] = paused

    def decide(self) -> Membership | None:
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
        """Return the messages for the joining workers; none if the members have changed again."""
        membership = self._membership
        if self.is_changing or handover.membership != membership.number or membership.joining is None:
            return {}
        joined = membership.joining.workers
        self.members |= set(joined)
        self.waiting -= set(joined)
        self._membership = Membership(number=membership.number, members=tuple(sorted(self.members)))
        return dict.fromkeys(joined, Welcome(membership=membership, state=handover.state))


# The channels of a worker where lost workers are replaced: the members change during training.
#
# The process that started the workers keeps the list of members (`Roster`). To change it, it requests a new membership
# in shared memory. Every member notices the request whenever it waits for others, pauses, and reports its position;
# when all have paused, all receive the new membership and continue. No worker uses another's weights in between.
#
# A round in progress is repeated with the same contributions, unless some member has completed it: then all members
# had contributed, and the result exists. (When small groups average, members may be several rounds apart; those
# behind skip these rounds.)
#
# Replacements join between two steps. All members pass the same numbered join points, so they agree on one; there a
# partner sends the new worker its whole state.


@dataclass(kw_only=True)
class ElasticChannels(Channels):
    """One worker's connections to others that may be lost and replaced."""

    is_elastic: ClassVar[bool] = True
    number: int
    """The number of this worker."""
    members: tuple[int, ...]
    """The numbers of the workers that take part; the position of each is its rank."""
    ask: Callable[[Any], Any]
    """Sends a message to the process that started the workers, and returns the answer."""
    send: Callable[[Any], None]
    """Sends a message that is not answered."""
    _rounds: int = 0
    _mixed: int = 0
    _passed: int = 0
    _completed_by_others: int = 0
    _joining: Joining | None = None
    _membership: int = 0
    _brought: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._regroup(self.members, 0, 0)

    def run_round(self, transport: Transport, make_round: MakeRound, samples: Sequence[float]) -> Round:
        if self._rounds < self._completed_by_others:
            self._complete()
            return make_round(transport.size)
        brought = self._brought.setdefault(id(transport), torch.empty_like(transport.buffer))
        brought.copy_(transport.buffer)
        while True:
            round_ = make_round(transport.size)
            try:
                self.try_round(transport, lambda _, same=round_: same, samples)  # type: ignore[misc]
                break
            except MembersChanged:
                self._pause()
                completed = self._rounds < self._completed_by_others
                if not (completed and round_.is_exact):
                    transport.buffer.copy_(brought)
                if completed:
                    break
        self._complete()
        return round_

    def try_round(self, transport: Transport, make_round: MakeRound, samples: Sequence[float]) -> Round:
        assert isinstance(transport, SharedMemoryTransport)
        if transport.is_outdated:
            raise MembersChanged
        return super().run_round(transport, make_round, [samples[member] for member in self.members])

    def repeat(self, attempt: Callable[[], Result]) -> Result:
        while True:
            try:
                return attempt()
            except MembersChanged:
                self._pause()

    def begin_evaluation(self) -> None:
        self.send(EvaluationBegan())

    def reach_join_point(self, step: int, state: Callable[[], dict[str, Any]], *, epoch_begins: bool = False) -> None:
        """Let joining workers take part from here on; their partner sends them its state.

        The join point after step s has the number 2s; if an epoch ends there, the one after its evaluation has 2s + 1.
        """
        point = 2 * step + epoch_begins
        self._passed, joining = point, self._joining
        if joining is None or point < joining.point:
            return
        self._joining = None
        self._regroup(_joined(self.members, joining), self._membership, _first_tick(self._membership, joined=True))
        if joining.partner == self.number:
            own = {"rounds": self._rounds, "mixed": self._mixed, "passed": point}
            content = io.BytesIO()
            torch.save(state() | {"channels": own}, content)
            self.send(Handover(membership=self._membership, step=step, state=content.getvalue()))

    def join(self) -> dict[str, Any]:
        """Wait until this worker may join, and return a partner's state."""
        welcome = self.ask(Ready())
        assert isinstance(welcome, Welcome)
        state: dict[str, Any] = torch.load(io.BytesIO(welcome.state), weights_only=True)
        own, membership = state["channels"], welcome.membership
        self._rounds, self._mixed, self._passed = own["rounds"], own["mixed"], own["passed"]
        assert membership.joining is not None
        members = _joined(membership.members, membership.joining)
        self._regroup(members, membership.number, _first_tick(membership.number, joined=True))
        return state

    def is_outdated(self) -> bool:
        assert isinstance(self.transport, SharedMemoryTransport)
        return self.transport.is_outdated

    def _complete(self) -> None:
        self._rounds += 1
        self._mixed = self.step

    def _pause(self) -> None:
        """Report this worker's position, and adopt the new membership, which arrives when all have reported."""
        began = perf_counter()
        membership = self.ask(Paused(rounds=self._rounds, mixed=self._mixed, passed=self._passed))
        self.transport.wait_seconds += perf_counter() - began
        assert isinstance(membership, Membership)
        self._completed_by_others, self._joining = membership.rounds, membership.joining
        self._regroup(membership.members, membership.number, _first_tick(membership.number, joined=False))

    def _regroup(self, members: tuple[int, ...], number: int, ticks: int) -> None:
        self.members, self._membership = members, number
        for transport in (self.transport, self.gradient_transport):
            assert isinstance(transport, SharedMemoryTransport)
            transport.regroup(members, number, ticks)


def _joined(members: Sequence[int], joining: Joining) -> tuple[int, ...]:
    return tuple(sorted({*members, *joining.workers}))


def _first_tick(membership: int, *, joined: bool) -> int:
    """Return the first tick of a membership; it is larger than all ticks of earlier ones."""
    return (2 * membership + joined) << 32


class Replacement:
    """Pauses the members of a run when one is lost, starts a new process in its place, and lets it join.

    The others do not wait for the new process to start; it joins when it is ready.
    """

    def __init__(self, pool: WorkerPool, channels: SharedChannels, coordinator: Coordinator, limit: int) -> None:
        """`limit` is how often a worker of the pool may be replaced before it completes an epoch."""
        self.roster = Roster(channels.workers)
        self._pool = pool
        self._channels = channels
        self._coordinator = coordinator
        self._limit = limit
        self._to_start: set[int] = set()
        self._evaluating: set[int] = set()
        """Members in an evaluation that would be repeated if others joined now."""
        self._losses = dict.fromkeys(range(channels.workers), 0)
        """How often each worker was lost since it last completed an epoch."""
        self._since_epoch_began = set(range(channels.workers))

    def lose(self, lost: WorkerLost) -> None:
        """Let the others continue without a worker; raise its error if it was lost too often or none remains."""
        worker = lost.rank
        self._losses[worker] += 1
        self._since_epoch_began.discard(worker)
        if self._losses[worker] > self._limit:
            raise WorkerLost(
                worker,
                f"{lost}; worker {worker} was lost {self._losses[worker]} times without completing an epoch, "
                f"and machine.replacements = {self._limit}",
            )
        was_member = worker in self.roster.members
        if was_member and len(self.roster.members) == 1:
            raise lost
        self._pool.remove(worker)  # from here on it cannot change the shared memory
        self._evaluating.discard(worker)
        awaited = self.roster.lose(worker)
        self._to_start.add(worker)
        if was_member:
            self._coordinator.lose(lost, sorted(self.roster.members))
        if awaited:
            self._channels.ask_for(self.roster.change())
        self._proceed()

    def handle(self, worker: int, message: Any) -> bool:
        """Handle a message about the members; return False for other messages that still need an answer."""
        if isinstance(message, Paused):
            self._evaluating.discard(worker)
            self.roster.pause(worker, message)
        elif isinstance(message, EvaluationBegan):
            self._evaluating.add(worker)
        elif isinstance(message, Ready):
            self.roster.waiting.add(worker)
        elif isinstance(message, Handover):
            for joined, welcome in self.roster.hand_over(message).items():
                self._pool.send(joined, welcome)
                self._coordinator.join(joined, message.step, self._pool.processes[joined].pid)
        else:
            return self.roster.is_changing  # its sender has not noticed the change yet, and will send it again
        self._proceed()
        return True

    def invite(self) -> bool:
        """Make the members pause for workers waiting to join, unless they evaluate; return whether they pause."""
        if self._evaluating or not self.roster.can_change:
            return False
        self._channels.ask_for(self.roster.change())
        return True

    def note_answer(self, message: Message) -> None:
        """Record that a message was answered: the evaluation is over, and others may join."""
        self._evaluating.clear()
        if isinstance(message, Finished):
            for worker in set(self._pool.present) - self.roster.members:
                self._pool.remove(worker)
            return
        if isinstance(message, EpochTrained):
            # completing an epoch resets a worker's count of losses
            self._losses |= dict.fromkeys(self._since_epoch_began, 0)
            self._since_epoch_began = set(self.roster.members)
        self.invite()

    def _proceed(self) -> None:
        """Send the new membership when all members have paused; only then may others use a lost worker's memory."""
        if (membership := self.roster.decide()) is not None:
            self._coordinator.note_absence(self.roster.mixed)
            for member in membership.members:
                self._pool.send(member, membership)
        if not self.roster.is_changing:
            for worker in sorted(self._to_start):
                self._pool.replace(worker, joining=True)
            self._to_start.clear()
