"""Cross-validation from end to end: in every mode, with folds that fail, and killed in the middle."""

import functools
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crossval_models import SMALL, Calm, Deadly, Late, Stuck, Touchy, marked, validate_until_a_fold_is_done
from forked import programs_server, start_forked

import tenfold
from tenfold.crossval.fold import make_fold_splits
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError, StoreError, TrainingError
from tenfold.machine.cores import budget
from tenfold.runs import stored_predictions
from tenfold.runs.events import Event, Lifecycle, Metric
from tenfold.training import all_targets
from tenfold.workers.task import Resolved

pytestmark = pytest.mark.timeout(120)
MODES: dict[str, dict[str, Any]] = {
    "folds-over-workers": {},
    "fold-by-fold": {"workers": 2},
    "data-and-folds": {"workers": 2, "folds": 2, "fold_mode": "data-and-folds"},
    "stacked": {"fold_mode": "stacked"},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tenfold.CrossValidation:
    with programs_server():  # as every worker measures by scikit-learn
        return tenfold.cross_validate(**SMALL, metrics=["accuracy", "f1_macro"], runs=tmp_path_factory.mktemp("whole"))


class TestResult:
    def test_the_numbers_of_the_folds(self, whole: tenfold.CrossValidation) -> None:
        assert len(whole.accuracies) == 4
        assert whole.mean == pytest.approx(np.mean(whole.accuracies))
        assert whole.std == pytest.approx(np.std(whole.accuracies, ddof=1))
        low, high = whole.confidence(0.95)
        assert low < whole.mean < high
        assert (low + high) / 2 == pytest.approx(whole.mean)
        assert whole.run.result["spread"]["validation"]["accuracy"]["low"] == pytest.approx(low)
        assert whole.run.metrics["accuracy"] == pytest.approx(whole.mean)
        assert whole.run.result["part"] == "validation"
        assert "4 folds, accuracy" in repr(whole)

    def test_every_fold_is_a_run_of_its_own(self, whole: tenfold.CrossValidation) -> None:
        assert [run.kind for run in whole.runs] == ["fold"] * 4
        assert whole.run.kind == "crossval"
        for fold, run in zip(whole.folds, whole.runs, strict=True):
            assert run.status == "finished"
            assert run.metadata["crossval"]["parent"] == whole.run.id
            assert run.seconds == fold["seconds"] > 0
            assert run.metrics == fold["metrics"]["test"]
            assert run.experiment.data.name == "digits"
            assert len(run.history) == 3
            assert run.history[-1]["validation_accuracy"] == fold["metrics"]["validation"]["accuracy"]
        assert tenfold.open_run("last", runs=whole.run.store.folder).id == whole.run.id

    def test_the_shape_of_the_result(self, whole: tenfold.CrossValidation) -> None:
        result = whole.run.result
        assert set(result["folds"][0]) == {
            *("fold", "repeat", "node", "run", "status", "error", "metrics", "seconds", "began", "ended", "cores"),
            *("threads", "train_samples", "validation_samples"),
        }
        assert set(result["models"]) == {"best", "average", "vote"}
        assert set(result["folds"][0]["metrics"]) == set(result["spread"]) == {"train", "validation", "test"}
        assert set(result["folds"][0]["metrics"]["train"]) == {"loss", "accuracy", "f1_macro"}
        assert set(result["spread"]["test"]["f1_macro"]) == {"mean", "std", "low", "high"}
        assert (result["mode"], result["failed"]) == ("folds-over-workers", [])
        assert sum(fold["validation_samples"] for fold in result["folds"]) == 150
        assert all(0 <= fold["began"] <= fold["ended"] for fold in result["folds"])
        assert result["seconds"] <= max(fold["ended"] for fold in result["folds"])

    def test_what_was_measured_is_what_the_models_do(self, whole: tenfold.CrossValidation) -> None:
        task = prepare(Resolved.of(tenfold.Experiment(**SMALL)))
        test = task.splits.test
        assert test is not None
        x, y = next(test.batches([range(len(test))]))[0], all_targets(test)
        split = make_fold_splits(task)[1]
        ours = next(task.splits.train.batches([split.validation]))

        def accuracy(network: torch.nn.Module, x: Any, y: Any) -> float:
            with torch.no_grad():
                return float((network(x).argmax(1) == y).float().mean())

        assert accuracy(whole.runs[1].model, *ours) == pytest.approx(whole.accuracies[1])
        measured = {name: model["metrics"]["accuracy"] for name, model in whole.run.result["models"].items()}
        assert accuracy(whole.best.model, x, y) == pytest.approx(measured["best"])
        assert accuracy(whole.run.model, x, y) == pytest.approx(measured["best"])
        assert accuracy(whole.average_model, x, y) == pytest.approx(measured["average"])
        assert accuracy(whole.vote, x, y) == pytest.approx(measured["vote"])
        assert max(whole.accuracies) == whole.accuracies[whole.run.result["models"]["best"]["fold"] - 1]

    def test_a_score_that_there_is_none_of_is_a_sentence(self, whole: tenfold.CrossValidation) -> None:
        with pytest.raises(ExperimentError, match="f1_macro"):
            whole.scores("f1")
        with pytest.raises(ExperimentError, match="test"):
            whole.scores("loss", "tst")
        with pytest.raises(ExperimentError, match=r"level = 95: should be between 0 and 1, such as 0\.95"):
            whole.confidence(95)

    def test_it_can_be_read_again(self, whole: tenfold.CrossValidation) -> None:
        again = tenfold.CrossValidation(tenfold.open_run(whole.run.id, runs=whole.run.store.folder))
        assert again.accuracies == whole.accuracies
        with pytest.raises(StoreError, match="cross-validation"):
            tenfold.CrossValidation(whole.runs[0])

    def test_as_scikit_learn_has_it(self, whole: tenfold.CrossValidation) -> None:
        found = whole.as_sklearn()
        assert set(found) == {
            *("fit_time", "score_time", "test_accuracy", "test_f1_macro", "train_accuracy", "train_f1_macro")
        }
        assert found["test_accuracy"].tolist() == whole.accuracies
        assert all(values.shape == (4,) and (values > 0).all() for values in found.values())


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode: str) -> None:
    heard: list[Event] = []
    done = tenfold.cross_validate(**SMALL | {"epochs": 1} | MODES[mode], listen=heard.append)
    assert done.run.status == "finished"
    assert done.run.result["mode"] == mode
    assert len(done.accuracies) == 4
    assert done.seconds is not None
    assert done.seconds >= max(fold["seconds"] for fold in done.folds) > 0
    assert [fold["node"] for fold in done.folds] == ([1, 2, 1, 2] if mode == "data-and-folds" else [0] * 4)
    lifecycle = [event for event in heard if isinstance(event, Lifecycle)]
    assert [event.stage for event in lifecycle].count("recorded") == 1
    assert {event.worker for event in heard if isinstance(event, Metric)} == {0, 1, 2, 3}
    assert [event.stage for event in done.run.lifecycle()].count("fold") == 8
    assert not list(done.run.measurements())


def test_fused_folds_are_what_folds_one_by_one_are() -> None:
    fields = SMALL | {"epochs": 2, "threads": 1}
    stacked = tenfold.cross_validate(**fields, fold_mode="stacked", stacking="loop")
    apart = tenfold.cross_validate(**fields, fold_mode="fold-by-fold")
    assert stacked.accuracies == apart.accuracies
    assert stacked.scores("loss", "train") == pytest.approx(apart.scores("loss", "train"), rel=1e-4)
    assert all(fold["began"] < fold["ended"] for fold in stacked.folds)


def test_nodes_and_folds_together_on_one_device_are_what_processes_make_of_them() -> None:
    fields = SMALL | {"folds": 2, "workers": 2, "epochs": 1, "oversubscribe": True, "threads": 1}
    for mode, together in (("fold-by-fold", {"fold_mode": "stacked"}), ("data-and-folds", {"engine": "one-device"})):
        apart = tenfold.cross_validate(**fields | {"fold_mode": mode})
        stacked = tenfold.cross_validate(**fields | {"fold_mode": mode, "stacking": "loop"} | together)
        assert stacked.accuracies == apart.accuracies
        assert stacked.scores("loss", "train") == pytest.approx(apart.scores("loss", "train"), rel=1e-4)


@pytest.mark.parametrize("threads", [2, None])
def test_fused_folds_are_recorded_with_the_cores_that_they_share(threads: int | None) -> None:
    fields = SMALL | {"epochs": 1, "folds": 2, "threads": threads, "oversubscribe": True}
    done = tenfold.cross_validate(**fields, fold_mode="stacked", stacking="loop")
    count = threads or budget()
    assert [fold["threads"] for fold in done.folds] == [count, count]
    assert [fold["cores"] for fold in done.folds] == [list(range(count))] * 2
    assert done.run.result["threads"] == done.runs[0].result["threads"] == count


def test_folds_on_one_core_never_overlap_on_it() -> None:
    done = tenfold.cross_validate(**SMALL | {"epochs": 1, "folds": 6})
    for core in {core for fold in done.folds for core in fold["cores"]}:
        mine = sorted((fold["began"], fold["ended"]) for fold in done.folds if core in fold["cores"])
        assert all(before[1] <= after[0] for before, after in pairwise(mine))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fold_that_fails_does_not_stop_the_others(workers: int) -> None:
    fields: dict[str, Any] = {"model": Touchy, "data": marked(), "epochs": 1, "folds": 3, "threads": 1}
    done = tenfold.cross_validate(**fields, workers=workers)
    assert done.run.status == "interrupted"
    assert sorted(fold["status"] for fold in done.folds) == ["failed", "failed", "finished"]
    assert len(done.accuracies) == 1
    assert len(done.run.result["failed"]) == 2
    failed = next(run for run in done.runs if run.status == "failed")
    assert "this sample is bad" in failed.error
    assert np.isnan(done.as_sklearn()["test_score"]).sum() == 2
    assert np.isnan(done.std)


def test_a_fold_whose_process_dies_does_not_stop_the_others() -> None:
    done = tenfold.cross_validate(model=Deadly, data=marked(), epochs=1, folds=3, threads=1)
    assert sorted(fold["status"] for fold in done.folds) == ["failed", "failed", "finished"]
    assert all("was killed by SIGKILL" in fold["error"] for fold in done.folds if fold["error"])
    assert [run.status for run in done.runs].count("failed") == 2


def test_a_fold_that_makes_no_progress_does_not_stop_the_others() -> None:
    done = tenfold.cross_validate(model=Stuck, data=marked(), epochs=1, folds=3, threads=1, stall_after=2)
    assert sorted(fold["status"] for fold in done.folds) == ["failed", "failed", "finished"]
    assert all("has made no progress for 2 s" in fold["error"] for fold in done.folds if fold["error"])
    warned = [stage.text for stage in done.run.lifecycle() if stage.stage == "warning"]
    own = [text.partition(": ")[2] for text in warned if "be careful" in text]
    assert own == ["UserWarning: be careful"], "once, with the name of a fold"


def test_folds_that_failed_keep_what_is_known_and_can_be_trained_again() -> None:
    fields: dict[str, Any] = {"model": Late, "data": marked(), "epochs": 2, "folds": 3, "threads": 1, "workers": 2}
    done = tenfold.cross_validate(**fields)
    failed = [run for run in done.runs if run.status == "failed"]
    finished = next(run for run in done.runs if run.status == "finished")
    assert len(failed) == 2
    listed = next(run for run in tenfold.list_runs() if run.id == done.run.id)
    assert (listed.status, done.run.status) == ("interrupted", "interrupted")
    assert listed.error.startswith("2 of 3 folds failed: fold ")
    assert all(run.result["epochs"] == 1 and "accuracy" in run.result["metrics"] for run in failed)
    with pytest.raises(StoreError, match="finished"):
        tenfold.resume(finished.id)
    events = len(list(finished.events()))
    again = tenfold.CrossValidation(tenfold.resume(done.run, model=Calm, data=marked()))
    assert (again.run.status, again.run.result["failed"]) == ("finished", [])
    assert len(again.accuracies) == 3
    assert [run.id for run in again.runs] == [run.id for run in done.runs]
    assert len(list(finished.events())) == events
    with pytest.raises(StoreError, match="resume"):
        tenfold.resume(done.run.id, model=Calm, data=marked())


def test_all_folds_fail() -> None:
    with pytest.raises(TrainingError, match="failed"):
        tenfold.cross_validate(model=Touchy, data=marked(40), epochs=1, folds=3, threads=1)
    run = tenfold.open_run("last")
    assert (run.kind, run.status) == ("crossval", "failed")
    assert [fold["status"] for fold in run.result["folds"]] == ["failed"] * 3
    with pytest.raises(StoreError, match=r"tenfold resume 1"):
        tenfold.resume(2)
    with pytest.raises(StoreError, match=r"tenfold\.resume"):
        tenfold.resume(1)


def test_killed_and_resumed(whole: tenfold.CrossValidation, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    killed = start_forked(validate_until_a_fold_is_done, str(runs))
    killed.join(100)
    assert killed.exitcode == -9
    before = {run.id: run.status for run in tenfold.list_runs(runs=runs)}
    done = [number for number, status in before.items() if status == "finished"]
    assert done
    assert tenfold.open_run("last", runs=runs).kind == "crossval"
    events = {number: len(list(tenfold.open_run(number, runs=runs).events())) for number in done}
    resumed = tenfold.CrossValidation(tenfold.resume("last", runs=runs))
    assert resumed.run.status == "finished"
    assert resumed.accuracies == whole.accuracies
    assert {number: len(list(tenfold.open_run(number, runs=runs).events())) for number in done} == events
    assert all(number in {run.id for run in resumed.runs} for number in before if number > 1)
    assert len(tenfold.list_runs(runs=runs)) == 5
    with pytest.raises(StoreError, match="finished"):
        tenfold.resume(1, runs=runs)


@pytest.mark.parametrize("mode", ["folds-over-workers", "fold-by-fold"])
def test_interrupted_and_resumed(whole: tenfold.CrossValidation, mode: str) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Metric) and event.worker == 2 and event.part == "validation":
            raise KeyboardInterrupt

    fields = SMALL | {"fold_mode": mode}
    with pytest.raises(KeyboardInterrupt):
        tenfold.cross_validate(**fields, listen=interrupt)
    run = tenfold.open_run("last")
    assert run.status == "interrupted"
    halfway = tenfold.CrossValidation(run)
    assert repr(halfway).endswith("interrupted>")
    assert halfway.metric == ("accuracy" if halfway.folds else "loss")
    assert len(halfway.scores()) == len(halfway.folds)
    assert [fold["status"] for fold in run.result["folds"]] == ["finished"] * len(run.result["folds"])
    resumed = tenfold.CrossValidation(tenfold.resume())
    assert resumed.accuracies == whole.accuracies
    assert resumed.run.id == run.id


def test_a_resumed_fold_warns_of_a_damaged_checkpoint() -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Metric) and (event.worker, event.epoch, event.part) == (0, 2, "validation"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.cross_validate(**SMALL | {"folds": 2, "fold_mode": "fold-by-fold"}, listen=interrupt)
    run = tenfold.open_run("last")
    fold = run.other(run.store.folds(run.id)[0]["id"])
    (fold.path / "checkpoint" / "manifest.json").write_text('{"epoch": ')
    with pytest.warns(UserWarning, match=r"manifest\.json"):
        assert tenfold.resume().status == "finished"


def test_groups_stay_together_and_must_be_given_again() -> None:
    groups = np.arange(40) // 4
    fields: dict[str, Any] = {"model": "mlp", "data": (torch.randn(40, 2), torch.randn(40)), "epochs": 1, "threads": 1}
    done = tenfold.cross_validate(**fields, folds=2, groups=groups)
    assert done.run.experiment.flat()["groups"] == "<ndarray>"
    assert all(fold["validation_samples"] % 4 == 0 for fold in done.folds)
    assert (done.metric, done.accuracies) == ("loss", [])
    assert (done.as_sklearn()["test_score"] < 0).all()


def test_models_of_a_script_are_at_hand_while_it_runs() -> None:
    x = torch.randn(40, 3)
    done = tenfold.cross_validate(
        model=lambda: torch.nn.Linear(3, 2), data=(x, torch.arange(40) % 2), folds=2, epochs=1, threads=1
    )
    for network in (done.best.model, done.average_model, done.vote, done.run.model):
        assert network(x).shape == (40, 2)


class WithLoss(torch.nn.Linear):
    """Returns (outputs, loss) where it is given the labels, as many language models do."""

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        outputs = super().forward(x)
        return outputs, None if y is None else torch.nn.functional.cross_entropy(outputs, y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", ["network", lambda outputs, _: outputs[1]], ids=["of the network", "own"])
def test_networks_that_return_their_loss_vote(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their outputs only the main one is kept, where all are too large."""
    monkeypatch.setattr(stored_predictions, "LIMIT", 8 * 2 * 4)
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    model = functools.partial(WithLoss, 3, 2)
    fields: dict[str, Any] = {"folds": 2, "epochs": 1, "threads": 1, "fold_mode": "fold-by-fold"}
    done = tenfold.cross_validate(model=model, data=({"x": x, "y": y}, y), loss=loss, **fields)
    losses = [fold["metrics"]["test"]["loss"] for fold in done.folds]
    assert done.run.result["models"]["vote"]["metrics"]["loss"] == pytest.approx(sum(losses) / 2)


def test_five_folds_are_usual() -> None:
    done = tenfold.cross_validate(**SMALL | {"folds": None, "epochs": 1}, as_sklearn=True)
    assert done["test_score"].shape == (5,)


def level(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return a number that says which fold it is, however well that has learned."""
    return targets.mean()


def test_the_best_fold_is_the_one_with_the_best_value_of_the_metric_shown() -> None:
    data = torch.randn(60, 3), torch.arange(60.0)
    fields: dict[str, Any] = {"model": "mlp", "data": data, "epochs": 1, "folds": 3, "fold_mode": "fold-by-fold"}
    with pytest.raises(ExperimentError, match="the best fold needs to know"):
        tenfold.cross_validate(**fields, metrics={"level": level})
    for lower, best in ((True, min), (False, max)):
        done = tenfold.cross_validate(**fields, metrics={"level": level, "rmse": level}, lower_is_better=lower)
        assert done.metric == "level"
        chosen = done.folds[done.run.result["models"]["best"]["fold"] - 1]
        assert chosen["metrics"]["validation"]["level"] == best(done.scores())
        assert done.best.id == chosen["run"]
