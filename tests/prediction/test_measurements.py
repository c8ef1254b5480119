from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from profiles import made_profile

from tenfold.data import Splits, Tensors
from tenfold.experiment import Experiment
from tenfold.prediction import calibration as cost_keys
from tenfold.prediction import measurements as fit
from tenfold.prediction import task_prediction as current_speed
from tenfold.prediction.measurements import Step
from tenfold.prediction.profile import Profile
from tenfold.prediction.task_prediction import predict_from_profile
from tenfold.workers.task import Resolved, Task

seconds = st.floats(1e-7, 1e-1)


class TestLine:
    @given(seconds, st.floats(1e-12, 1e-8))
    def test_latency_and_rate_come_back_from_exact_points(self, latency: float, rate: float) -> None:
        sizes = [1e3, 1e5, 1e7]
        found = fit.fit_line(sizes, [latency + rate * size for size in sizes])
        assert [found(size) for size in sizes] == pytest.approx([latency + rate * size for size in sizes], rel=1e-4)
        assert found.residual < 1e-4

    def test_noise_is_kept_as_the_residual(self) -> None:
        generator = np.random.default_rng(0)
        sizes = np.geomspace(1e3, 1e8, 200)
        noisy = (1e-4 + 1e-9 * sizes) * np.exp(0.05 * generator.standard_normal(200))
        found = fit.fit_line(sizes, noisy)
        assert found.intercept == pytest.approx(1e-4, rel=0.03)
        assert found.slope == pytest.approx(1e-9, rel=0.03)
        assert found.residual == pytest.approx(0.05, rel=0.2)

    @given(st.lists(seconds, min_size=3, max_size=3))
    def test_neither_number_is_below_zero(self, measured: list[float]) -> None:
        found = fit.fit_line([1.0, 2.0, 3.0], measured)
        assert found.intercept >= 0
        assert found.slope >= 0

    def test_one_point_gives_a_rate_alone(self) -> None:
        assert fit.fit_line([64], [0.64]) == fit.Line(0.0, 0.01)

    def test_seconds_must_be_above_zero(self) -> None:
        with pytest.raises(ValueError, match="y > 0"):
            fit.fit_line([1.0, 2.0], [1.0, 0.0])


class TestInterpolate:
    @given(st.lists(seconds, min_size=4, max_size=4))
    def test_it_passes_through_what_was_measured(self, measured: list[float]) -> None:
        sizes = [8.0, 1.0, 4.0, 2.0]
        found = [fit.interpolate(size, sizes, measured) for size in sizes]
        assert found == pytest.approx(measured)

    def test_a_power_law_is_a_straight_line(self) -> None:
        assert fit.interpolate(4, [2, 8], [2**0.5, 8**0.5]) == pytest.approx(2)

    def test_beyond_the_ends_nothing_changes(self) -> None:
        assert fit.interpolate(100, [1, 2], [3, 4]) == pytest.approx(4)


class TestSpread:
    def test_the_factors_of_workers_and_steps_come_back(self) -> None:
        generator = np.random.default_rng(1)
        workers = np.exp(0.1 * generator.standard_normal(400))
        bursts = [3e-3 * workers * np.exp(0.2 * generator.standard_normal((100, 400))) for _ in range(3)]
        found = fit.burst_statistics(bursts)
        assert found["mean"] == pytest.approx(3e-3 * workers.mean() * np.exp(0.02), rel=0.01)
        assert found["between_workers"] == pytest.approx(0.1, rel=0.1)
        assert found["between_steps"] == pytest.approx(0.2, rel=0.05)

    def test_chance_alone_makes_no_slow_worker(self) -> None:
        generator = np.random.default_rng(2)
        found = fit.burst_statistics([np.exp(0.3 * generator.standard_normal((50, 300)))])
        assert found["between_workers"] < 0.02

    def test_one_disturbed_burst_does_not_move_the_level(self) -> None:
        calm, disturbed = np.full((20, 2), 1e-3), np.full((20, 2), 5e-3)
        found = fit.burst_statistics([calm, disturbed, calm])
        assert found["mean"] == pytest.approx(1e-3)
        assert found["standard_error"] > 0.5


@pytest.fixture
def task() -> Task:
    part = Tensors(torch.zeros(640, 3), torch.zeros(640, 1))
    splits = Splits(name="zeros", train=part, shape=(3,), classes=None, outputs=1)
    return Task.of(Resolved.of(Experiment(model="mlp", hidden=[4], epochs=2)), splits, 1)


def profile_for(task: Task) -> Profile:
    return made_profile(cost_keys.step_key(task.experiment, task.splits))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Lets steps take `mean` seconds now, and counts how often they are timed."""
    seen: dict[str, Any] = {"count": 0, "mean": 1e-3, "delay": None, "running": 0.0}

    def burst(_experiment: Experiment, _splits: Splits, _setting: tuple[int, int, int], steps: int) -> Any:
        seen.setdefault("bursts", []).append(steps)
        seen["steps"] = seen["bursts"][0]
        return SimpleNamespace(delay=seen["delay"], steps=[None] * min(steps, seen.get("most", steps)))

    def entry(work: str, setting: tuple[int, int, int], _: Any) -> Step:
        seen["count"] += 1
        batch_size, threads, workers = setting
        mean = seen["means"].pop(0) if "means" in seen else seen["mean"]
        return Step(work=work, batch_size=batch_size, threads=threads, workers=workers, mean=mean)

    monkeypatch.setattr(current_speed, "step_burst", burst)
    monkeypatch.setattr(current_speed, "running_elsewhere", lambda: seen["running"])
    monkeypatch.setattr(current_speed, "step_entry", entry)
    monkeypatch.setattr(current_speed, "_seen", {})
    return seen


def test_a_machine_half_as_fast_takes_twice_as_long(task: Task, timed: dict[str, Any]) -> None:
    profile, timed["mean"] = profile_for(task), 2e-3
    now, speed = current_speed.profile_now(task, profile)
    assert speed == pytest.approx(0.5)
    before, after = (predict_from_profile(task, item) for item in (profile, now))
    assert after.seconds == pytest.approx(2 * before.seconds)
    assert after.times["save"] == pytest.approx(2 * before.times["save"])


def test_rounds_are_slowed_by_what_they_themselves_take(task: Task, timed: dict[str, Any]) -> None:
    """On a busy machine a worker that waits may go on late: rounds are delayed by more than steps are."""
    four = replace(task, resolved=task.resolved.replace(workers=4, batch_size=64, sync_every=1))
    profile, timed["mean"], timed["delay"] = profile_for(task), 4e-3, 0.03
    now, speed = current_speed.profile_now(four, profile)
    assert speed == pytest.approx(0.5)
    before, after = (predict_from_profile(four, item) for item in (profile, now))
    rounds = four.steps_per_epoch * four.experiment.training.epochs
    assert after.times["communicate"] == pytest.approx(rounds * 0.03, rel=0.01)
    assert before.times["communicate"].max() < rounds * 0.003


def test_differences_as_between_runs_widen_the_interval_and_move_nothing(task: Task, timed: dict[str, Any]) -> None:
    profile = profile_for(task)
    before = predict_from_profile(task, profile)
    widths = []
    for mean in (1.001e-3, 1.07e-3, 0.93e-3):
        timed["mean"] = mean
        current_speed._seen.clear()
        now, speed = current_speed.profile_now(task, profile, spread=0.08)
        found = predict_from_profile(task, now)
        assert (speed, found.seconds) == (1.0, before.seconds)
        widths.append(found.interval[1] / found.interval[0])
    assert widths[0] < 1.01 < 1.15 < min(widths[1:])


@pytest.mark.parametrize(("means", "speed"), [((0.8e-3, 1.01e-3), 1.0), ((2e-3, 1.6e-3), 1 / 1.6), ((2e-3, 3e-3), 0.5)])
def test_a_change_counts_where_two_probes_agree_and_the_smaller_one_does(
    means: tuple[float, float], speed: float, task: Task, timed: dict[str, Any]
) -> None:
    timed["means"] = list(means)
    assert current_speed.profile_now(task, profile_for(task))[1] == pytest.approx(speed)
    assert timed["count"] == 2


def test_a_slowed_profile_prices_rounds_alike() -> None:
    profile = made_profile()
    one, other = profile.averaging[2], profile.slowed(3.0).averaging[2]
    for nbytes in (100, 10_000, 10_000_000):
        assert other.cost(nbytes) == pytest.approx(3 * one.cost(nbytes))
