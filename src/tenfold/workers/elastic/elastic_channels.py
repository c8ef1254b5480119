"""The channels of a worker where lost workers are replaced: the members change during training.

The process that started the workers decides who takes part (`Roster`). When that changes, it asks for another
membership in shared memory. Every member notices this where it would wait for others, pauses, and reports how far it
has got; when all have paused, all receive the new membership and continue. So no worker uses another's weights in
between.

A round that was in progress is repeated with what each member contributed to it, unless another member has completed
it: then all had done their parts, and the result is there. (Where small groups average, members may be several rounds
apart; those behind continue without these.)

Workers that replace lost ones join between two steps. All members pass the same join points, numbered in the same way,
and so agree on one: there a partner hands over its whole state.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar

import torch
from torch import Tensor

from tenfold.mixing import Round
from tenfold.transport import SharedMemoryTransport, Transport
from tenfold.transport.memory.counters import MembersChanged
from tenfold.workers.channels import Channels, MakeRound, Result
from tenfold.workers.messages import EvaluationBegan, Handover, Joining, Membership, Paused, Ready, Welcome


@dataclass(kw_only=True)
class ElasticChannels(Channels):
    """One worker's connections to the others, which may be lost and replaced."""

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
        """Carry out a round of training among the members at its end."""
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
        """Carry out a round, unless the members change meanwhile."""
        assert isinstance(transport, SharedMemoryTransport)
        transport.check_members()
        return super().run_round(transport, make_round, [samples[member] for member in self.members])

    def repeat(self, attempt: Callable[[], Result]) -> Result:
        """Call `attempt`, which all members do together; start again whenever the members change."""
        while True:
            try:
                return attempt()
            except MembersChanged:
                self._pause()

    def begin_evaluation(self) -> None:
        """Ask that no worker joins until this evaluation has been answered."""
        self.send(EvaluationBegan())

    def reach_join_point(self, step: int, state: Callable[[], dict[str, Any]], *, epoch_begins: bool = False) -> None:
        """Let the workers that join take part from here on; their partner sends them its state.

        The join point after step s has the number 2s; that where the next epoch begins, after the evaluation, 2s + 1.
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
        """Wait until the others let this worker join, and return a partner's state."""
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
        """Return whether another membership is asked for."""
        assert isinstance(self.transport, SharedMemoryTransport)
        try:
            self.transport.check_members()
        except MembersChanged:
            return True
        return False

    def _complete(self) -> None:
        self._rounds += 1
        self._mixed = self.step

    def _pause(self) -> None:
        """Report how far this worker has got, and adopt the membership that is answered when all have reported."""
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
    """Return what the members count from: more than any has counted to in an earlier membership."""
    return (2 * membership + joined) << 32
