"""Independent tasks side by side on one device learn what each learns alone."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import SMALL, Numbered
from threaded import Threads, make_task

from tenfold.data import SubsetPart, Tensors
from tenfold.engines import Outcome
from tenfold.engines.one_device import train_together, with_numbers
from tenfold.engines.serial import Serial
from tenfold.errors import Diverged, ExperimentError, ModelError, TenfoldError
from tenfold.runs import Event, Lifecycle, Metric, Span, Stopwatch
from tenfold.workers.task import Task

FEW: dict[str, Any] = SMALL | {"limit": 100, "epochs": 2, "batch_size": 8, "schedule": "cosine", "hidden": [8]}
FOLDS = 3


def tasks(**fields: Any) -> list[Task]:
    whole = make_task(**FEW | fields)
    parts = np.array_split(np.random.default_rng(0).permutation(len(whole.splits.train)), FOLDS)
    picked = [(np.sort(np.concatenate(parts[:i] + parts[i + 1 :])), np.sort(parts[i])) for i in range(FOLDS)]
    train = whole.splits.train
    splits = [replace(whole.splits, train=SubsetPart(train, a), validation=SubsetPart(train, b)) for a, b in picked]
    return [replace(whole, splits=split) for split in splits]


def together(some: list[Task]) -> tuple[list[Outcome | TenfoldError], list[list[Event]]]:
    events: list[list[Event]] = [[] for _ in some]
    return train_together(some, Stopwatch(), [event.append for event in events]), events


@pytest.mark.parametrize("way", ["loop", "vmap"])
@pytest.mark.parametrize(
    "fields",
    [
        {"batchnorm": True},
        {"optimizer": "adam", "clip": 1.0},
        {"batch_size": 11},
        {"epochs": 9, "patience": 1, "lr": 0.8},
        {"ema": 0.9, "evaluate_every": 0.5},
    ],
)
def test_folds_learn_what_each_learns_alone(fields: dict[str, Any], way: str) -> None:
    some = tasks(**fields, stacking=way)
    outcomes, events = together(some)
    for task, outcome, told in zip(some, outcomes, events, strict=True):
        assert isinstance(outcome, Outcome)
        alone: list[Event] = []
        expected = Serial().run(task, Stopwatch(), alone.append)
        for name, tensor in expected.weights.items():
            torch.testing.assert_close(outcome.weights[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
        assert outcome.outputs is not None
        torch.testing.assert_close(outcome.outputs, expected.outputs, rtol=1e-3, atol=1e-3)
        for key in ("part", "epochs", "steps", "samples", "workers", "best_epoch", "stopped_early"):
            assert outcome.result[key] == expected.result[key], key
        assert outcome.result["metrics"] == pytest.approx(expected.result["metrics"], rel=1e-3)
        assert outcome.result.keys() == expected.result.keys()
        names = [{(item.part, item.name) for item in some if isinstance(item, Metric)} for some in (told, alone)]
        assert names[0] == names[1]
        assert [item.stage for item in told if isinstance(item, Lifecycle)].count("epoch") == expected.result["epochs"]


@pytest.mark.parametrize(
    "fields",
    [
        {"batchnorm": True, "strategy": "ring", "stacking": "vmap"},
        {"average": "gradients", "sync_every": None},
        {"sync_every": "epoch", "optimizer_state": "reset", "patience": 1, "lr": 0.8},
        {"outer": "bmuf", "compression": "int8", "sync_every": 2},
    ],
)
def test_the_nodes_of_a_fold_average_as_its_workers_would(fields: dict[str, Any]) -> None:
    some = tasks(**{"stacking": "loop", "workers": 2, "batch_size": 7} | fields)  # as many steps in each fold
    outcomes, _ = together(some)
    for task, outcome in zip(some, outcomes, strict=True):
        assert isinstance(outcome, Outcome)
        expected = Threads(task).train()
        for name, tensor in expected.weights.items():
            torch.testing.assert_close(outcome.weights[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
        for key in ("part", "epochs", "steps", "samples", "workers", "bytes_moved", "stopped_early"):
            assert outcome.result[key] == expected.coordinator.result[key], key
        assert outcome.result["metrics"] == pytest.approx(expected.coordinator.result["metrics"], rel=1e-3)


def test_a_loop_draws_what_each_would_draw_alone() -> None:
    some = tasks(dropout=0.5, momentum=0.0, stacking="loop")
    outcomes, _ = together(some)
    for task, outcome in zip(some, outcomes, strict=True):
        assert isinstance(outcome, Outcome)
        expected = Serial().run(task, Stopwatch(), lambda _: None)
        for name, tensor in expected.weights.items():
            torch.testing.assert_close(outcome.weights[name], tensor, rtol=1e-4, atol=1e-5)


def test_a_fold_that_fails_does_not_stop_the_others() -> None:
    some = tasks()
    x = some[0].splits.train.part.x  # type: ignore[attr-defined]
    only_first = set(some[0].splits.train.indices.tolist())  # type: ignore[attr-defined]
    for other in some[1:]:
        only_first &= set(other.splits.validation.indices.tolist())  # type: ignore[union-attr]
    assert not only_first
    spared = some[0].splits.validation.indices  # type: ignore[union-attr]
    x[spared] = float("nan")
    outcomes, events = together(some)
    assert [type(outcome) for outcome in outcomes] == [Outcome, Diverged, Diverged]
    assert "the loss is nan already in the first step" in str(outcomes[1])
    assert any(isinstance(event, Span) for event in events[1])


def test_a_test_part_that_cannot_be_measured_fails_its_fold_alone() -> None:
    some = tasks()
    test = some[1].splits.test
    assert isinstance(test, Tensors)
    odd = replace(some[1].splits, test=Tensors(test.x, test.y.new_full((len(test), 3), 0)))
    some[1] = replace(some[1], splits=odd)
    outcomes, _ = together(some)
    assert [type(outcome) for outcome in outcomes] == [Outcome, ModelError, Outcome]


@pytest.mark.parametrize("way", ["loop", "vmap"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop", "muon"])
def test_tasks_with_numbers_of_their_own_learn_what_each_learns_alone(optimizer: str, way: str) -> None:
    whole = make_task(**FEW | {"optimizer": optimizer, "stacking": way, "nesterov": optimizer in ("sgd", "muon")})
    numbers: list[dict[str, Any]] = [
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0},
        {"lr": 0.01, "momentum": 0.5, "weight_decay": 0.1},
        {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.01, "seed": 7},
    ]
    some = [with_numbers(whole, whole.experiment.replace(**own)) for own in numbers]
    outcomes, events = together(some)
    for task, outcome, told in zip(some, outcomes, events, strict=True):
        assert isinstance(outcome, Outcome)
        alone: list[Event] = []
        expected = Serial().run(task, Stopwatch(), alone.append)
        for name, tensor in expected.weights.items():
            torch.testing.assert_close(outcome.weights[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
        rates = [
            [item.value for item in heard if isinstance(item, Metric) and item.name == "lr"] for heard in (told, alone)
        ]
        assert rates[0] == pytest.approx(rates[1])


def test_tasks_must_fit_together() -> None:
    with pytest.raises(ExperimentError, match="from one data set"):
        together([tasks()[0], tasks()[1]])
    some = tasks()
    other = replace(some[1], resolved=some[1].resolved.replace(clip=0.3))
    with pytest.raises(ExperimentError, match="the same settings"):
        together([some[0], other])
    with pytest.raises(ExperimentError, match="read sample by sample"):
        together(tasks(data=Numbered(40)))
