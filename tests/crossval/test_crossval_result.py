"""The result of a cross-validation from those of its folds."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from tenfold.crossval.crossval_result import (
    Vote,
    average_weights,
    best_first,
    combine_outputs,
    combine_results,
    interval,
    output_kind,
    summarize_folds,
    summary,
)
from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment, Training
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


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def trained(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    made = network()
    for _ in range(3):
        made(torch.randn(16, 3) * (seed + 1) + seed)
    return made


def test_weights_are_averaged_by_samples() -> None:
    one, two = trained(1).state_dict(), trained(2).state_dict()
    mean = average_weights(network(), [one, two], [30, 10])
    for name in ("0.weight", "3.bias", "1.weight", "1.running_mean"):
        assert torch.allclose(mean[name], 0.75 * one[name] + 0.25 * two[name], atol=1e-6)


def test_batch_normalization_is_that_of_all_samples() -> None:
    states = [trained(seed).state_dict() for seed in range(3)]
    mean = average_weights(network(), states, [10, 10, 10])
    means = torch.stack([state["1.running_mean"] for state in states])
    variances = torch.stack([state["1.running_var"] for state in states])
    assert torch.allclose(mean["1.running_var"], variances.mean(0) + means.var(0, unbiased=False), rtol=1e-5)


def test_the_average_of_one_is_itself() -> None:
    state = trained(4).state_dict()
    mean = average_weights(network(), [state], [7])
    assert all(torch.allclose(mean[name].float(), state[name].float(), atol=1e-6) for name in state)


def test_classes_vote_with_their_probabilities() -> None:
    outputs = [torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0]])]
    together = combine_outputs(outputs, "classes")
    expected = torch.stack([output.softmax(1) for output in outputs]).mean(0)
    assert torch.allclose(together.exp(), expected)
    assert together.argmax(1).item() == 0  # one that is sure outweighs two that are not


def test_single_logits_and_numbers() -> None:
    outputs = [torch.tensor([[2.0]]), torch.tensor([[-1.0]])]
    assert torch.allclose(combine_outputs(outputs, "logit").sigmoid(), torch.stack(outputs).sigmoid().mean(0))
    assert combine_outputs(outputs, "numbers").item() == 0.5


@pytest.mark.parametrize(
    ("loss", "classes", "expected"),
    [(None, 10, "classes"), (None, None, "numbers"), ("bce", None, "logit"), ("mse", 10, "numbers")],
)
def test_what_outputs_are(loss: str | None, classes: int | None, expected: str) -> None:
    assert output_kind(Training(loss=loss), classes) == expected


def test_a_vote_is_a_network() -> None:
    members = [trained(seed).eval() for seed in range(3)]
    x = torch.randn(5, 3)
    found = Vote(members, Training(), 2)(x)
    assert torch.equal(found, combine_outputs([member(x) for member in members], "classes"))


def test_a_vote_of_probabilities_is_their_mean() -> None:
    members = [nn.Sequential(nn.Linear(3, 1), nn.Sigmoid()) for _ in range(3)]
    x = torch.randn(5, 3)
    found = Vote(members, Training(loss=nn.BCELoss()), None)(x)
    assert torch.allclose(found, torch.stack([member(x) for member in members]).mean(0))
