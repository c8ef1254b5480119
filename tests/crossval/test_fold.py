"""The mode of the folds, and the experiment of one fold."""

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from looped import looped

import tenfold
from tenfold.crossval import check_folds, shared_data
from tenfold.crossval import crossval_run as prepare_folds
from tenfold.crossval.fold import FoldMode, fold_experiment, make_fold_splits
from tenfold.engines.prepare import prepare
from tenfold.errors import DataError, ExperimentError, MachineError
from tenfold.experiment import Experiment, Parallel
from tenfold.machine import cores
from tenfold.workers.task import Resolved


def experiment(**fields: Any) -> Experiment:
    return Experiment(model="mlp", data="digits", folds=4, **fields)


@looped(
    ("fields", "mode"),
    [
        ({}, "folds-over-workers"),
        ({"workers": 2}, "fold-by-fold"),
        ({"device": "cuda"}, "stacked"),
        ({"device": "cuda", "workers": 2}, "stacked"),
        ({"workers": 2, "fold_mode": "data-and-folds"}, "data-and-folds"),
    ],
)
def test_auto(fields: dict[str, Any], mode: str) -> None:
    assert FoldMode.of(experiment(**fields)).name == mode


def test_the_experiment_fold_experiment() -> None:
    one = fold_experiment(experiment(workers=2, strategy="ring", fold_repeats=3), "fold 2")
    assert one == Experiment(model="mlp", data="digits", workers=2, strategy="ring", name="mlp-digits, fold 2")
    node = fold_experiment(experiment(workers=2, strategy="ring", fold_mode="data-and-folds", name="mine"), "fold 2")
    assert (node.parallel, node.name) == (Parallel(), "mine, fold 2")


@pytest.mark.parametrize("mode", ["folds-over-workers", "data-and-folds", "fold-by-fold"])
def test_the_test_part_is_in_no_fold(mode: str) -> None:
    x = torch.arange(100.0)[:, None]
    asked = Experiment(model="mlp", data=(x, torch.arange(100) % 2), folds=4, workers=2, fold_mode=mode)
    task = prepare(Resolved.of(asked))
    aside = set(next(iter(task.splits.test.batches([range(20)])))[0][:, 0].tolist())  # type: ignore[union-attr]
    assert len(aside) == 20
    for split in make_fold_splits(task):
        for indices in (split.train, split.validation):
            seen = {value for x, _ in task.splits.train.batches([indices]) for value in x[:, 0].tolist()}
            assert len(seen) == len(indices)
            assert not seen & aside


def test_the_folds_of_the_whole() -> None:
    task = prepare(Resolved.of(experiment(fold_repeats=2)))
    found = make_fold_splits(task)
    assert [(split.repeat, split.fold, split.node) for split in found] == [
        (repeat, fold, 0) for repeat in (1, 2) for fold in (1, 2, 3, 4)
    ]
    assert [split.name for split in found][3:5] == ["fold 4", "repeat 2, fold 1"]


def test_each_node_has_folds_of_its_own_shard() -> None:
    task = prepare(Resolved.of(experiment(workers=2, fold_mode="data-and-folds")))
    found = make_fold_splits(task)
    assert [split.name for split in found[:3]] == ["node 1, fold 1", "node 2, fold 1", "node 1, fold 2"]
    for node, shard in enumerate(task.shards, 1):
        mine = [split.validation for split in found if split.node == node]
        assert sorted(np.concatenate(mine)) == shard.tolist()
        assert all(set(split.train) <= set(shard) for split in found if split.node == node)


def test_a_validation_part_goes_back_to_the_rest_but_not_beside_groups() -> None:
    part = torch.randn(12, 2), torch.arange(12) % 2
    asked = Experiment(model="mlp", data=dict.fromkeys(("train", "validation", "test"), part), folds=2, threads=1)
    with shared_data(Resolved.of(asked)) as task:
        assert (len(task.splits.train), task.splits.validation) == (24, None)
    with (
        pytest.raises(DataError, match="validation"),
        shared_data(Resolved.of(asked.replace(groups=np.arange(12) // 3))),
    ):
        pass


@looped(
    ("fields", "sentence"),
    [
        ({"folds": None}, "set parallel.folds"),
        ({"validation_fraction": 0.1}, "validation_fraction"),
        ({"fold_mode": "stacked", "workers": 2, "strategy": "downpour"}, "replicas"),
        ({"fold_mode": "stacked", "activation_checkpointing": True}, "supported"),
        ({"fold_mode": "data-and-folds", "workers": 2, "device": "cuda", "precision": "fp16"}, "fp16"),
        ({"fold_mode": "folds-over-workers", "device": "cuda"}, "is supported on CPU only"),
        ({"workers": 4, "strategy": "ring", "outer": "bmuf"}, "parallel.outer"),
    ],
)
def test_what_cannot_be_done_is_said_first(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError, match=sentence):
        check_folds(experiment(**fields) if "folds" not in fields else experiment().replace(**fields))


@pytest.mark.parametrize(
    ("fields", "processes"), [({}, 4), ({"folds": 3}, 3), ({"threads": 2}, 2), ({"workers": 6}, 6)]
)
def test_open_files_are_checked_for_the_processes_that_folds_start(
    fields: dict[str, Any], processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "budget", lambda: 4)
    checked: list[int] = []
    monkeypatch.setattr(prepare_folds, "start_server_for", checked.append)
    fields = {"folds": 10, "fold_mode": "folds-over-workers"} | fields
    prepare_folds.start_processes_early(Experiment(model="mlp", data="digits", **fields))
    assert checked == [processes]


def test_too_few_open_files_leave_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "budget", lambda: 4)
    monkeypatch.setattr(cores, "workers_within_limit", lambda *_: 2)
    with pytest.raises(MachineError, match="open files"):
        tenfold.cross_validate(model="mlp", data="digits", limit=40, folds=4, runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_that_the_data_need_count_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared memory has a file for each tensor; the folds' processes come after them."""
    monkeypatch.setattr(cores, "budget", lambda: 2)
    enough_at_first = psutil.Process().num_fds() + cores.SPARE + 2 * cores.PER_WORKER
    monkeypatch.setattr(cores, "open_file_limit", lambda: enough_at_first)
    with pytest.raises(MachineError, match="open files"):
        tenfold.cross_validate(model="mlp", data="digits", limit=40, folds=2, epochs=1, runs=tmp_path)
    assert not list(tmp_path.iterdir())
