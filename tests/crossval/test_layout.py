"""What a cross-validation will do: no test sample in any fold, all cores shared in every turn."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenfold.crossval import ready
from tenfold.crossval.layout import desks, mode_of, of_one_fold, places, spread_threads
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError
from tenfold.experiment import Division, Experiment
from tenfold.machine import affinity, cores


def experiment(**fields: Any) -> Experiment:
    return Experiment(model="mlp", data="digits", folds=4, **fields)


class TestPlaces:
    @pytest.mark.parametrize("mode", ["folds-over-workers", "data-and-folds", "fold-by-fold"])
    def test_the_test_part_is_in_no_fold(self, mode: str) -> None:
        x = torch.arange(100.0)[:, None]
        asked = Experiment(model="mlp", data=(x, torch.arange(100) % 2), folds=4, workers=2, fold_mode=mode)
        task = prepare(asked)
        aside = set(next(iter(task.splits.test.batches([range(20)])))[0][:, 0].tolist())  # type: ignore[union-attr]
        assert len(aside) == 20
        for place in places(asked, task.splits, task.shards):
            for indices in (place.train, place.validation):
                seen = {value for x, _ in task.splits.train.batches([indices]) for value in x[:, 0].tolist()}
                assert len(seen) == len(indices)
                assert not seen & aside

    def test_the_folds_of_the_whole(self) -> None:
        task = prepare(experiment(fold_repeats=2))
        found = places(task.experiment, task.splits, task.shards)
        assert [(place.repeat, place.fold, place.node) for place in found] == [
            (repeat, fold, 0) for repeat in (1, 2) for fold in (1, 2, 3, 4)
        ]
        assert [place.name for place in found][3:5] == ["fold 4", "repeat 2, fold 1"]

    def test_each_node_has_folds_of_its_own_shard(self) -> None:
        task = prepare(experiment(workers=2, fold_mode="data-and-folds"))
        found = places(task.experiment, task.splits, task.shards)
        assert [place.name for place in found[:3]] == ["node 1, fold 1", "node 2, fold 1", "node 1, fold 2"]
        for node, shard in enumerate(task.shards, 1):
            mine = [place.validation for place in found if place.node == node]
            assert sorted(np.concatenate(mine)) == shard.tolist()
            assert all(set(place.train) <= set(shard) for place in found if place.node == node)


class TestDesks:
    @settings(deadline=None)
    @given(models=st.integers(1, 40), at_once=st.integers(1, 12), usable=st.integers(1, 12))
    def test_all_cores_are_shared_in_every_turn(self, models: int, at_once: int, usable: int) -> None:
        at_once = min(models, at_once, usable)
        taken = spread_threads(models, at_once, usable)
        assert len(taken) == models
        turns = [taken[start : start + at_once] for start in range(0, models, at_once)]
        assert all(sum(turn) == usable for turn in turns)
        assert all(max(turn) - min(turn) <= 1 for turn in turns)

    def test_the_last_folds_get_more_threads(self) -> None:
        assert spread_threads(10, 4, 4) == (1, 1, 1, 1, 1, 1, 1, 1, 2, 2)
        assert spread_threads(3, 2, 2) == (1, 1, 2)
        assert spread_threads(3, 3, 8) == (3, 3, 2)

    @pytest.mark.parametrize(
        ("fields", "at_once", "threads"),
        [
            ({}, 4, (1,) * 8 + (2, 2)),
            ({"threads": 2}, 2, (2,) * 10),
            ({"workers": 2, "fold_mode": "folds-over-workers"}, 2, (2,) * 10),
            ({"workers": 3, "fold_mode": "data-and-folds"}, 3, (1,) * 10),
        ],
    )
    def test_how_many_at_once(
        self, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], at_once: int, threads: tuple[int, ...]
    ) -> None:
        monkeypatch.setattr(cores, "budget", lambda: 4)
        shared = desks(experiment(**fields), 10)
        assert (shared.at_once, shared.threads, shared.cpus, shared.count) == (at_once, threads, (), 4)

    def test_pinned_desks_have_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(affinity, "plan", lambda *_: affinity.CoreMap("compact", ((6,), (7,))))
        assert desks(experiment(pin="compact", threads=1), 3).cpus == (6, 7)


class TestModes:
    @pytest.mark.parametrize(
        ("fields", "mode"),
        [
            ({}, "folds-over-workers"),
            ({"workers": 2}, "fold-by-fold"),
            ({"device": "cuda"}, "fused"),
            ({"workers": 2, "fold_mode": "data-and-folds"}, "data-and-folds"),
        ],
    )
    def test_auto(self, fields: dict[str, Any], mode: str) -> None:
        assert mode_of(experiment(**fields)) == mode

    def test_the_experiment_of_one_fold(self) -> None:
        one = of_one_fold(experiment(workers=2, strategy="ring", fold_repeats=3), "fold 2")
        assert one == Experiment(model="mlp", data="digits", workers=2, strategy="ring", name="mlp-digits, fold 2")
        node = of_one_fold(experiment(workers=2, strategy="ring", fold_mode="data-and-folds", name="mine"), "fold 2")
        assert (node.division, node.name) == (Division(), "mine, fold 2")

    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ({"folds": None}, "division.folds is unset"),
            ({"validation_fraction": 0.1}, "validation_fraction = 0.1: every fold is validated on the part"),
            (
                {"fold_mode": "fused", "workers": 2},
                'fold_mode = "fused" trains one replica a fold, but division.workers = 2',
            ),
            ({"fold_mode": "data-and-folds", "device": "cuda"}, "share a cpu but not the device"),
            ({"workers": 4, "strategy": "ring", "outer": "bmuf"}, "division.outer"),
        ],
    )
    def test_what_cannot_be_done_is_said_first(self, fields: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ExperimentError, match=sentence):
            ready(experiment(**fields) if "folds" not in fields else experiment().replace(**fields))
