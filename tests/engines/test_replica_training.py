"""Replicas as rows of one matrix do what replicas with workers of their own do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import SMALL, Numbered
from looped import looped
from threaded import Threads, make_task
from torch import nn

from tenfold.engines import Outcome
from tenfold.engines.one_device import train_replicas
from tenfold.errors import ExperimentError, ModelError, TrainingError
from tenfold.mixing import STRATEGIES
from tenfold.runs import EpochEnded, Event, Lifecycle, Metric, Span, Stopwatch, checkpoint
from tenfold.runs.checkpoint import Resumption
from tenfold.workers.task import Task, make_network

SYNCHRONOUS = [name for name in STRATEGIES if not STRATEGIES[name].asynchronous]
FEW: dict[str, Any] = SMALL | {"limit": 70, "epochs": 2, "batch_size": 6, "schedule": "cosine", "hidden": [8]}
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
    task = make_task(**FEW | FROZEN | compressed, workers=3, stacking="loop")
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
    threads = Threads(make_task(**FEW | fields, workers=3)).train()

    @looped("way", ["loop", "vmap"])
    def check(way: str) -> None:
        events: list[Event] = []
        outcome = stacked(make_task(**FEW | fields, workers=3, stacking=way), events)
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
    outcome = stacked(make_task(**FEW, workers=3), events)
    stages = [event for event in events if isinstance(event, Lifecycle)]
    assert [stage.stage for stage in stages] == ["started", "note", "epoch", "epoch"]
    assert stages[1].text.startswith("3 replicas step together by ")
    spans = {event.kind for event in events if isinstance(event, Span)}
    assert spans == {"start", "compute", "evaluate", "save"}
    assert outcome.result["seconds"] == pytest.approx(outcome.result["times"]["compute"])


def test_training_stops_early_and_keeps_the_best() -> None:
    fields = FEW | {"epochs": 12, "patience": 1, "lr": 1.0, "workers": 2, "stacking": "loop"}
    task = make_task(**fields)
    outcome, threads = stacked(task), Threads(task).train()
    assert outcome.result["stopped_early"]
    assert outcome.result["best_epoch"] == threads.coordinator.result["best_epoch"]
    agree(outcome.weights, threads.weights)


@pytest.mark.parametrize("mixed", [INT8 | {"outer": "bmuf"}, GRADIENTS | TOP], ids=["weights", "gradients"])
def test_it_goes_on_from_a_checkpoint(mixed: dict[str, Any], tmp_path: Path) -> None:
    fields = FEW | mixed | {"workers": 3, "optimizer": "adam", "epochs": 3, "stacking": "loop"}
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
        stacked(make_task(**FEW | {"optimizer": "lbfgs", "workers": 2}))
    with pytest.raises(ExperimentError, match="read sample by sample"):
        stacked(make_task(**FEW | {"data": Numbered(40)}, workers=2))
    with pytest.raises(ModelError, match="RuntimeError"):
        stacked(make_task(**FEW | {"model": lambda: nn.Linear(3, 2), "hidden": None}, workers=2))
    with pytest.raises(TrainingError, match=r"the loss became (nan|inf) before step"):
        stacked(make_task(**FEW | {"lr": 1e30}, workers=2))


@pytest.mark.parametrize("way", ["loop", "vmap"])
def test_many_nodes_learn(way: str) -> None:
    task = make_task(**FEW | {"limit": 400, "workers": 40, "epochs": 12, "lr": 0.3, "hidden": [16], "stacking": way})
    assert stacked(task).result["metrics"]["accuracy"] > 0.5


def test_a_task_is_left_as_it_was() -> None:
    task = make_task(**FEW, workers=2, stacking="vmap")
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    first, second = stacked(task), stacked(replace(task))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(first.weights[name], tensor) for name, tensor in second.weights.items())
