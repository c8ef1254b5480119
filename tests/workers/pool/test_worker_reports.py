"""When a worker has made no progress for too long."""

import pytest

from tenfold.transport.memory.shared_arrays import SharedFloats
from tenfold.workers.pool import worker_reports as module
from tenfold.workers.pool.worker_reports import StallWatch, WorkerProgress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def two() -> list[WorkerProgress]:
    floats = SharedFloats(10)
    return [WorkerProgress(floats, place) for place in range(2)]


def step(workers: list[WorkerProgress], clock: Clock, seconds: float, count: int = 4) -> None:
    for _ in range(count):
        clock.now += seconds
        for worker in workers:
            worker.mark()


def test_workers_that_publish_nothing_are_not_watched(two: list[WorkerProgress]) -> None:
    assert StallWatch(two, 1).find_stalled(1e9) == {}


def test_the_limit_follows_the_longest_step(two: list[WorkerProgress], clock: Clock) -> None:
    watch = StallWatch(two, None)
    step(two, clock, 0.1)
    assert watch.find_stalled(clock.now + 59) == {}
    assert watch.find_stalled(clock.now + 61) == {0: 60, 1: 60}
    step(two, clock, 10)
    assert watch.find_stalled(clock.now + 199) == {}
    assert watch.find_stalled(clock.now + 201).keys() == {0, 1}


def test_the_first_steps_may_take_longer(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 30, count=2)
    assert StallWatch(two, None).find_stalled(clock.now + 599) == {}
    assert StallWatch(two, None).find_stalled(clock.now + 601) == {0: 600, 1: 600}
    assert StallWatch(two, 3).find_stalled(clock.now + 4) == {0: 3, 1: 3}


def test_startup_and_saving_may_take_longer(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    with two[0].allow_more_time():
        two[1].mark_waiting()
        assert StallWatch(two, 3).find_stalled(clock.now + 40) == {1: 3}
        assert StallWatch(two[:1], None).find_stalled(clock.now + 599) == {}
        clock.now += 100
    assert StallWatch(two[:1], None).find_stalled(clock.now + 59) == {}
    assert StallWatch(two[:1], None).find_stalled(clock.now + 61) == {0: 60}


def test_who_waits_for_others_is_not_stalled(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    clock.now += 100
    two[1].mark_waiting()
    assert StallWatch(two, None).find_stalled(clock.now) == {0: 60}


def test_time_in_which_the_parent_was_held_up_does_not_count(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    watch = StallWatch(two, 3)
    watch.restart(clock.now + 100)
    assert watch.find_stalled(clock.now + 102) == {}
    assert watch.find_stalled(clock.now + 104) == {0: 3, 1: 3}


def test_another_worker_begins_anew(two: list[WorkerProgress], clock: Clock) -> None:
    step(two, clock, 0.1)
    two[0].clear()
    assert StallWatch(two, 3).find_stalled(clock.now + 4) == {1: 3}


class ClearedWhenRead(WorkerProgress):
    """A worker that ends its fold, and forgets its progress, right after somebody looked at it."""

    def get(self, field: int) -> float:
        found = super().get(field)
        self.clear()
        return found


def test_a_worker_that_clears_its_progress_meanwhile_is_not_stalled(clock: Clock) -> None:
    worker = ClearedWhenRead(SharedFloats(5), 0)
    worker.mark()
    assert StallWatch([worker], None).find_stalled(clock.now + 1) == {}
