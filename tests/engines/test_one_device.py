"""Several workers that step together on one device, here the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_contract import EngineContract
from engine_models import LAWFUL, SMALL, Numbered, train
from looped import looped
from threaded import Threads, make_task
from torch import nn

import tenfold
from tenfold.data import SubsetPart, Tensors
from tenfold.engines import Outcome
from tenfold.engines.one_device import train_replicas, train_together, with_numbers
from tenfold.engines.processes import Serial
from tenfold.errors import Diverged, ExperimentError, ModelError, TenfoldError, TrainingError
from tenfold.mixing import STRATEGIES
from tenfold.runs import checkpoint
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import EpochEnded, Event, Lifecycle, Metric, Span, Stopwatch
from tenfold.workers.task import Task, make_network

FUSED: dict[str, Any] = {"engine": "one-device", "workers": 3, "strategy": "ring", "sync_every": 2, "stacking": "loop"}


class TestFused(EngineContract):
    fields: dict[str, Any] = FUSED

    def test_every_worker_tells_where_its_time_goes(self, whole: tenfold.Run, events: list[Event]) -> None:
        """They step together, so the first tells for all."""
        kinds = {event.kind for event in events if isinstance(event, Span)}
        assert {"compute", "evaluate"} <= kinds

    def test_a_model_that_does_not_fit_the_data_is_a_sentence(self) -> None:
        with pytest.raises(ModelError, match="RuntimeError"):
            self.train(model=lambda: torch.nn.Linear(3, 2), hidden=None, batchnorm=None, dropout=None)
        assert tenfold.open_run().status == "failed"


def test_more_workers_than_cores_share_the_device() -> None:
    run = train(**LAWFUL | {"engine": "one-device", "workers": 16, "epochs": 1})
    assert run.result["workers"] == 16
    assert run.metadata["shards"]["once"]


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
        {"optimizer": "muon", "optimizer_state": "average", "sync_every": 2},
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


class RefusesLarge(nn.Module):
    """Fails to train on a sample with a large number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and x.max() > 1000:
            raise RuntimeError("too large")
        return self.layer(x.flatten(1))  # type: ignore[no-any-return]


def test_a_step_that_fails_ends_all_that_take_it() -> None:
    some = tasks(model=RefusesLarge, hidden=None, stacking="loop")[:2]
    only_in_first = some[1].splits.validation.indices[-1]  # type: ignore[union-attr]
    some[0].splits.train.part.x[only_in_first] = 2000.0  # type: ignore[attr-defined]
    outcomes, _ = together(some)
    assert [type(outcome) for outcome in outcomes] == [ModelError, ModelError]


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


SYNCHRONOUS = [name for name in STRATEGIES if not STRATEGIES[name].asynchronous]


ROWS: dict[str, Any] = SMALL | {"limit": 70, "epochs": 2, "batch_size": 6, "schedule": "cosine", "hidden": [8]}


NORMALISED = {"batchnorm": True}


UNEQUAL = {"shards": "fractions", "fractions": [0.6, 0.3, 0.1]}


GRADIENTS = {"average": "gradients"}


ONE_BIT = {"compression": "1bit", "compression_options": {"column": 64}}


TOP = {"compression": "topk", "compression_options": {"fraction": 0.3}}


INT8 = {"compression": "int8", "compression_options": {"block": 48}}


CONVOLUTIONAL = {"model": "lenet5", "hidden": None}


"""Its channels are last, so the order of its numbers in memory is another than when they are sent."""


def half_frozen() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 10))
    network[3].requires_grad_(False)
    return network


FROZEN = {"model": half_frozen, "hidden": None}


def stacked(task: Task, events: list[Event] | None = None) -> Outcome:
    return train_replicas(task, Stopwatch(), (events if events is not None else []).append)


def agree(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("compressed", [ONE_BIT, TOP, INT8], ids=lambda fields: fields["compression"])
def test_what_is_frozen_stays_whatever_the_compression(compressed: dict[str, Any]) -> None:
    task = make_task(**ROWS | FROZEN | compressed, workers=3, stacking="loop")
    begun = make_network(task).state_dict()["3.weight"]
    for weights in (Threads(task).train().weights, stacked(task).weights):
        torch.testing.assert_close(weights["3.weight"], begun, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "fields",
    [
        *({"strategy": strategy, **NORMALISED} for strategy in SYNCHRONOUS),
        {"sync_every": 3, "local_after": 4, **NORMALISED},
        {"sync_every": "epoch", "epochs": 2},
        {"outer": "bmuf"},
        {"outer": "slowmo", "sync_every": 2},
        {"compression": "int8"},
        {"compression": "bf16", "strategy": "ring"},
        GRADIENTS,
        GRADIENTS | UNEQUAL,
        *(GRADIENTS | compressed for compressed in (ONE_BIT, TOP, INT8)),
        GRADIENTS | TOP | UNEQUAL,
        GRADIENTS | ONE_BIT | FROZEN | {"clip": 0.5},
        ONE_BIT | FROZEN,
        *(CONVOLUTIONAL | INT8 | {"average": average} for average in ("gradients", "weights")),
        {"optimizer": "adam", "optimizer_state": "average", "strategy": "butterfly"},
        {"optimizer": "muon", "optimizer_state": "average", "strategy": "butterfly"},
        {"optimizer_state": "reset"},
        {"ema": 0.9, "evaluate_every": 0.5, **NORMALISED},
        {"accumulate": 4},
        {"accumulate": 2, **GRADIENTS, **NORMALISED},
        {**UNEQUAL, **NORMALISED},
        {**UNEQUAL, "clip": 0.5, "lr_scaling": "sqrt", "strategy": "hopping-ring"},
    ],
    ids=lambda fields: "-".join(str(value) for value in fields.values() if isinstance(value, (str, int))),
)
def test_nodes_learn_what_workers_learn(fields: dict[str, Any]) -> None:
    threads = Threads(make_task(**ROWS | fields, workers=3)).train()

    @looped("way", ["loop", "vmap"])
    def check(way: str) -> None:
        events: list[Event] = []
        outcome = stacked(make_task(**ROWS | fields, workers=3, stacking=way), events)
        assert_as_threads(outcome, events, threads)

    check()


def assert_as_threads(outcome: Outcome, events: list[Event], threads: Threads) -> None:
    agree(outcome.weights, threads.weights)
    expected = threads.coordinator.result
    assert outcome.result.keys() == expected.keys()
    for key in ("part", "epochs", "steps", "samples", "workers", "stopped_early", "bytes_moved"):
        assert outcome.result[key] == expected[key]
    for name in ("loss", "lr", "epoch_loss", "epoch_accuracy"):
        curves = [
            [
                (item.step, item.value)
                for item in some
                if isinstance(item, Metric) and item.name == name and item.part == "train"
            ]
            for some in (events, sorted(threads.events, key=lambda one: one.at))
        ]
        assert len(curves[0]) == len(curves[1]) > 0
        for ours, theirs in zip(*curves, strict=True):
            assert ours[0] == theirs[0]
            assert ours[1] == pytest.approx(theirs[1], rel=1e-3)
    spreads = [
        {(item.worker, item.step): item.value for item in some if isinstance(item, Metric) and item.name == "spread"}
        for some in (events, threads.events)
    ]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.02, abs=1e-6)


def test_what_happened_is_told() -> None:
    events: list[Event] = []
    outcome = stacked(make_task(**ROWS, workers=3), events)
    stages = [event for event in events if isinstance(event, Lifecycle)]
    assert [stage.stage for stage in stages] == ["started", "note", "epoch", "epoch"]
    assert stages[1].text.startswith("3 replicas step together by ")
    spans = {event.kind for event in events if isinstance(event, Span)}
    assert spans == {"start", "compute", "evaluate", "save"}
    assert outcome.result["seconds"] == pytest.approx(outcome.result["times"]["compute"])


def test_training_stops_early_and_keeps_the_best() -> None:
    fields = ROWS | {"epochs": 12, "patience": 1, "lr": 1.0, "workers": 2, "stacking": "loop"}
    task = make_task(**fields)
    outcome, threads = stacked(task), Threads(task).train()
    assert outcome.result["stopped_early"]
    assert outcome.result["best_epoch"] == threads.coordinator.result["best_epoch"]
    agree(outcome.weights, threads.weights)


@pytest.mark.parametrize("mixed", [INT8 | {"outer": "bmuf"}, GRADIENTS | TOP], ids=["weights", "gradients"])
def test_it_goes_on_from_a_checkpoint(mixed: dict[str, Any], tmp_path: Path) -> None:
    fields = ROWS | mixed | {"workers": 3, "optimizer": "adam", "epochs": 3, "stacking": "loop"}
    whole = stacked(make_task(**fields))

    class Stop(Exception):  # noqa: N818
        pass

    def interrupt(event: Event) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 2:
            raise Stop

    task = make_task(tmp_path, **fields)
    with pytest.raises(Stop):
        train_replicas(task, Stopwatch(), interrupt)
    manifest = checkpoint.find_undamaged(tmp_path)[0]
    assert manifest is not None
    assert manifest["epoch"] == 2
    wrong = make_task(tmp_path, **fields | {"hidden": [9]})
    with pytest.raises(ModelError, match="checkpoint"):
        train_replicas(wrong, Stopwatch(), lambda _: None, Resumption(tmp_path, manifest))
    resumed = train_replicas(task, Stopwatch(), lambda _: None, Resumption(tmp_path, manifest))
    assert all(torch.equal(resumed.weights[name], tensor) for name, tensor in whole.weights.items())
    assert resumed.result["metrics"] == whole.result["metrics"]


def test_what_cannot_be_done_is_said() -> None:
    with pytest.raises(ExperimentError, match="lbfgs"):
        stacked(make_task(**ROWS | {"optimizer": "lbfgs", "workers": 2}))
    with pytest.raises(ExperimentError, match="read sample by sample"):
        stacked(make_task(**ROWS | {"data": Numbered(40)}, workers=2))
    with pytest.raises(ModelError, match="RuntimeError"):
        stacked(make_task(**ROWS | {"model": lambda: nn.Linear(3, 2), "hidden": None}, workers=2))
    with pytest.raises(TrainingError, match=r"the loss became (nan|inf) before step"):
        stacked(make_task(**ROWS | {"lr": 1e30}, workers=2))


@pytest.mark.parametrize("way", ["loop", "vmap"])
def test_many_nodes_learn(way: str) -> None:
    task = make_task(**ROWS | {"limit": 400, "workers": 40, "epochs": 12, "lr": 0.3, "hidden": [16], "stacking": way})
    assert stacked(task).result["metrics"]["accuracy"] > 0.5


def test_a_task_is_left_as_it_was() -> None:
    task = make_task(**ROWS, workers=2, stacking="vmap")
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first, second = stacked(task), stacked(replace(task))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(first.weights[name], tensor) for name, tensor in second.weights.items())
