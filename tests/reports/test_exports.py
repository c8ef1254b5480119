import csv
import io
import json

from made_runs import make_crossval, make_run, read_run

from tenfold.experiment import Experiment
from tenfold.reports import exports as export
from tenfold.reports.exports import write_csv
from tenfold.runs import Recorder, Store
from tenfold.runs.events import Metric


def test_csv_holds_every_measurement_of_every_run(tmp_path):
    runs = [
        make_run(tmp_path, steps_per_epoch=40),
        make_run(tmp_path, steps_per_epoch=40, name='with "quotes", commas'),
    ]
    rows = list(csv.DictReader(io.StringIO(export.to_csv(runs))))
    assert len(rows) == sum(len(export.measurement_rows(run)) for run in runs)
    assert {row["run"] for row in rows} == {"1", "2"}
    assert rows[-1]["title"] == 'with "quotes", commas'
    assert rows[-1] | {"value": ""} == {
        **dict(zip(export.COLUMNS, ["2", 'with "quotes", commas', "test", "accuracy", "3", "120"], strict=False)),
        "seconds": "0.432",
        "clock": "measured",
        "value": "",
    }


def test_the_metrics_of_a_cross_validation_are_what_each_fold_scored(tmp_path):
    run = make_crossval(tmp_path)
    rows = list(csv.DictReader(io.StringIO(export.to_csv([run]))))
    assert [row["value"] for row in json.loads(export.to_json([run], "metrics"))] == [float(r["value"]) for r in rows]
    folds = run.result["folds"]
    assert len(rows) == sum(len(metrics) for fold in folds for metrics in fold["metrics"].values())
    assert rows[0]["title"] == f"{run.title}, fold 1"
    assert float(rows[0]["value"]) in folds[0]["metrics"][rows[0]["part"]].values()


def test_json_can_be_read_by_anyone(tmp_path):
    run = make_run(tmp_path, steps_per_epoch=40)
    (read,) = json.loads(export.to_json([run]))
    assert read["id"] == run.id
    assert read["metrics"] == run.metrics
    assert read["history"] == run.history
    assert read["experiment"]["model"] == "lenet5"
    assert {len(column) for column in read["measurements"].values()} == {len(export.measurement_rows(run))}


def test_numbers_that_are_none_become_null(tmp_path):
    store = Store(tmp_path)
    record = Recorder(store, number := store.create(Experiment(), kind="train", metadata={}))
    record(Metric(at=0, name="loss", value=float("nan"), part="test", step=1, epoch=0, seconds=1))
    record.close(result={"metrics": {"loss": float("inf")}}, status="failed")
    (read,) = json.loads(export.to_json([read_run(store, number)]))
    assert read["metrics"]["loss"] is None
    assert read["measurements"]["value"] == [None]


def test_text_is_never_a_formula_and_numbers_stay_numbers():
    cells = {"=1+1": "@SUM(A1)", "loss": -0.5, "title": "-x", "plain": "a=b"}
    assert write_csv([cells]) == "'=1+1,loss,title,plain\n'@SUM(A1),-0.5,'-x,a=b\n"
