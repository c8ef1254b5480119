"""The folds' samples: none of the test part, each validated once."""

from typing import Any

import numpy as np
import pytest
import torch

from tenfold.crossval.fold import make_fold_splits
from tenfold.engines.prepare import prepare
from tenfold.experiment import Experiment
from tenfold.workers.task import Resolved


def experiment(**fields: Any) -> Experiment:
    return Experiment(model="mlp", data="digits", folds=4, **fields)


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
