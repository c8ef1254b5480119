"""Strong and weak scaling: what is measured, what is predicted, and what is said of both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import make_run

import tenfold
from tenfold.api import simulate as module
from tenfold.cluster.time_prediction import TimePrediction
from tenfold.errors import ExperimentError
from tenfold.reports.comparison import Comparison
from tenfold.reports.forecast import Forecast, ScalingStudy

pytestmark = pytest.mark.timeout(90)
FIELDS: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [8], "epochs": 1, "oversubscribe": True}


def predicted(workers: list[int], **fields: Any) -> Forecast:
    """Return a forecast in which n workers take 8 / n seconds, or as long as one where the data grow with them."""
    rows = []
    for count in workers:
        seconds = 8.0 if "limit" in fields else 8 / count
        zeros = {kind: np.zeros(count) for kind in ("compute", "wait", "communicate")}
        experiment = tenfold.Experiment(**FIELDS | fields, workers=count, engine="virtual")
        prediction = TimePrediction(
            seconds=seconds,
            interval=(seconds, seconds),
            total=seconds,
            times=zeros,  # type: ignore[arg-type]
            bytes_per_worker=np.zeros(count),
            marks={},
            spans=(),
            reasons=(),
            calibrated=True,
        )
        rows.append((experiment, prediction))
    return Forecast(rows)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> ScalingStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "budget", lambda: 2)
        return tenfold.scaling(**FIELDS, up_to=2, runs=tmp_path_factory.mktemp("scaling"))


def test_both_are_measured_up_to_the_cores(measured: ScalingStudy) -> None:
    assert [point.workers for point in measured.strong] == [point.workers for point in measured.weak] == [1, 2]
    assert {record["clock"] for record in measured.records()} == {"measured"}
    assert all(point.score is not None for point in measured.strong)


def test_what_is_predicted_is_compared_with_a_prediction(measured: ScalingStudy, tmp_path: Path) -> None:
    strong, weak = (tenfold.compare(**FIELDS | more, workers=[1], runs=tmp_path) for more in ({}, {"limit": 50}))
    far_weak = [predicted([count], limit=50 * count) for count in (1, 4)]
    both = ScalingStudy(strong, weak, predicted([1, 4]), far_weak, samples=50, link="10gbe")
    assert [(point.workers, point.ratio) for point in both.strong if point.clock == "predicted"] == [(1, 1.0), (4, 4.0)]
    assert [(point.workers, point.ratio) for point in both.weak if point.clock == "predicted"] == [(1, 1.0), (4, 1.0)]
    assert any("4 workers" in sentence and "predicted" in sentence for sentence in both.sentences())
    page = both.report(tmp_path / "scaling.html").read_text()
    assert "Strong scaling" in page
    assert len(json.loads(both.to_json())["rows"]) == len(both.to_csv().splitlines()) - 1


def test_a_speedup_at_lower_accuracy_is_marked_and_not_the_headline(tmp_path: Path) -> None:
    def made(workers: int, seconds: float, accuracy: float) -> tenfold.Run:
        result = {"seconds": seconds, "metrics": {"accuracy": accuracy, "loss": 0.1}}
        return make_run(tmp_path, steps_per_epoch=2, epochs=1, workers=workers, result=result)

    strong = Comparison([made(1, 8.0, 0.99), made(2, 4.0, 0.989), made(4, 2.0, 0.9)])
    study = ScalingStudy(strong, Comparison([made(1, 8.0, 0.99)]), None, [], samples=50, link="10gbe")
    assert [point.is_worse for point in study.strong] == [False, False, True]
    headline, doubt = study.sentences()
    assert "2 workers train 2.0" in headline
    assert "4 workers" in doubt
    assert "90" in doubt
    assert any("▼" in cell for cell in study.text_table().rows[2])


@pytest.mark.parametrize("fields", [{"up_to": 1}, {"up_to": 10**9}, {"folds": 2}])
def test_wrong_questions_are_answered_with_a_sentence(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=next(iter(fields))):
        tenfold.scaling(**FIELDS | {"limit": 50} | fields, runs=tmp_path)
