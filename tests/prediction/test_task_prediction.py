"""What is known of a run's time before it runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from profiles import made_profile, task_on_zeros

from tenfold.cluster.hardware import StepTime
from tenfold.cluster.pipeline_clock import PipelineStep
from tenfold.prediction import divided_models, task_prediction
from tenfold.prediction.calibration import work_of
from tenfold.prediction.ledger import Ledger
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


def test_predictions_for_this_machine_are_noted_whether_or_not_the_model_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENFOLD_PROFILE", str(tmp_path / "profile.toml"))
    monkeypatch.setattr(task_prediction, "complete_profile", lambda task, **_: made_profile(work_of(task)[0]))
    monkeypatch.setattr(
        task_prediction, "profile_now", lambda _task, profile, _report, spread: (profile.slowed(2.0), 0.5)
    )
    sides = PipelineStep(1.0, ()), StepTime(mean=1.0)
    monkeypatch.setattr(divided_models, "measure_here", lambda _: None)
    monkeypatch.setattr(divided_models, "_steps_here", lambda *_: ([sides[0]], [sides[1]]))
    for fields in ({"workers": 4}, {"workers": 2, "divide": "layers"}):
        task = task_on_zeros(32, batch_size=4, cluster="here", engine="virtual", oversubscribe=True, **fields)
        found = task_prediction.predict_task(task)
        low, high = found.interval
        assert high / low > 1.2, "the ledger's error of 8% is covered"
        assert found.machine_speed == 0.5
        run = SimpleNamespace(
            experiment=task.experiment, clock="measured", seconds=2.0, seconds_to_target=None, result={}
        )
        run.metadata = {"data": {"train": 32}}
        Ledger.score(run)  # type: ignore[arg-type]
        assert [score.predicted for score in Ledger.load().scores][-1] == found.seconds
