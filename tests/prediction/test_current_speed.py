"""Predictions on a machine that is slower than when it was calibrated."""

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from profiles import made_profile

from tenfold.data import Splits, Tensors
from tenfold.experiment import Experiment
from tenfold.prediction import calibration as cost_keys
from tenfold.prediction import task_prediction as current_speed
from tenfold.prediction.measurements import Step
from tenfold.prediction.profile import Profile
from tenfold.prediction.task_prediction import predict_from_profile
from tenfold.workers.task import Resolved, Task


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


def test_a_probe_has_fewer_steps_on_a_busy_machine(
    task: Task, timed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    current_speed.profile_now(task, profile_for(task))
    assert timed["steps"] == 1000
    monkeypatch.setattr(current_speed, "_seen", {})
    timed["running"] = 3.0  # four in all, for two cores
    timed["bursts"].clear()
    current_speed.profile_now(task, profile_for(task))
    assert timed["steps"] == 500


def test_a_probe_of_short_steps_has_several_bursts_within_its_time(
    task: Task, timed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    timed["most"] = 400
    current_speed.profile_now(task, profile_for(task))
    assert timed["bursts"] == [1000, 600, 200]
    monkeypatch.setattr(current_speed, "_seen", {})
    monkeypatch.setattr(current_speed, "LONGEST", 0.0)
    timed["bursts"].clear()
    current_speed.profile_now(task, profile_for(task))
    assert timed["bursts"] == [1000]


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


def test_a_probe_holds_for_a_while(task: Task, timed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    profile = profile_for(task)
    told: list[str] = []
    for _ in range(2):
        current_speed.profile_now(task, profile, told.append)
    assert timed["count"] == len(told) == 1
    monkeypatch.setattr(current_speed, "VALID_SECONDS", 0.0)
    current_speed.profile_now(task, profile)
    assert timed["count"] == 2


def test_a_slowed_profile_prices_rounds_alike() -> None:
    profile = made_profile()
    one, other = profile.averaging[2], profile.slowed(3.0).averaging[2]
    for nbytes in (100, 10_000, 10_000_000):
        assert other.cost(nbytes) == pytest.approx(3 * one.cost(nbytes))
