"""Comparisons: what is planned, what is run again and what is not, and what happens when some of it fails."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tenfold
from tenfold.api.compare import Turn, compare, drop_repeated, experiments_of, split_grid
from tenfold.common.files import read_sealed, sealed_json
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import with_defaults
from tenfold.experiment.values import PythonObject
from tenfold.runs import Store
from tenfold.runs.events import Event, FoldChanged
from tenfold.runs.maintenance import remove_run

SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 100, "epochs": 1, "threads": 1, "hidden": [4]}


def settings(experiments: Any, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(experiment.flat()[name] for name in names) for experiment in experiments]


class TestPlan:
    def test_the_grid_comes_once_for_each_repeat(self) -> None:
        planned = experiments_of(Experiment(), {"lr": [0.1, 0.2], "momentum": [0.0, 0.9]}, 2)
        assert settings(planned, "seed", "lr", "momentum") == [
            (seed, lr, momentum) for seed in (0, 1) for lr in (0.1, 0.2) for momentum in (0.0, 0.9)
        ]

    def test_settings_can_change_together(self) -> None:
        groups = [{"pin": "0", "threads": 1}, {"pin": "0,1", "threads": 2}]
        planned = experiments_of(Experiment(), {"lr": [0.1, 0.2]}, 1, groups)
        assert settings(planned, "lr", "pin", "threads") == [
            *((0.1, "0", 1), (0.1, "0,1", 2), (0.2, "0", 1), (0.2, "0,1", 2))
        ]
        with pytest.raises(ExperimentError, match="lr is specified twice"):
            list(experiments_of(Experiment(), {"lr": [0.1]}, 1, [{"lr": 0.2}]))

    def test_one_worker_runs_once_whatever_the_mixing(self) -> None:
        grid = {"workers": [1, 2], "strategy": ["ring", "butterfly"], "sync_every": [1, 4]}
        planned = list(experiments_of(Experiment(), grid, 2))
        assert len(planned) == 2 * (1 + 4)
        alone = [experiment for experiment in planned if experiment.parallel.workers == 1]
        assert [item.parallel for item in alone] == [with_defaults(Experiment()).parallel] * 2

    def test_stages_are_for_the_rows_whose_layers_are_divided(self) -> None:
        grid = {"divide": ["data", "layers"]}
        planned = list(experiments_of(Experiment(workers=4, stages=2, micro_batches=3), grid, 1))
        assert [(item.parallel.stages, item.parallel.micro_batches) for item in planned] == [(None, None), (2, 3)]

    def test_one_worker_keeps_its_folds(self) -> None:
        grid = {"workers": [1, 2], "folds": [2, 4], "strategy": ["ring", "butterfly"]}
        planned = list(experiments_of(Experiment(fold_kind="plain"), grid, 1))
        assert settings(planned, "workers", "folds") == [(1, 2), (1, 4), (2, 2), (2, 2), (2, 4), (2, 4)]
        assert planned[0].parallel == with_defaults(Experiment(folds=2, fold_kind="plain")).parallel

    def test_a_list_of_samples_is_one_value(self) -> None:
        samples = [{"tokens": [1, 2], "label": 0}] * 5
        for item in (samples, [np.ones((4, 2)), np.arange(4)]):
            base, dimensions = split_grid(Experiment(), {"data": item, "workers": [1, 2]})
            assert base.data.name == PythonObject(item)
            assert dimensions == {"workers": [1, 2]}
        assert split_grid(Experiment(), {"data": ["digits", "mnist"]})[1] == {"data": ["digits", "mnist"]}

    @pytest.mark.parametrize(
        ("grid", "repeats", "sentence"),
        [
            ({"strategi": ["ring"]}, 1, "strategy"),
            ({"lr": []}, 1, "compare"),
            ({}, 0, "repeats"),
            ({"strategy": ["rong"]}, 1, "parallel.strategy"),
        ],
    )
    def test_mistakes_are_one_sentence(self, grid: dict[str, list[Any]], repeats: int, sentence: str) -> None:
        with pytest.raises(ExperimentError, match=sentence) as raised:
            list(experiments_of(Experiment(), grid, repeats))
        assert "\n" not in str(raised.value)

    def test_a_mistake_is_noticed_before_anything_runs(self, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError, match=r"training\.lr"):
            compare(**SMALL, lr=[0.1, -1], runs=tmp_path / "runs")
        assert not (tmp_path / "runs").exists()


class TestLists:
    def test_a_list_is_a_dimension_and_anything_else_a_change(self, tmp_path: Path) -> None:
        result = compare(**SMALL, lr=[0.1, 0.2], momentum=0.5, runs=tmp_path)
        assert settings([run.experiment for run in result.runs], "lr", "momentum") == [(0.1, 0.5), (0.2, 0.5)]

    def test_data_as_a_pair_is_one_value(self, tmp_path: Path) -> None:
        data = (torch.randn(40, 3), torch.randn(40))
        result = compare(**SMALL | {"data": data, "limit": None}, lr=[0.1, 0.2], runs=tmp_path)
        assert [run.status for run in result.runs] == ["finished", "finished"]

    def test_a_field_that_is_a_list_needs_a_list_of_lists(self, tmp_path: Path) -> None:
        result = compare(**SMALL | {"hidden": [[4], [3, 2]]}, runs=tmp_path)
        assert settings([run.experiment for run in result.runs], "hidden") == [([4],), ([3, 2],)]
        assert len(compare(**SMALL | {"hidden": [3, 2]}, runs=tmp_path).runs) == 1

    def test_groups_are_one_value_unless_there_are_several(self) -> None:
        one = [0, 0, 1, 1]
        assert split_grid(Experiment(), {"groups": one})[0].data.groups == PythonObject(one)
        for fixed in (one, list(np.array(one)), np.array(one), tuple(one), "package.module:groups"):
            assert split_grid(Experiment(), {"groups": fixed})[1] == {}
        for several in ([one, [0, 1, 2, 3]], [tuple(one)], [np.array(one), torch.tensor(one)]):
            assert split_grid(Experiment(), {"groups": several})[1] == {"groups": several}

    def test_groups_of_a_cross_validation(self, tmp_path: Path) -> None:
        data = (torch.randn(40, 3), torch.arange(40) % 2)
        groups = [i // 4 for i in range(40)]
        fields = SMALL | {"data": data, "limit": None, "folds": 2, "fold_mode": "stacked", "stacking": "loop"}
        (run,) = compare(**fields, groups=groups, runs=tmp_path).runs
        assert all(fold["validation_samples"] % 4 == 0 for fold in run.result["folds"])


class TestAgain:
    def watched(self, folder: Path, **fields: Any) -> list[Turn]:
        turns: list[Turn] = []
        compare(**SMALL | fields, runs=folder, watch=turns.append)
        return turns

    def test_what_is_recorded_is_not_run_again_unless_fresh(self, tmp_path: Path) -> None:
        first = self.watched(tmp_path, lr=[0.1, 0.2])
        assert [turn.begins for turn in first] == [True, False, True, False]
        assert [turn.place for turn in first] == [1, 1, 2, 2]
        second = self.watched(tmp_path, lr=[0.1, 0.2, 0.3])
        assert [(turn.label, turn.recorded) for turn in second if not turn.begins] == [
            ("lr 0.1", True),
            ("lr 0.2", True),
            ("lr 0.3", False),
        ]
        assert len(tenfold.list_runs(runs=tmp_path)) == 3
        fresh = self.watched(tmp_path, lr=[0.1, 0.2], fresh=True)
        assert not any(turn.recorded for turn in fresh)
        assert len(tenfold.list_runs(runs=tmp_path)) == 5

    @pytest.mark.usefixtures("_workers_with_imports")
    @pytest.mark.parametrize(
        "fields",
        [
            {"divide": "layers"},
            {"divide": "layers", "stages": 2},
            {"divide": "layers", "stages": ["0:2", "2:"]},
            {"optimizer": "sandblaster-lbfgs"},
            {"optimizer": "sandblaster-lbfgs", "engine": "virtual", "link": "10gbe"},
        ],
        ids=["layers", "number of stages", "slices", "sandblaster", "simulated"],
    )
    def test_values_that_the_data_or_measurements_set_do_not_make_another_setting(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        fields = fields | {"workers": 2}
        assert [self.watched(tmp_path, **fields)[-1].recorded for _ in range(2)] == [False, True]
        with sqlite3.connect(tmp_path / "tenfold.db") as connection:
            [(result,)] = connection.execute("SELECT result FROM runs").fetchall()
            disturbed = (read_sealed(result) or {}) | {"load": {"before": 9.0, "after": 9.0, "cores": 2}}
            connection.execute("UPDATE runs SET result = ?", (sealed_json(disturbed),))
        (run,) = compare(**SMALL | fields, runs=tmp_path, rerun_doubtful=fields.get("engine") != "virtual").runs
        assert run.id == (1 if fields.get("engine") == "virtual" else 2)

    def test_a_run_of_another_verb_does_not_count(self, tmp_path: Path) -> None:
        tenfold.train(**SMALL, runs=tmp_path)
        assert not any(turn.recorded for turn in self.watched(tmp_path))

    def test_python_objects_are_never_taken_for_others(self, tmp_path: Path) -> None:
        def network() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

        fields = {"model": network, "hidden": None}
        assert [turn.recorded for turn in self.watched(tmp_path, **fields)] == [False, False]
        assert [turn.recorded for turn in self.watched(tmp_path, **fields)] == [False, False]

    def test_files_and_modules_that_have_changed_are_run_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        table, module = Path("table.csv"), Path("own_network_of_compare.py")
        table.write_text("a,label\n" + "".join(f"{i / 40},{i % 2}\n" for i in range(40)))
        module.write_text("from torch import nn\n\ndef network():\n    return nn.Linear(1, 2)\n")
        fields = {"model": "own_network_of_compare:network", "data": "table.csv", "hidden": None, "limit": None}

        def was_recorded() -> bool:
            return self.watched(tmp_path, **fields)[-1].recorded

        assert [was_recorded(), was_recorded()] == [False, True]
        table.write_text(table.read_text().replace("0,0", "0,1", 1))
        assert [was_recorded(), was_recorded()] == [False, True]
        module.write_text(module.read_text() + "# changed\n")
        assert [was_recorded(), was_recorded()] == [False, True]

    @pytest.mark.parametrize(
        "change",
        [
            {"machine": {"host": "another"}},
            {"machine": {"cpu": {"model": "Slow 1000"}}},
            {"machine": {"cpu": {"budget": 999}}},
            {"packages": {"torch": "1.0"}},
            {"packages": {"tenfold": "0.0.1"}},
        ],
        ids=["host", "processor", "cores", "torch", "tenfold"],
    )
    def test_times_of_another_machine_or_version_are_not_shown_as_measured_here(
        self, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        (first,) = compare(**SMALL, runs=tmp_path).runs
        metadata = dict(first.metadata)
        for name, fields in change.items():
            for key, value in fields.items():
                metadata[name][key] = metadata[name][key] | value if isinstance(value, dict) else value
        with sqlite3.connect(tmp_path / "tenfold.db") as connection:
            connection.execute("UPDATE runs SET metadata = ?", (sealed_json(metadata),))
        assert self.watched(tmp_path)[-1].recorded is False
        assert self.watched(tmp_path)[-1].recorded is True

    def test_comparisons_that_are_started_at_once_run_every_setting_once(self, tmp_path: Path) -> None:
        Store(tmp_path)
        ready = threading.Barrier(2)
        turns: list[Turn] = []

        def start() -> None:
            ready.wait()
            compare(**SMALL, lr=[0.1, 0.2], runs=tmp_path, watch=turns.append)

        threads = [threading.Thread(target=start) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert len(tenfold.list_runs(runs=tmp_path)) == 2
        assert sorted(turn.recorded for turn in turns if turn.run is not None) == [False, False, True, True]
        assert not (tmp_path / "comparing").exists()

    def test_a_run_that_is_removed_meanwhile_does_not_cost_the_table(self, tmp_path: Path) -> None:
        compare(**SMALL, lr=[0.1], runs=tmp_path)
        store = Store(tmp_path)

        def remove_first(turn: Turn) -> None:
            if turn.place == 3 and turn.begins:
                for number in (1, 2):
                    remove_run(store, store.find(number))

        result = compare(**SMALL, lr=[0.1, 0.2, 0.3], runs=tmp_path, watch=remove_first)
        assert [row.settings["lr"] for row in result.rows] == [0.1, 0.2, 0.3]
        assert all(row.accuracy.values for row in result.rows)
        assert "accuracy" in str(result)
        assert "3 settings compared" in result.report(tmp_path / "page.html").read_text()

    def test_an_interrupted_comparison_goes_on(self, tmp_path: Path) -> None:
        def interrupt(turn: Turn) -> None:
            if turn.place == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            compare(**SMALL, lr=[0.1, 0.2], runs=tmp_path, watch=interrupt)
        turns = self.watched(tmp_path, lr=[0.1, 0.2])
        assert [turn.recorded for turn in turns if not turn.begins] == [True, False]

    def test_an_interrupted_comparison_goes_on_with_the_folds_that_are_missing(self, tmp_path: Path) -> None:
        def interrupt(event: Event) -> None:
            if isinstance(event, FoldChanged) and event.status == "finished":
                raise KeyboardInterrupt

        fields = SMALL | {"folds": 2, "lr": [0.1, 0.2]}
        with pytest.raises(KeyboardInterrupt):
            compare(**fields, runs=tmp_path, listen=interrupt)
        result = compare(**fields, runs=tmp_path)
        assert [run.status for run in result.runs] == ["finished", "finished"]
        assert len(tenfold.list_runs(runs=tmp_path)) == 6, "no fold is trained twice"


class TestFailure:
    def test_one_setting_fails_and_the_rest_is_done(self, tmp_path: Path) -> None:
        turns: list[Turn] = []
        result = compare(**SMALL, lr=[0.1, 1e30], repeats=2, runs=tmp_path, watch=turns.append)
        assert [run.experiment.training.lr for run in result.runs] == [0.1, 0.1]
        assert list(result.failed) == ["lr 1e+30, seed 0", "lr 1e+30, seed 1"]
        assert result.failure_counts().startswith("2 of 4 runs")
        assert all("loss" in reason for reason in result.failed.values())
        assert any(note.startswith("failed: lr 1e+30") for note in result.lines())
        assert [bool(turn.error) for turn in turns if not turn.begins] == [False, True, False, True]

    def test_all_fail(self, tmp_path: Path) -> None:
        with pytest.raises(ExperimentError, match="loss") as raised:
            compare(**SMALL, lr=[1e30, 1e31], runs=tmp_path)
        assert "\n" not in str(raised.value)


def test_networks_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    networks = [nn.Sequential(nn.Flatten(), nn.Linear(64, 10)) for _ in range(2)]
    with pytest.raises(ExperimentError, match="same name"):
        compare(**SMALL | {"model": networks, "hidden": None}, runs=tmp_path)


BASE = tenfold.Experiment(model="mlp", data="digits", limit=100, epochs=1, threads=1)


def planned(**grid):
    return drop_repeated(experiments_of(BASE, grid, repeats=1))


def test_strategies_that_are_the_same_exchange_are_run_once():
    kept, told = planned(workers=[1, 2], strategy=["allreduce", "ring", "none", "butterfly"], sync_every=[4])
    assert [(item.parallel.workers, item.parallel.strategy) for item in kept] == [
        (1, "allreduce"),
        (2, "allreduce"),
        (2, "none"),
    ]
    assert told == ["with 2 workers, ring and butterfly are the same exchange as allreduce: run once"]


def test_those_that_differ_otherwise_are_all_run():
    kept, told = planned(workers=[4], strategy=["allreduce", "ring", "butterfly"], sync_every=[4])
    assert len(kept) == 3
    assert told == []
    kept, _ = planned(workers=[2], strategy=["allreduce", "ring"], sync_every=[4, 8])
    assert len(kept) == 2
