"""The result of a cross-validation from those of its folds."""

import math
from functools import partial
from typing import Any

import pytest

from tenfold.crossval.crossval_result import best_first, combine_results, interval, summarize_folds, summary
from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment
from tenfold.workers.task import Resolved

# By hand: the mean of 0.90, 0.92, 0.94, 0.96, 0.98 is 0.94; the squared deviations add up to 0.0040, so that
# s = sqrt(0.0040 / 4) = 0.0316228; t(0.975, 4) = 2.776445; the reach is 2.776445 * 0.0316228 / sqrt(5) = 0.0392649.
FIVE = [0.90, 0.92, 0.94, 0.96, 0.98]


@pytest.mark.parametrize(
    ("metric", "lower", "worse", "better"),
    [
        ("loss", True, {"loss": math.nan}, {"loss": 7.0}),
        ("loss", True, {"loss": 2.0}, {"loss": 1.0}),
        ("accuracy", False, {"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.6}),
        ("accuracy", False, {"loss": math.nan, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.5}),
        ("f1", False, {"loss": 1.0, "f1": 0.5, "accuracy": 0.9}, {"loss": 2.0, "f1": 0.6, "accuracy": 0.8}),
        ("rmse", True, {"loss": 1.0, "rmse": 0.5}, {"loss": 2.0, "rmse": 0.4}),
        ("rmse", True, {"loss": 1.0, "rmse": math.nan}, {"loss": 2.0, "rmse": 0.4}),
    ],
)
def test_the_best_comes_first_wherever_it_stands(
    metric: str, lower: bool, worse: dict[str, float], better: dict[str, float]
) -> None:
    key = partial(best_first, metric=metric, lower=lower)
    assert min([worse, better], key=key) is min([better, worse], key=key) is better


def fold(began: float, cores: list[int], seconds: float, evaluate: float) -> dict[str, Any]:
    about = {"began": began, "cores": cores}
    times = {"compute": seconds, "evaluate": evaluate}
    numbers = {"epochs": 1, "steps": 10, "samples": 100, "bytes_moved": 0, "stopped_early": False}
    return {"crossval": about, "seconds": seconds, "times": times, **numbers}


@pytest.mark.parametrize(
    ("folds", "seconds", "evaluate"),
    [
        ([fold(0, [0], 2, 5), fold(0.1, [1], 3, 5), fold(7, [0], 2, 5)], 4, (10 + 5) / 2),
        ([fold(0, [0, 1], 2, 1), fold(3, [0, 1], 3, 1)], 5, 2),
        ([fold(0, [0], 4, 1), fold(0, [0], 4, 1)], 4, 1),
    ],
    ids=["side by side", "one by one", "stacked"],
)
def test_seconds_are_training_time_and_evaluation_is_counted_apart(
    folds: list[dict[str, Any]], seconds: float, evaluate: float
) -> None:
    task = prepare(Resolved.of(Experiment(model="mlp", data="digits", limit=20, folds=2, threads=1)))
    entries = [{"status": "finished", "metrics": {}, "cores": fold["crossval"]["cores"]} for fold in folds]
    result = combine_results(task, entries, folds)
    assert result["seconds"] == seconds
    assert result["times"]["evaluate"] == evaluate
    assert result["samples_per_second"] == 100 * len(folds) / seconds


def test_five_folds_by_hand() -> None:
    found = summary(FIVE)
    assert found["mean"] == pytest.approx(0.94)
    assert found["std"] == pytest.approx(0.0316228, abs=1e-7)
    assert found["low"] == pytest.approx(0.94 - 0.0392649, abs=1e-6)
    assert found["high"] == pytest.approx(0.94 + 0.0392649, abs=1e-6)


def test_other_levels() -> None:
    low, high = interval(FIVE, 0.99) or (math.nan, math.nan)
    assert (high - low) / 2 == pytest.approx(4.604095 * 0.0316228 / math.sqrt(5), abs=1e-6)  # t(0.995, 4)


def test_one_value_says_nothing_of_its_spread() -> None:
    assert interval([0.9]) is None
    assert summary([0.9]) == {"mean": 0.9, "std": None, "low": None, "high": None}


def test_folds_that_failed_do_not_count() -> None:
    def ended(status: str, accuracy: float) -> dict[str, object]:
        return {"status": status, "metrics": {"train": {}, "validation": {"accuracy": accuracy}, "test": {}}}

    found = summarize_folds([ended("finished", 0.8), ended("failed", 0.1), ended("finished", 0.9)])
    assert found["validation"]["accuracy"]["mean"] == pytest.approx(0.85)
    assert found["train"] == found["test"] == {}
