"""How many epochs a run should have."""

from typing import Any

import pytest

from tenfold.prediction.planning import learning_curve as epoch_choice
from tenfold.prediction.planning.learning_curve import Goal, Point, fit_curves

EPOCH = 1000


def listed(*gaps: float, **options: Any) -> list[epoch_choice.Schedule]:
    """Return the schedules of a setting that left these gaps after two epochs, where 0.1 is the goal."""
    curve = fit_curves({0: [Point(2 * EPOCH, gap, 0.06) for gap in gaps]})[0]
    return epoch_choice.schedules(curve, Goal(0.1, EPOCH, 0.06), float, **options)


def test_a_schedule_that_nearly_always_reaches_the_target_takes_its_own_seconds() -> None:
    best = epoch_choice.choose_best(listed(0.08, 0.08, 0.08))
    assert best is not None
    assert (best.epochs, best.expected) == (2, pytest.approx(2, abs=0.05))


def test_a_miss_costs_its_seconds_and_another_run() -> None:
    seen = [Point(epochs * EPOCH, 0.1 * (epochs / 2) ** -0.8, 0.01) for epochs in (1, 2, 4) for _ in range(20)]
    even = epoch_choice.schedules(fit_curves({0: seen})[0], Goal(0.1, EPOCH, 0.06), float)[1]
    assert even.probability == pytest.approx(0.5, abs=0.05)
    assert even.expected == pytest.approx(2 + 0.5 * 3, abs=0.2)


@pytest.mark.parametrize(("gap", "epochs"), [(0.093, 2), (0.1, 3)])
def test_an_epoch_more_is_worth_it_where_misses_are_frequent(gap: float, epochs: int) -> None:
    best = epoch_choice.choose_best(listed(gap, gap, gap))
    assert best is not None
    assert best.epochs == epochs


def test_a_little_optimism_tries_fewer_epochs() -> None:
    sober, hopeful = (epoch_choice.choose_next(listed(0.11, optimism=optimism)) for optimism in (0.0, 2.0))
    assert sober is not None
    assert hopeful is not None
    assert hopeful.epochs < sober.epochs


def test_a_run_that_reaches_the_target_stops_there() -> None:
    best = epoch_choice.choose_best(listed(0.08, 0.08, 0.08, stop=0.75))
    assert best is not None
    assert (best.epochs, best.expected) == (2, pytest.approx(1.5, abs=0.05))


def test_schedules_that_missed_are_not_among_them_even_if_the_curve_is_sure_of_them() -> None:
    assert [entry.epochs for entry in listed(0.02, 0.02, 0.02)] == [1]
    assert [entry.epochs for entry in listed(0.02, 0.02, 0.02, more_than=3)] == [4]


def test_a_target_too_far_away_has_no_schedule() -> None:
    assert listed(0.9) == []
    assert epoch_choice.choose_best([]) is None
    assert epoch_choice.choose_next([]) is None
