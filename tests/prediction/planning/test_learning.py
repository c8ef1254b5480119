"""Learning curves through the results of short runs."""

import math
import random
from typing import Any

import pytest

from tenfold.prediction.planning import learning as epoch_choice
from tenfold.prediction.planning.learning import Goal, Point, effective_samples, fit_curves, noise_factor


def points(height: float, slope: float, samples: list[int], error: float = 0.05) -> list[Point]:
    return [Point(seen, height * seen**-slope, error) for seen in samples]


def test_lines_of_one_slope_are_found_and_extended() -> None:
    seen = [1000, 2000, 4000, 8000, 16000]
    found = fit_curves({0: points(3.0, 0.7, seen), 1: points(5.0, 0.7, seen)})
    for key, height in ((0, 3.0), (1, 5.0)):
        assert found[key].gap(32000) == pytest.approx(height * 32000**-0.7, rel=0.03)
        assert found[key].samples_to(height * 20000**-0.7) == pytest.approx(20000, rel=0.05)


def test_a_single_point_has_the_slope_that_is_assumed() -> None:
    curve = fit_curves({7: [Point(1000, 0.1, 0.1)]})[7]
    assert curve.gap(4000) == pytest.approx(0.05)
    assert curve.error(4000) > curve.error(1000)


def test_settings_share_what_they_know_about_the_slope() -> None:
    seen = [1000, 2000, 4000, 8000]
    curves = fit_curves({0: points(3.0, 0.9, seen, 0.01), 1: points(5.0, 0.9, [1000])})
    assert curves[1].slope == pytest.approx(0.9, abs=0.05)


def test_a_run_of_few_large_steps_catches_up_when_it_is_longer() -> None:
    def seen(batch: int, samples: list[int]) -> list[Point]:
        return [Point(sample, 3.0 * effective_samples(sample, batch) ** -0.7, 0.01, batch) for sample in samples]

    small, large = fit_curves({8: seen(8, [8000, 16000, 32000, 64000]), 128: seen(128, [8000, 16000])}).values()
    assert large.gap(8000) == pytest.approx(2 * small.gap(8000), rel=0.05)
    assert large.gap(800_000) == pytest.approx(small.gap(800_000), rel=0.05)
    assert large.gap(large.samples_to(0.001)) == pytest.approx(0.001)


def test_errors_grow_beyond_the_longest_run() -> None:
    curve = fit_curves({0: points(3.0, 0.5, [1000, 2000, 4000])})[0]
    assert curve.error(4000) < curve.error(16000) < curve.error(256000)
    assert curve.own_error(16000) < curve.error(16000)


def test_more_seeds_make_a_curve_more_certain() -> None:
    once, often = (fit_curves({0: [Point(4000, 0.1, 0.08)] * seeds})[0] for seeds in (1, 4))
    assert often.error(4000) == pytest.approx(once.error(4000) / 2)


def test_the_noise_of_equal_runs_is_what_was_seen_once_many_were() -> None:
    random.seed(2)
    groups = [[Point(1000, 0.1 * math.exp(random.gauss(0, 0.12)), 0.06) for _ in range(3)] for _ in range(100)]
    assert noise_factor([]) == noise_factor([groups[0][:1]]) == 1
    assert noise_factor(groups) == pytest.approx(2, rel=0.1)


def test_the_stated_error_holds_for_noisy_points() -> None:
    random.seed(1)
    inside = 0
    for _ in range(200):
        noisy = [
            Point(seen, 2.0 * seen**-0.6 * math.exp(random.gauss(0, 0.08)), 0.08) for seen in (1000, 2000, 4000, 8000)
        ]
        curve = fit_curves({0: noisy})[0]
        inside += abs(math.log(curve.gap(16000)) - math.log(2.0 * 16000**-0.6)) < 1.64 * curve.error(16000)
    assert inside >= 180


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
