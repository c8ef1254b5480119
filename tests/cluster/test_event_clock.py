"""Runs without rounds: the order of steps and exchanges, and who is busy when."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.cluster import ClockEvent, Cluster, Hardware, StepTime, Workload, clock_events
from tenfold.cluster.event_clock import cost_as_rounds, run_event_clock
from tenfold.mixing import STRATEGIES
from tenfold.mixing.round import CENTER, Exchange, group_round
from tenfold.mixing.strategies import EASGD, Downpour

NAMES = ["downpour", "easgd", "ad-psgd"]
law = settings(deadline=None, derandomize=True, max_examples=40)


def plan(strategy, workers, steps=4, **fields):
    return Workload(workers=workers, steps_per_epoch=steps, strategy=strategy, nbytes=10, **fields)


def hardware(means, cost=1.0, **fields):
    times = [StepTime(mean=mean) for mean in means]
    return Hardware(step_time=times, round_cost=lambda *_: 0.0, exchange_cost=lambda i, j, there, back: cost, **fields)


def uneven(workers, cost=0.05):
    step_time = StepTime(mean=1.0, between_workers=0.2, between_steps=0.3)
    return Hardware(
        step_time=[step_time] * workers,
        round_cost=lambda *_: 0.0,
        exchange_cost=lambda i, j, there, back: cost,
        start=1.0,
        evaluation=0.5,
    )


def test_the_center_serves_one_after_another_in_the_order_of_asking():
    found = list(clock_events(plan(EASGD(tau=2), 3), hardware([1.0, 1.0, 1.25])))
    exchanges = [event for event in found if event.what == "exchange"]
    assert exchanges == [
        ClockEvent(2.0, 0, 2, "exchange", -1),
        ClockEvent(3.0, 1, 2, "exchange", -1),  # asked at 2.0, too
        ClockEvent(4.0, 2, 2, "exchange", -1),  # asked at 2.5
        ClockEvent(5.0, 0, 4, "exchange", -1),
        ClockEvent(6.0, 1, 4, "exchange", -1),
        ClockEvent(7.5, 2, 4, "exchange", -1),
    ]


def test_servers_with_half_of_the_center_each_serve_twice_as_many():
    busy = [
        run_event_clock(plan(Downpour(servers=servers), 8), hardware([1.0] * 8)).times["wait"].sum()
        for servers in (1, 2, 8)
    ]
    assert busy[0] > 1.9 * busy[1] > 0
    assert busy[2] < busy[1]


def test_waiting_and_talking_are_told_apart():
    timing = run_event_clock(plan(EASGD(tau=2), 3), hardware([1.0, 1.0, 1.25], start=2.0, evaluation=0.5))
    assert timing.times["wait"].tolist() == [0.0, 1.0, 1.5]
    assert timing.times["communicate"].tolist() == [2.0, 2.0, 2.0]
    assert timing.times["compute"].tolist() == [4.0, 4.0, 5.0]
    assert timing.seconds.tolist() == [8.5]
    assert timing.total.tolist() == [11.0]
    assert timing.sent.tolist() == [40.0] * 3
    np.testing.assert_allclose(sum(timing.times.values()), 11.0)


def test_downpour_pushes_and_fetches_at_paces_of_their_own():
    asked = []

    def cost(i, j, there, back):
        asked.append((i, j, there, back))
        return 0.0

    run = Hardware(step_time=StepTime(mean=1.0), round_cost=lambda *_: 0.0, exchange_cost=cost)
    run_event_clock(plan(Downpour(n_push=2, n_fetch=3), 1, 6), run)
    assert asked == [(0, -1, 10, 0), (0, -1, 0, 10), (0, -1, 10, 0), (0, -1, 10, 10)]


@law
@given(name=st.sampled_from(NAMES), workers=st.integers(1, 6), seed=st.integers(0, 99), epochs=st.integers(1, 2))
def test_events_come_in_order_and_nobody_serves_two_at_once(name, workers, seed, epochs):
    what = plan(STRATEGIES[name](), workers, 12, epochs=epochs)
    found = list(clock_events(what, uneven(workers), seed=seed))
    assert all(item.time <= other.time for item, other in pairwise(found))
    assert found == list(clock_events(what, uneven(workers), seed=seed))
    for worker in range(workers):
        own = [event for event in found if event.worker == worker]
        assert [event.step for event in own if event.what == "step"] == list(range(1, what.steps + 1))
        due = [(step, what.strategy.exchange(worker, step, workers)) for step in range(1, what.steps + 1)]
        talks = [(event.step, event.other) for event in own if event.what == "exchange"]
        assert talks == [(step, exchange.partner) for step, exchange in due if exchange is not None]
    for who in range(-1, workers):
        busy = [event.time for event in found if event.what == "exchange" and who in (event.worker, event.other)]
        assert all(later - earlier >= 0.05 - 1e-9 for earlier, later in pairwise(busy))


@law
@given(name=st.sampled_from(NAMES), workers=st.integers(1, 6), seed=st.integers(0, 99))
def test_skipping_steps_without_exchange_changes_no_time(name, workers, seed):
    what = plan(STRATEGIES[name](), workers, 15, epochs=2, marks=(7,))
    timing = run_event_clock(what, uneven(workers), seed=seed)
    found = list(clock_events(what, uneven(workers), seed=seed))
    assert timing.total[0] >= found[-1].time
    last = max(event.time for event in found if event.step <= 15 and event.what == "step")
    assert timing.marks[15][0] == pytest.approx(last - 1.0, abs=0.06)
    assert timing.marks[7][0] == pytest.approx(max(e.time for e in found if (e.step, e.what) == (7, "step")) - 1.0)
    np.testing.assert_allclose(sum(timing.times.values()), timing.total[0])


def test_repeats_are_drawn_apart_and_again_the_same():
    what = plan(EASGD(), 3, 20)
    timing = run_event_clock(what, uneven(3), seed=5, repeats=4)
    assert len(set(timing.seconds.tolist())) == 4
    assert timing.seconds.tolist() == run_event_clock(what, uneven(3), seed=5, repeats=4).seconds.tolist()


def test_exchanges_are_priced_by_swaps_when_nothing_else_is_known():
    cost = Cluster.of(5, "1gbe").round_cost(5)
    exchange = cost_as_rounds(cost, 5)
    pair = cost(group_round(((0, 3), (1,), (2,), (4,))), 1000)
    assert exchange(3, 0, 1000, 1000) == max(pair)
    assert exchange(4, -1, 0, 1000) == max(pair)
    assert cost_as_rounds(Cluster.of(2).round_cost(2), 1)(0, -1, 8, 8) > 0


def test_the_exchanges_of_a_new_strategy_need_no_further_line():
    class Hermit(EASGD):
        name = "hermit"

        def exchange(self, rank, step, _n, /):
            return Exchange(CENTER, receives=False) if rank == 0 and step == 3 else None

    found = list(clock_events(plan(Hermit(), 2), hardware([1.0, 1.0])))
    assert [event for event in found if event.what == "exchange"] == [ClockEvent(3.0, 0, 3, "exchange", CENTER)]


def test_a_strategy_with_rounds_has_another_clock():
    with pytest.raises(TypeError, match="allreduce has rounds"):
        run_event_clock(plan(STRATEGIES["allreduce"](), 2), hardware([1.0, 1.0]))
