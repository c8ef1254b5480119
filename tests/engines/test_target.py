"""Training stops when the evaluation part reaches the target, and says after how many seconds."""

from typing import Any

import pytest
import torch
from engine_models import SMALL, same, train

from tenfold.engines.one_device import train_replicas
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.runs.events import Stopwatch
from tenfold.workers.task import Resolved

DIGITS: dict[str, Any] = {"model": "mlp", "data": "digits", "epochs": 6, "batch_size": 32, "limit": 400}
VIRTUAL = {"engine": "virtual", "cluster": {"groups": [{"count": 4, "step_seconds": 0.01, "link": "1gbe"}]}}
ENGINES: list[dict[str, Any]] = [
    {"engine": "serial"},
    {"engine": "processes", "workers": 2},
    VIRTUAL | {"workers": 2},
]


def wrong(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) != targets).float().mean()


@pytest.mark.parametrize(
    "metrics", [["perplexity"], {"error": wrong}, {"my_perplexity": wrong}], ids=["perplexity", "error", "own"]
)
def test_an_error_metric_does_not_reach_its_target_from_above(metrics: Any) -> None:
    run = train(**DIGITS | {"epochs": 1}, metrics=metrics, target=1e-6)
    (value,) = (value for name, value in run.metrics.items() if name != "loss")
    assert value > 1e-6
    assert run.seconds_to_target is None
    reached = train(**DIGITS | {"epochs": 1}, metrics=metrics, target=1e6)
    assert reached.seconds_to_target is not None


def test_the_direction_of_your_own_metric_is_asked_for_where_a_target_needs_it() -> None:
    fields = DIGITS | {"epochs": 1, "metrics": {"closeness": wrong}}
    with pytest.raises(ExperimentError, match="lower_is_better"):
        train(**fields, target=1e-6)
    assert train(**fields, target=1e-6, lower_is_better=False).seconds_to_target is not None
    assert train(**fields, target=1e-6, lower_is_better=True).seconds_to_target is None
    with pytest.raises(ExperimentError, match="accuracy"):
        train(**DIGITS, target=0.9, lower_is_better=True)
    assert "closeness" in train(**fields).metrics


@pytest.mark.parametrize("fields", ENGINES, ids=lambda fields: fields["engine"])
def test_training_stops_in_the_middle_of_an_epoch(fields: dict[str, Any]) -> None:
    run = train(**DIGITS | fields, target=0.8, evaluate_every=0.25)
    per_epoch = 13 if run.result["workers"] == 1 else 7
    assert run.result["stopped_early"]
    assert run.result["steps"] == run.result["steps_to_target"] < 6 * per_epoch
    assert run.result["steps"] % per_epoch in {round(quarter * per_epoch / 4) for quarter in range(4)}
    assert run.accuracy is not None
    assert run.accuracy >= 0.8
    assert run.seconds_to_target == run.seconds
    assert run.result["samples"] < 6 * 400
    before = [metric for metric in run.measurements() if metric.name == "accuracy"][:-2]
    assert all(metric.value < 0.8 for metric in before)


@pytest.mark.parametrize("fields", ENGINES, ids=lambda fields: fields["engine"])
def test_a_target_that_is_not_reached_changes_nothing(fields: dict[str, Any]) -> None:
    plain, aiming = train(**DIGITS | fields), train(**DIGITS | fields, target=1.0)
    assert same(plain.model.state_dict(), aiming.model.state_dict())
    assert aiming.seconds_to_target is None
    assert not aiming.result["stopped_early"]


def test_evaluating_more_often_costs_no_training_time_and_changes_no_weights() -> None:
    plain, often = train(**DIGITS, dropout=0.2), train(**DIGITS, dropout=0.2, evaluate_every=0.1)
    assert same(plain.model.state_dict(), often.model.state_dict())
    measured = [metric.step for metric in often.measurements() if metric.name == "accuracy"]
    assert len(measured) == 60
    assert measured == sorted(measured)
    task = prepare(Resolved.of(Experiment(**DIGITS, evaluate_every=1e-12)))
    assert task.evaluation_steps == set(range(1, 13))


def test_twins_stop_at_the_same_step() -> None:
    shared = DIGITS | {"workers": 2, "target": 0.85, "evaluate_every": 0.5}
    real, virtual = train(**shared, engine="processes"), train(**shared | VIRTUAL)
    assert real.result["steps_to_target"] == virtual.result["steps_to_target"]
    assert same(real.model.state_dict(), virtual.model.state_dict())
    assert virtual.seconds_to_target == pytest.approx(virtual.result["steps"] * 0.01, rel=0.2)


def test_fused_replicas_stop_as_workers_do() -> None:
    fields = DIGITS | {
        "average": "weights",
        "workers": 2,
        "target": 0.85,
        "evaluate_every": 0.5,
        "stacking": "loop",
        "threads": 1,
    }
    outcome = train_replicas(
        prepare(Resolved.of(Experiment(**fields, oversubscribe=True))), Stopwatch(), lambda _: None
    )
    real = train(**fields, engine="processes")
    assert outcome.result["steps_to_target"] == real.result["steps_to_target"]
    for name, tensor in real.model.state_dict().items():
        torch.testing.assert_close(outcome.weights[name], tensor, rtol=1e-3, atol=1e-4)


def test_asynchronous_workers_are_evaluated_after_epochs_only() -> None:
    with pytest.raises(ExperimentError, match="evaluate_every must be 1"):
        train(**SMALL, workers=2, strategy="easgd", evaluate_every=0.5)
