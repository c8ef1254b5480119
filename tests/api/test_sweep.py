"""Sweeps: what is tried, what is recorded, what is stopped, and what is done again."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tenfold
from tenfold.api.search import Range, SpaceSearch, split_space
from tenfold.api.sweep import Objective
from tenfold.errors import ExperimentError, MachineError, StoreError
from tenfold.runs.events import EpochEnded, Metric, Note

pytest.importorskip("optuna", reason="Optuna is not installed")
pytestmark = pytest.mark.timeout(120)
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 120, "validation_fraction": 0.3, "threads": 1}
SMALL |= {"epochs": 1, "progress": False}


class TestSpace:
    def test_a_range_is_of_the_type_of_its_field(self) -> None:
        assert Range.read("batch_size", "16:256") == Range(16, 256, whole=True)
        assert Range.read("dropout", "0:1") == Range(0, 1)
        assert Range.read("lr", "1e-3 : 1e-1 : log") == Range(1e-3, 1e-1, log=True)
        assert Range.read("model", "package.module:callable") is None

    @pytest.mark.parametrize("text", ["1:0.1", "0:1:log", "nan:1", "0.1:0.1"])
    def test_a_range_that_is_none_is_refused(self, text: str) -> None:
        with pytest.raises(ExperimentError, match="lr"):
            Range.read("lr", text)
        with pytest.raises(ExperimentError, match="whole"):
            Range.read("batch_size", "1.5:3")

    def test_what_does_not_vary_changes_the_experiment(self) -> None:
        base, space = split_space(tenfold.Experiment(), {"lr": "0.1:1", "epochs": 3, "hidden": [[8], [16]]})
        assert base.training.epochs == 3
        assert list(space) == ["lr", "hidden"]
        with pytest.raises(ExperimentError, match="no field to search"):
            split_space(tenfold.Experiment(), {"lr": 0.1})
        with pytest.raises(ExperimentError, match="batch_size"):
            split_space(tenfold.Experiment(), {"batchsize": [1, 2]})

    @pytest.mark.parametrize("sampler", ["tpe", "random", "qmc"])
    def test_proposals_lie_in_the_space(self, sampler: str) -> None:
        space = {"lr": Range(1e-3, 1e-1, log=True), "batch_size": Range(16, 256, whole=True), "seed": [1, 2]}
        search = SpaceSearch(space, sampler, seed=0, lower=True)
        for _ in range(20):
            proposed = search.ask()
            assert proposed is not None
            asked, values = proposed
            assert 1e-3 <= values["lr"] <= 1e-1
            assert isinstance(values["batch_size"], int)
            assert values["seed"] in (1, 2)
            search.tell(asked, None)

    def test_a_sampler_names_the_package_that_it_needs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cmaes", None)
        with pytest.raises(MachineError, match="cmaes"):
            SpaceSearch({"lr": Range(0, 1)}, "cmaes", seed=0, lower=True)

    def test_a_grid_needs_lists(self) -> None:
        with pytest.raises(ExperimentError, match="grid"):
            SpaceSearch({"lr": Range(0, 1)}, "grid", seed=0, lower=True)


class TestHalving:
    goal = Objective("accuracy", lower=False, part="validation")

    def test_the_first_trial_is_never_stopped(self) -> None:
        assert not self.goal.behind([], epochs=10).needed

    def test_the_best_third_continues(self) -> None:
        curves = [[0.1 * n] for n in range(1, 9)]
        assert self.goal.behind(curves, epochs=10).needed == {1: pytest.approx(0.6)}  # the third best of nine

    def test_it_looks_after_1_3_9_epochs_and_not_after_the_last(self) -> None:
        assert list(self.goal.behind([[0.5] * 9], epochs=9).needed) == [1, 3]


def test_trials_are_runs_of_the_sweep_and_the_best_is_found(tmp_path: Path) -> None:
    events: list[Any] = []
    fields = SMALL | {"lr": "1e-4:1:log", "batch_size": [16, 32], "trials": 7, "runs": tmp_path}
    sweep = tenfold.sweep(**fields, listen=events.append)
    assert [trial.number for trial in sweep.trials] == list(range(1, 8))
    assert sweep.best.value == max(trial.value or 0.0 for trial in sweep.trials)
    assert sweep.best_run.metrics_on("validation")["accuracy"] == sweep.best.value
    assert sweep.best_experiment.training.lr == sweep.best.values["lr"]
    assert set(sweep.importance) == {"lr", "batch_size"}
    assert sum(sweep.importance.values()) == pytest.approx(1)
    assert sum(isinstance(event, Metric) and event.part == "validation" for event in events) == 14
    opened = tenfold.Sweep(tenfold.open_run(runs=tmp_path))  # "last" is the sweep, not a trial
    assert opened.best == sweep.best
    assert opened.run.evaluate(part="test")["accuracy"] == pytest.approx(sweep.best_run.accuracy)  # with its best model
    assert len(json.loads(sweep.to_json())["trials"]) == 7
    assert sweep.to_csv().count("\n") == 8


def test_the_same_call_does_only_what_is_missing(tmp_path: Path) -> None:
    fields = SMALL | {"lr": "1e-3:1:log", "sampler": "random", "runs": tmp_path}
    first = tenfold.sweep(**fields, trials=2)
    runs = [trial.run for trial in first.trials]
    begun: list[Any] = []
    again = tenfold.sweep(**fields, trials=2, watch=begun.append)
    assert (again.run.id, begun) == (first.run.id, [])
    more = tenfold.sweep(**fields, trials=4)
    assert more.run.id == first.run.id
    assert [trial.run for trial in more.trials[:2]] == runs
    assert len({trial.values["lr"] for trial in more.trials}) == 4
    assert tenfold.sweep(**fields, trials=1, fresh=True).run.id != first.run.id
    assert tenfold.sweep(**fields | {"lr": "1e-3:2:log"}, trials=1).run.id != first.run.id


@pytest.mark.parametrize("again", ["same call", "resume"])
def test_an_interrupted_trial_is_trained_to_the_end(again: str, tmp_path: Path) -> None:
    fields = SMALL | {"epochs": 3, "lr": "1e-3:1:log", "trials": 3, "runs": tmp_path}

    class Interrupt(tenfold.Callback):
        ended = 0

        def on_epoch_end(self, event: Any) -> None:
            self.ended += 1
            if self.ended == 5:  # in the second trial
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.sweep(**fields, callbacks=[Interrupt()])
    interrupted = tenfold.Sweep(tenfold.open_run(runs=tmp_path))
    assert [trial.status for trial in interrupted.trials] == ["finished", "interrupted"]
    done = tenfold.sweep(**fields) if again == "same call" else tenfold.Sweep(tenfold.resume(runs=tmp_path))
    assert done.run.id == interrupted.run.id
    assert [trial.status for trial in done.trials] == ["finished"] * 3
    assert [trial.run for trial in done.trials[:2]] == [trial.run for trial in interrupted.trials]
    assert len(done.trials[1].curve) == 3
    with pytest.raises(StoreError, match="nothing to resume"):
        tenfold.resume(runs=tmp_path)


@pytest.mark.usefixtures("_workers_with_imports")
def test_an_interrupted_trial_keeps_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = SMALL | {"epochs": 2, "lr": [0.1, 0.1001], "trials": 1, "hidden": [16], "dropout": 0.5}
    fields |= {"workers": 2, "divide": "layers", "sampler": "grid"}

    def interrupt(event: Any) -> None:
        if isinstance(event, EpochEnded):
            raise KeyboardInterrupt

    def measure(*second: str) -> None:
        monkeypatch.setattr("tenfold.workers.divided.balanced", lambda *_: second)

    measure("0", "4")
    whole = tenfold.sweep(**fields, runs=tmp_path / "whole").best_run
    with pytest.raises(KeyboardInterrupt):
        tenfold.sweep(**fields, runs=tmp_path, listen=interrupt)
    measure("0", "1")
    resumed = tenfold.sweep(**fields, runs=tmp_path).best_run
    assert resumed.experiment.parallel.stages == whole.experiment.parallel.stages
    assert all(torch.equal(resumed.weights[name], weights) for name, weights in whole.weights.items())


def test_the_best_experiment_leaves_open_what_the_trial_left_open(tmp_path: Path) -> None:
    fields = SMALL | {"optimizer": "sandblaster-lbfgs", "workers": 2, "batch_size": [None, 40], "trials": 1}
    sweep = tenfold.sweep(**fields, sampler="grid", runs=tmp_path)
    assert sweep.best_run.experiment.training.batch_size is not None
    assert sweep.best_experiment.training.batch_size is None


class Net(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def test_a_sweep_over_python_objects_is_continued_by_its_command(tmp_path: Path) -> None:
    def interrupt(_turn: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.sweep(**SMALL | {"model": [Net, "mlp"]}, sampler="grid", runs=tmp_path, watch=interrupt)
    with pytest.raises(StoreError, match="command"):
        tenfold.resume(runs=tmp_path)


def test_what_the_checks_refuse_or_was_tried_is_no_trial(tmp_path: Path) -> None:
    grid = {"lr": [0.1, 0.2], "strategy": ["allreduce", "ring"], "precision": ["fp32", "fp16"]}
    sweep = tenfold.sweep(**SMALL, **grid, sampler="grid", trials=20, objective="loss", runs=tmp_path)
    assert [trial.values["lr"] for trial in sweep.trials] == [
        0.1,
        0.2,
    ]  # no fp16 on CPU, and one worker does not average
    assert sweep.lower_is_better


def test_what_falls_behind_is_stopped(tmp_path: Path) -> None:
    fields = SMALL | {"epochs": 4, "lr": [0.1, 1e-6, 1e-7], "optimizer": "sgd", "sampler": "grid", "runs": tmp_path}
    sweep = tenfold.sweep(**fields, prune=True)
    assert [(trial.status, trial.epochs) for trial in sweep.trials] == [("finished", 4), ("pruned", 1), ("pruned", 1)]
    assert sweep.best.number == 1


def test_a_trial_that_diverges_fails_alone(tmp_path: Path) -> None:
    fields = SMALL | {"lr": [1e30, 0.1], "optimizer": "sgd", "sampler": "grid", "runs": tmp_path}
    sweep = tenfold.sweep(**fields)
    assert [trial.status for trial in sweep.trials] == ["failed", "finished"]
    assert sweep.best.number == 2


def test_seconds_to_a_target_can_be_looked_for(tmp_path: Path) -> None:
    fields = SMALL | {"epochs": 10, "lr": [1e-7, 0.1], "optimizer": "sgd", "sampler": "grid", "runs": tmp_path}
    sweep = tenfold.sweep(**fields, objective="seconds_to_target", target=0.3)
    assert [trial.value is None for trial in sweep.trials] == [True, False]
    assert sweep.best.number == 2


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"objective": "acuracy"}, "accuracy"),
        ({"objective": "seconds_to_target"}, "target"),
        ({"objective": "seconds", "prune": True}, "prune"),
        ({"sampler": "bayes"}, "tpe"),
        ({"folds": 3}, "folds"),
        ({"trials": 0}, "trials"),
        ({"at_once": 0}, "at_once"),
        ({"stacked": True, "objective": "seconds"}, "stacked"),
        ({"stacked": True, "on": "processes"}, "stacked"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_recorded(
    fields: dict[str, Any], word: str, tmp_path: Path
) -> None:
    with pytest.raises(ExperimentError, match=word):
        tenfold.sweep(**SMALL | fields, lr="0.1:1", runs=tmp_path)
    assert not tenfold.list_runs(runs=tmp_path) if (tmp_path / "tenfold.db").exists() else True


def test_a_trial_is_removed_with_its_sweep_only(tmp_path: Path) -> None:
    from tenfold.runs.maintenance import to_remove

    sweep = tenfold.sweep(**SMALL, lr=[0.1, 0.2], sampler="grid", runs=tmp_path)
    store = sweep.run.store
    assert len(to_remove(store, store.find(sweep.run.id))) == 3
    assert sweep.heading in str(sweep)
    with pytest.raises(StoreError, match="removed with it"):
        to_remove(store, store.find(sweep.best.run))
    with pytest.raises(StoreError, match="is not a sweep"):
        tenfold.Sweep(sweep.best_run)


def test_trials_that_step_together_learn_what_each_learns_alone(tmp_path: Path) -> None:
    fields = SMALL | {"epochs": 2, "lr": "1e-3:1e-1:log", "momentum": [0.0, 0.9], "batch_size": [8, 16]}
    fields |= {"sampler": "random", "trials": 9}
    alone = tenfold.sweep(**fields, runs=tmp_path / "alone")
    events: list[Any] = []
    together = tenfold.sweep(**fields, runs=tmp_path / "together", stacked=True, listen=events.append)
    assert len({trial.run for trial in together.trials}) == 9
    by_number = [{trial.number: way.run.other(trial.run) for trial in way.trials} for way in (alone, together)]
    for number, item in by_number[0].items():
        other = by_number[1][number]
        assert other.experiment == item.experiment
        assert {*other.metrics, *other.result["trial"]} == {*item.metrics, *item.result["trial"]}
        for name, tensor in item.weights.items():
            torch.testing.assert_close(other.weights[name], tensor, rtol=1e-3, atol=1e-4)
        assert [row["validation_loss"] for row in other.history] == pytest.approx(
            [row["validation_loss"] for row in item.history], rel=1e-3
        )
        assert other.predictions.outputs.shape == item.predictions.outputs.shape
        assert other.metadata["lr"] == item.metadata["lr"]
    assert {trial.values["batch_size"] for trial in together.trials} == {8, 16}
    assert sum(run.metadata.get("stacked", 1) > 1 for run in by_number[1].values()) >= 8
    assert sum(isinstance(event, Metric) and event.part == "validation" for event in events) == 36
    said = [event.text for event in events if isinstance(event, Note)]
    assert len(said) == len({*said}), "what concerns all of them is said once"
    shared = {run.created: run.seconds for run in by_number[1].values() if run.metadata.get("stacked")}
    own = [run.seconds for run in by_number[1].values() if not run.metadata.get("stacked")]
    assert together.run.seconds == pytest.approx(sum([*shared.values(), *own]), rel=0.1)
    assert together.run.seconds < sum(run.seconds for run in by_number[1].values())


def test_a_callback_stops_one_trial_only(tmp_path: Path) -> None:
    class StopFirst(tenfold.Callback):
        ended = 0

        def on_epoch_end(self, event: Any) -> None:
            self.ended += 1
            if self.ended == 1:
                raise tenfold.StopTraining("enough")

    fields = SMALL | {"epochs": 3, "lr": [0.1, 0.2], "sampler": "grid", "runs": tmp_path}
    sweep = tenfold.sweep(**fields, callbacks=[StopFirst()])
    assert [trial.epochs for trial in sweep.trials] == [1, 3]


def test_a_trial_that_diverges_fails_alone_among_those_that_step_together(tmp_path: Path) -> None:
    fields = SMALL | {"lr": [1e30, 0.1, 0.01], "optimizer": "sgd", "sampler": "grid", "runs": tmp_path}
    sweep = tenfold.sweep(**fields, stacked=True)
    assert [trial.status for trial in sweep.trials] == ["failed", "finished", "finished"]
    again = tenfold.sweep(**fields, stacked=True)
    assert [trial.run for trial in again.trials] == [trial.run for trial in sweep.trials]
