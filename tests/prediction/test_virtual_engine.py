"""What a virtual cluster says of time and memory."""

import dataclasses
from typing import Any

import pytest
import torch
from threaded import make_task

from tenfold.cluster.time_prediction import TimePrediction
from tenfold.machine import cores
from tenfold.prediction.task_prediction import predict_task
from tenfold.prediction.virtual_engine import PredictedEvents, describe_division, free_memory, replica_bytes
from tenfold.runs.events import Event, Metric

CLUSTER = {"groups": [{"count": 9, "step_seconds": 0.01, "link": "1gbe"}], "stragglers": {"transient": 0.2}}
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [4], "limit": 60, "epochs": 6, "workers": 3}


def test_a_run_that_stops_early_takes_the_time_of_the_epochs_it_had() -> None:
    task = make_task(**SMALL, engine="virtual", cluster=CLUSTER)
    prediction: TimePrediction = predict_task(task)
    prediction = dataclasses.replace(prediction, times={**prediction.times, "start": prediction.times["wait"] * 0 + 5})
    heard: list[Event] = []
    told = PredictedEvents(task, prediction, 0.0, heard.append)
    whole, early = told.result({"epochs": 6, "samples": 6 * 60}), told.result({"epochs": 2, "samples": 2 * 60})
    assert whole["seconds"] == prediction.seconds
    told(Metric(at=0.0, name="loss", value=1.0, part="train", step=2 * task.steps_per_epoch, epoch=1, seconds=0.0))
    (last,) = heard
    assert isinstance(last, Metric)
    assert early["seconds"] == pytest.approx(last.seconds)
    assert early["interval"][0] < early["seconds"] < early["interval"][1] < whole["interval"][1]
    assert early["times"]["compute"] < whole["times"]["compute"]
    assert early["times"]["start"] == whole["times"]["start"] == 5
    assert early["samples_per_second"] * early["seconds"] == pytest.approx(2 * 60)


def test_a_container_has_only_its_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "memory_left", lambda: None)
    whole = free_memory(torch.device("cpu"))
    monkeypatch.setattr(cores, "memory_left", lambda: 1000)
    assert free_memory(torch.device("cpu")) == 1000 < whole


def test_dividing_the_model_is_advised_where_the_replicas_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(**SMALL)
    for copies, divides in ((4, False), (3, True)):
        monkeypatch.setattr(cores, "memory_left", lambda copies=copies: copies * replica_bytes(task))
        assert ("parallel.divide" in describe_division(task, 4)) == divides


def test_replicas_on_a_gpu_need_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenfold.prediction.virtual_engine.left_on_gpu", lambda device: 7.5)
    assert free_memory(torch.device("cuda")) == 7
