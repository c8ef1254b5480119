"""Step times of many settings, within a limited time."""

from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment
from tenfold.mixing.round import exact_round
from tenfold.prediction import calibration as cost_keys
from tenfold.prediction import calibration as measure_machine
from tenfold.prediction import calibration as step_times
from tenfold.prediction.probes import Burst
from tenfold.workers.task import Resolved, Task

SETTINGS = [(16, 1), (1, 1), (8, 2), (4, 4), (2, 8), (1, 16)]
"""Threads and workers of a machine with 16 cores."""
measured: list[tuple[int, int, int]] = []


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Task:
    measured.clear()

    def burst(_experiment: Experiment, _splits: Any, setting: tuple[int, int, int], _steps: int) -> Burst:
        measured.append(setting)
        size, threads, workers = setting
        steps = np.full((10, workers), 1e-3 + 1e-4 * size / threads)
        rounds = 2e-4 * workers if workers > 1 else None
        return Burst(steps=steps, warmup=0.0, round=rounds, start=0.1 * workers, evaluate=0.01, evaluated=8, save=0.0)

    monkeypatch.setattr(step_times, "step_burst", burst)
    monkeypatch.setenv("TENFOLD_PROFILE", str(tmp_path / "profile.toml"))
    return prepare(Resolved.of(Experiment(model="mlp", data="digits", limit=100)))


def test_without_time_the_extremes_are_measured_and_the_rest_is_interpolated(task: Task, tmp_path: Path) -> None:
    profile, seen = step_times.measure_until(perf_counter(), task, SETTINGS, print)
    assert [setting[1:] for setting in measured] == [(16, 1), (1, 16)]
    assert seen == {(16, 1), (1, 16)}
    name, size = cost_keys.work_of(task)
    means = [profile.step_time(name, size, threads, workers).mean for threads, workers in SETTINGS]
    assert means[0] < means[3] < means[5]
    assert profile.round_cost()(exact_round(4), task.metadata.nbytes) > 0
    assert profile.start_seconds(16) == pytest.approx(1.6)
    assert not (tmp_path / "profile.toml").exists()


def test_the_share_that_workers_divide_is_measured_and_kept(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_machine, "measure_orthogonalization_share", lambda _: 0.4)
    wide = Resolved.of(
        Experiment(model="mlp", data="digits", limit=100, hidden=[2048, 2048], optimizer="muon", workers=2)
    )
    divided = Task.of(wide, task.splits, threads=2)
    name, size = cost_keys.work_of(divided)
    for settings, share in (([(2, 1)], {}), (SETTINGS, {name: {size: 0.4}}), ([(2, 1)], {name: {size: 0.4}})):
        profile, _ = step_times.measure_until(perf_counter() + 60, divided, settings, print)
        assert profile.costs.orthogonalization == share


def test_with_time_all_are_measured_once_and_kept(task: Task) -> None:
    for _ in range(2):
        profile, _ = step_times.measure_until(perf_counter() + 60, task, SETTINGS, print)
        assert profile.round_cost()(exact_round(4), task.metadata.nbytes) > 0
        assert profile.start_seconds(16) == pytest.approx(1.6)
    assert len(measured) == step_times.TURNS * 2 * len(SETTINGS)


def test_the_built_in_networks_for_images_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def note(known: Any, experiment: Experiment, *_: Any, **__: Any) -> Any:
        measured.append(str(experiment.model.name))
        return known

    monkeypatch.setattr(measure_machine, "measure_rounds", lambda known, *_, **__: known)
    monkeypatch.setattr(measure_machine, "_with_steps", note)
    measure_machine.measure_all(quick=True)
    assert measured == ["lenet5", "cnn", "mlp"]
