"""The result of a cross-validation from those of its folds."""

import math
from typing import Any

import pytest

from tenfold.crossval.combine_folds import best_first, combine_results
from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"loss": math.nan}, {"loss": 7.0}),
        ({"loss": 2.0}, {"loss": 1.0}),
        ({"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.6}),
        ({"loss": math.nan, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.5}),
    ],
)
def test_the_best_comes_first_wherever_it_stands(worse: dict[str, float], better: dict[str, float]) -> None:
    assert min([worse, better], key=best_first) is min([better, worse], key=best_first) is better


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
    ids=["side by side", "one by one", "fused"],
)
def test_seconds_are_training_time_and_evaluation_is_counted_apart(
    folds: list[dict[str, Any]], seconds: float, evaluate: float
) -> None:
    task = prepare(Experiment(model="mlp", data="digits", limit=20, folds=2, threads=1))
    entries = [{"status": "finished", "metrics": {}, "cores": one["crossval"]["cores"]} for one in folds]
    result = combine_results(task, entries, folds)
    assert result["seconds"] == seconds
    assert result["times"]["evaluate"] == evaluate
    assert result["samples_per_second"] == 100 * len(folds) / seconds
