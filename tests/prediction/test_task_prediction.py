"""What is known of a run's time before it runs."""

from typing import Any

import pytest
from profiles import task_on_zeros

from tenfold.prediction import task_prediction
from tenfold.workers.task import Task

NODES = {"groups": [{"count": 2, "step_seconds": 0.01}]}


def task_of(**fields: Any) -> Task:
    return task_on_zeros(32, batch_size=4, workers=2, cluster=NODES, **fields)


def test_the_order_of_workers_without_rounds_is_predicted() -> None:
    found = task_prediction.predict_task(task_of(strategy="ad-psgd"))
    assert found.exchange_times is not None
    assert found.exchange_times.shape == (8, 2)
    assert (found.exchange_times > 0).all()
    assert found.seconds >= 8 * 0.01


def test_rounds_need_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(task_prediction, "clock_events")  # the clock of single workers is not needed
    assert task_prediction.predict_task(task_of(strategy="ring")).exchange_times is None
