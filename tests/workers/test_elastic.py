"""Who takes part when workers are lost and replaced, decided without any process."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenfold.errors import WorkerLost
from tenfold.workers.coordinator import EpochTrained, Finished
from tenfold.workers.elastic import EvaluationBegan, Handover, Membership, Paused, Ready, Replacement, Roster, Welcome


def paused(rounds: int = 0, passed: int = 0) -> Paused:
    return Paused(rounds=rounds, mixed=rounds, passed=passed)


def handover(membership: int, step: int = 7) -> Handover:
    return Handover(membership=membership, step=step, state=b"")


TRAINED = EpochTrained(epoch=0, step=8, seconds=1.0, loss=1.0, samples=8, share=None)
FINISHED = Finished(step=8, seconds=1.0, times={}, bytes_moved=0, share=None, weights=None)


class Fakes:
    """A pool, channels and a coordinator that write down what is asked of them."""

    def __init__(self, workers: int, limit: int = 3) -> None:
        self.sent: list[tuple[int, Any]] = []
        self.started: list[int] = []
        self.removed: list[int] = []
        self.asked: list[int] = []
        self.joined: list[int] = []
        pool = SimpleNamespace(
            present=range(workers),
            remove=self.removed.append,
            replace=lambda worker, joining: self.started.append(worker),
            send=lambda worker, message: self.sent.append((worker, message)),
            processes=[SimpleNamespace(pid=rank) for rank in range(workers)],
        )
        coordinator = SimpleNamespace(
            lose=lambda *_: None, note_absence=lambda *_: None, join=lambda worker, *_: self.joined.append(worker)
        )
        channels = SimpleNamespace(workers=workers, ask_for=self.asked.append)
        self.replacement = Replacement(*cast(Any, (pool, channels, coordinator)), limit)

    def lose(self, worker: int) -> None:
        self.replacement.lose(WorkerLost(worker, f"worker {worker} was killed"))

    def pause(self, *workers: int) -> None:
        for worker in workers:
            self.replacement.handle(worker, paused())


def test_the_others_continue_when_all_have_paused_and_only_then_another_starts() -> None:
    fakes = Fakes(3)
    fakes.lose(1)
    assert fakes.asked == [1]
    fakes.pause(0)
    assert (fakes.sent, fakes.started) == ([], []), "worker 2 may still read the memory of worker 1"
    fakes.pause(2)
    assert [(worker, message.members) for worker, message in fakes.sent] == [(0, (0, 2)), (2, (0, 2))]
    assert fakes.started == [1]


def test_a_new_worker_joins_at_one_place_with_the_state_of_a_partner() -> None:
    fakes = Fakes(3)
    fakes.lose(0)
    fakes.pause(1, 2)
    fakes.replacement.handle(0, Ready())
    assert fakes.replacement.invite()
    assert fakes.asked == [1, 2]
    fakes.replacement.handle(1, paused(rounds=4, passed=8))
    fakes.replacement.handle(2, paused(rounds=5, passed=10))
    membership = fakes.sent[-1][1]
    assert isinstance(membership, Membership)
    assert (membership.members, membership.rounds) == ((1, 2), 5)
    assert membership.joining is not None
    assert (membership.joining.partner, membership.joining.point) == (1, 11)
    assert not fakes.replacement.invite(), "it is on its way"
    fakes.replacement.handle(1, handover(1))
    assert not fakes.joined, "that was meant for an earlier membership"
    fakes.replacement.handle(1, handover(2))
    assert fakes.joined == [0]
    assert isinstance(fakes.sent[-1][1], Welcome)
    assert fakes.replacement.roster.members == {0, 1, 2}


def test_nobody_joins_in_the_middle_of_an_evaluation() -> None:
    fakes = Fakes(3)
    fakes.lose(0)
    fakes.pause(1, 2)
    fakes.replacement.handle(1, EvaluationBegan())
    fakes.replacement.handle(0, Ready())
    assert not fakes.replacement.invite()
    fakes.replacement.handle(2, EvaluationBegan())
    fakes.replacement.note_answer(TRAINED)
    assert fakes.asked == [1, 2], "they are asked to pause as soon as they have their answer"


def test_who_has_paused_evaluates_no_more() -> None:
    fakes = Fakes(3)
    fakes.replacement.handle(1, EvaluationBegan())
    fakes.replacement.handle(2, EvaluationBegan())
    fakes.lose(0)
    fakes.pause(1, 2)
    fakes.replacement.handle(0, Ready())
    assert fakes.replacement.invite()


def test_who_has_not_joined_when_all_have_finished_ends() -> None:
    fakes = Fakes(3)
    fakes.lose(1)
    fakes.pause(0, 2)
    fakes.removed.clear()
    fakes.replacement.note_answer(FINISHED)
    assert fakes.removed == [1]


def test_if_the_partner_is_lost_before_it_hands_over_another_does() -> None:
    fakes = Fakes(3)
    fakes.lose(0)
    fakes.pause(1, 2)
    fakes.replacement.handle(0, Ready())
    fakes.replacement.invite()
    fakes.pause(1, 2)
    fakes.lose(1)
    fakes.replacement.handle(1, handover(2))
    assert not fakes.joined
    fakes.pause(2)
    assert fakes.sent[-1][1].joining.partner == 2
    fakes.replacement.handle(2, handover(3))
    assert fakes.joined == [0]


def test_a_worker_that_is_lost_again_and_again_ends_the_run_with_its_error() -> None:
    fakes = Fakes(2, limit=2)
    for _ in range(2):
        fakes.lose(1)
        fakes.pause(0)
    with pytest.raises(WorkerLost, match=r"machine\.replacements") as lost:
        fakes.lose(1)
    assert lost.value.rank == 1


def test_an_epoch_without_a_loss_is_a_new_beginning() -> None:
    fakes = Fakes(2, limit=1)
    fakes.lose(1)
    fakes.pause(0)
    fakes.replacement.handle(1, Ready())
    fakes.replacement.invite()
    fakes.pause(0)
    fakes.replacement.handle(0, handover(2))
    fakes.replacement.note_answer(TRAINED)  # it was not there from the beginning of that epoch
    fakes.replacement.note_answer(TRAINED)
    fakes.lose(1)
    assert 1 not in fakes.replacement.roster.members  # it is replaced once more, not given up


def test_the_last_one_cannot_be_replaced() -> None:
    fakes = Fakes(2)
    fakes.lose(1)
    with pytest.raises(WorkerLost, match="worker 0 was killed"):
        fakes.lose(0)


@given(st.integers(2, 6), st.data())
def test_whatever_happens_all_members_have_the_same_membership(workers: int, data: st.DataObject) -> None:
    """Workers are lost, pause, are ready and hand over in any order; nobody is a member without the weights."""
    roster = Roster(workers)
    has_weights, told = set(range(workers)), dict.fromkeys(range(workers), 0)
    ready: set[int] = set()
    for _ in range(data.draw(st.integers(1, 40))):
        worker = data.draw(st.integers(0, workers - 1))
        what = data.draw(st.sampled_from(["lose", "ready", "pause", "hand over"]))
        if what == "lose" and len(roster.members - {worker}) > 0 and (worker in has_weights or worker in ready):
            has_weights.discard(worker)
            ready.discard(worker)
            if roster.lose(worker):
                roster.change()
        elif what == "ready" and worker not in has_weights and worker not in ready:
            ready.add(worker)
            roster.waiting.add(worker)
            if roster.can_change:
                roster.change()
        elif what == "pause" and worker in has_weights and roster.is_changing:
            roster.pause(worker, paused())
        elif what == "hand over" and worker in has_weights:
            for joined in roster.hand_over(handover(told[worker])):
                has_weights.add(joined)
                ready.discard(joined)
                told[joined] = roster.number
        if (membership := roster.decide()) is not None:
            assert set(membership.members) == has_weights
            assert all(told[member] < membership.number for member in membership.members)
            told |= dict.fromkeys(membership.members, membership.number)
        assert roster.members == has_weights
