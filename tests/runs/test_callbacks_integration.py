"""Callbacks stop a run on every engine whose events reach the caller, and the record says so."""

import pytest

import tenfold
from tenfold.engines.one_device import train_replicas
from tenfold.engines.prepare import prepare
from tenfold.runs.callbacks import Callbacks
from tenfold.runs.events import Stopwatch
from tenfold.workers.task import Resolved

FIELDS = {"model": "mlp", "data": "digits", "limit": 300, "epochs": 6, "threads": 1}


class After:
    """Stops after an epoch, or at the first evaluation in the middle of one."""

    def __init__(self, epoch=None):
        self.epoch = epoch
        self.ends = []

    def on_epoch_end(self, event):
        told = event.metrics.keys() - {"train_accuracy"}  # which is not counted where replicas step together
        assert told == {"train_loss", "test_loss", "test_accuracy"}
        if event.epoch == self.epoch:
            raise tenfold.StopTraining

    def on_evaluation(self, event):
        if self.epoch is None and event.name == "accuracy":
            raise tenfold.StopTraining("seen enough")

    def on_run_end(self, event):
        self.ends.append(event.status)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"workers": 2},
        {"workers": 3, "engine": "virtual", "cluster": {"groups": [{"count": 3, "step_seconds": 0.01}]}},
    ],
    ids=str,
)
def test_a_run_stops_after_an_epoch(tmp_path, fields):
    stop = After(1)
    run = tenfold.train(**FIELDS, **fields, runs=tmp_path, callbacks=[stop])
    assert (run.status, stop.ends) == ("finished", ["finished"])
    assert (run.result["epochs"], run.result["stopped_early"], run.result["stopped_by"]) == (2, True, "After")
    assert run.result["listening_seconds"] > 0
    assert tenfold.open_run(runs=tmp_path).result["stopped_by"] == "After"
    whole = tenfold.train(**FIELDS | {"epochs": 6}, **fields, runs=tmp_path)
    assert [row["train_loss"] for row in run.history] == [row["train_loss"] for row in whole.history][:2]
    if fields.get("engine") == "virtual":
        assert run.seconds < whole.seconds


def test_a_run_stops_at_an_evaluation_in_the_middle_of_an_epoch(tmp_path):
    run = tenfold.train(**FIELDS, batch_size=20, evaluate_every=0.5, runs=tmp_path, callbacks=After())
    assert run.result["stopped_by"] == "seen enough"
    assert (run.result["epochs"], run.result["steps"]) == (1, 8)
    assert run.result["samples"] == 160


def test_fused_replicas_stop_too(tmp_path):
    task = prepare(Resolved.of(tenfold.Experiment(**FIELDS, workers=2, engine="virtual")))
    outcome = train_replicas(task, Stopwatch(), Callbacks(lambda _: None, [After(0)]))
    assert (outcome.result["epochs"], outcome.result["stopped_by"]) == (1, "After")


def test_an_error_in_a_callback_ends_the_run_as_failed(tmp_path):
    class Broken:
        def on_epoch_end(self, event):
            raise KeyError(event.metrics["accuracy"])

    with pytest.raises(KeyError, match="accuracy"):
        tenfold.train(**FIELDS, runs=tmp_path, callbacks=[Broken()])
    run = tenfold.open_run(runs=tmp_path)
    assert run.status == "failed"
    assert "event.metrics" in run.error


FOLDS = {**FIELDS, "limit": 120, "epochs": 4, "folds": 3}


class StopsFold:
    """Stops the second fold after its second epoch, or all folds after the first epoch of the first."""

    def __init__(self, *, all_folds=False):
        self.all_folds = all_folds
        self.heard = {}

    def on_epoch_end(self, event):
        assert event.metrics.keys() - {"train_accuracy"} == {"train_loss", "validation_loss", "validation_accuracy"}
        assert event.worker == event.fold - 1
        self.heard.setdefault(event.fold, []).append(event.epoch)
        if self.all_folds:
            raise tenfold.StopTraining("enough", all_folds=True)
        if (event.fold, event.epoch) == (2, 1):
            raise tenfold.StopTraining("enough")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["stacked", "fold-by-fold", "folds-over-workers"])
def test_one_fold_stops(tmp_path, mode):
    stop = StopsFold()
    done = tenfold.cross_validate(**FOLDS, fold_mode=mode, runs=tmp_path, callbacks=[stop])
    assert stop.heard == {1: [0, 1, 2, 3], 2: [0, 1], 3: [0, 1, 2, 3]}
    assert [run.result["epochs"] for run in done.runs] == [4, 2, 4]
    assert [run.result.get("stopped_by") for run in done.runs] == [None, "enough", None]
    assert done.run.status == "finished"
    assert "stopped_by" not in done.run.result


@pytest.mark.parametrize(("mode", "trained"), [("stacked", 3), ("fold-by-fold", 1)])
def test_all_folds_stop(tmp_path, mode, trained):
    done = tenfold.cross_validate(**FOLDS, fold_mode=mode, runs=tmp_path, callbacks=[StopsFold(all_folds=True)])
    assert [run.result["epochs"] for run in done.runs] == [1] * trained
    assert (done.run.status, done.run.result["stopped_by"]) == ("finished", "enough")
    assert done.best.id in [run.id for run in done.runs]
    assert len(done.accuracies) == trained


@pytest.mark.timeout(120)
def test_no_fold_is_trained_after_one_that_was_good_enough(tmp_path):
    class GoodEnough:
        def on_fold(self, event):
            if event.status == "finished":
                raise tenfold.StopTraining

    options = FOLDS | {"folds": 4, "machine.pin": "none"}
    done = tenfold.cross_validate(**options, fold_mode="folds-over-workers", runs=tmp_path, callbacks=[GoodEnough()])
    assert 1 <= len(done.runs) < 4
    assert done.run.result["stopped_by"] == "GoodEnough"
    assert {run.status for run in done.runs} == {"finished"}


def test_a_cross_validation_that_is_stopped_at_once_says_so(tmp_path):
    class Never:
        def on_run_start(self, event):
            raise tenfold.StopTraining("never mind")

    with pytest.raises(tenfold.TenfoldError, match="stopped"):
        tenfold.cross_validate(**FOLDS, fold_mode="stacked", runs=tmp_path, callbacks=[Never()])
