"""Step times of many settings, within a limited time."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment
from tenfold.mixing import STRATEGIES
from tenfold.mixing.round import exact_round
from tenfold.prediction import calibration as cost_keys
from tenfold.prediction import calibration as step_times
from tenfold.prediction import probes as burst
from tenfold.prediction.measurements import tiny_regression
from tenfold.prediction.probes import Burst, vector_experiment
from tenfold.runs.events import Span
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


def test_with_time_all_are_measured_once_and_kept(task: Task) -> None:
    for _ in range(2):
        profile, _ = step_times.measure_until(perf_counter() + 60, task, SETTINGS, print)
        assert profile.round_cost()(exact_round(4), task.metadata.nbytes) > 0
        assert profile.start_seconds(16) == pytest.approx(1.6)
    assert len(measured) == step_times.TURNS * 2 * len(SETTINGS)


RESULT = {"times": {"start": 0.5, "evaluate": 0.6, "save": 0.2}, "epochs": 2}


STEPS = 30


def spans_of(worker: int, compute: float, *, rounds: bool, late: float = 0.0, cost: float = 0.0) -> list[Span]:
    """Return spans of steps that take 1 ms of data and `compute`, with a round at every third."""
    told, now = [], 0.0

    def tell(kind, seconds):
        nonlocal now
        told.append(Span(at=now, kind=kind, seconds=seconds, worker=worker))
        now += seconds

    for step in range(1, STEPS + 1):
        tell("data", 1e-3)
        tell("compute", compute)
        if rounds and step % burst.SYNC_EVERY == 0:
            tell("wait", late * burst.SYNC_EVERY)
            tell("communicate", cost)
    return told


def test_steps_are_data_and_compute():
    found = burst.read(spans_of(0, 4e-3, rounds=False), 1, STRATEGIES["allreduce"](), RESULT)
    assert found.steps.shape == (STEPS - STEPS // burst.WARMUP_SHARE, 1)
    assert found.steps == pytest.approx(5e-3)
    assert found.round is None
    assert found.warmup == pytest.approx(0)


def test_a_round_is_timed_from_the_arrival_of_the_last():
    spans = spans_of(0, 4e-3, rounds=True, late=2e-3, cost=3e-3) + spans_of(1, 6e-3, rounds=True, cost=3e-3)
    found = burst.read(spans, 2, STRATEGIES["allreduce"](), RESULT)
    assert found.round == pytest.approx(3e-3)
    assert found.steps.mean(axis=0) == pytest.approx([5e-3, 7e-3])


def test_the_delay_of_rounds_ends_when_the_last_worker_goes_on():
    spans = spans_of(0, 4e-3, rounds=True, cost=3e-3) + spans_of(1, 4e-3, rounds=True, cost=3e-3)
    slow = [span for span in spans if span.worker and span.kind == "communicate"][4]
    spans = [span if span is not slow else replace(span, seconds=12e-3) for span in spans]
    found = burst.read(spans, 2, STRATEGIES["allreduce"](), RESULT)
    assert found.round == pytest.approx(3e-3)
    assert found.delay == pytest.approx(3e-3 + 9e-3 / 9)  # the first of ten rounds does not count


def test_a_burst_has_no_more_steps_than_asked_for():
    experiment = vector_experiment(4096, workers=2)
    for steps in (12, 100, 149):
        task = burst.burst_task(experiment, tiny_regression(), steps, None)
        assert steps - burst.SYNC_EVERY < task.steps_per_epoch * task.experiment.training.epochs <= steps


def test_a_burst_evaluates_once_an_epoch_and_ends_at_no_target():
    experiment = vector_experiment(4096, evaluate_every=0.01, target=1e9)
    task = burst.burst_task(experiment, tiny_regression(), 30, None)
    assert not task.evaluation_steps
    assert task.experiment.training.target is None


def test_neighbors_are_all_that_a_worker_waits_for():
    strategy = STRATEGIES["ring"]()
    spans = [span for rank in range(5) for span in spans_of(rank, 4e-3, rounds=True, cost=1e-3)]
    assert burst.read(spans, 5, strategy, RESULT).round == pytest.approx(1e-3)


def test_what_a_round_adds_to_steps_counts_as_its_price():
    spans = [
        Span(at=span.at, kind=span.kind, seconds=span.seconds + extra, worker=span.worker)
        for worker in range(2)
        for span, extra in with_extra(spans_of(worker, 4e-3, rounds=True, cost=3e-3))
    ]
    found = burst.read(spans, 2, STRATEGIES["allreduce"](), RESULT)
    assert found.round == pytest.approx(3e-3 + 1e-3)
    assert found.steps == pytest.approx(5e-3)


def with_extra(spans):
    """Let the step after a round take 1 ms more."""
    step = -1
    for span in spans:
        step += span.kind == "data"
        yield span, 1e-3 if span.kind == "compute" and step % burst.SYNC_EVERY == 0 else 0.0


def test_first_steps_are_kept_apart():
    spans = spans_of(0, 4e-3, rounds=False)
    first = Span(at=0.0, kind="compute", seconds=24e-3)
    found = burst.read([spans[0], first, *spans[2:]], 1, STRATEGIES["none"](), RESULT)
    assert found.warmup == pytest.approx(20e-3)
    assert found.steps.max() == pytest.approx(5e-3)


def test_a_slower_worker_is_not_taken_for_cold():
    spans = spans_of(0, 4e-3, rounds=False) + spans_of(1, 6e-3, rounds=False)
    assert burst.read(spans, 2, STRATEGIES["none"](), RESULT).warmup == pytest.approx(0)
