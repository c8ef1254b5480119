"""Who goes on from whose checkpoint, and what cannot go on at all."""

from typing import Any

import numpy as np
import pytest
import torch
from engine_models import numbered
from hypothesis import given
from hypothesis import strategies as st

from tenfold.engines import choose
from tenfold.engines.launched import Launched, assign_states
from tenfold.engines.prepare import prepare, validate, validate_combination
from tenfold.engines.processes import divide_among
from tenfold.errors import ExperimentError, StoreError, WorkerLost
from tenfold.experiment import Experiment
from tenfold.launchers import World
from tenfold.runs.events import Stopwatch
from tenfold.workers.coordinator import LostWorker
from tenfold.workers.task import Resolved


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, unique=True), min_size=1, max_size=8))
def test_each_rank_takes_what_it_sees_and_its_own_first(seen: list[list[int]]) -> None:
    taken = assign_states(seen)
    for rank, (item, visible) in enumerate(zip(taken, seen, strict=True)):
        assert item in visible
        assert item == rank or rank not in visible


def test_ranks_that_see_everything_take_different_states() -> None:
    assert assign_states([[0, 1, 2]] * 2) == [0, 1]
    assert assign_states([[0, 1, 2]] * 4) == [0, 1, 2, 0]
    assert assign_states([[2], [3]]) == [2, 3], "the host with the first ranks is gone"


def test_a_rank_that_sees_nothing_is_named() -> None:
    with pytest.raises(StoreError, match="rank 1 cannot see the checkpoint"):
        assign_states([[0], []])


def experiment(**fields: Any) -> Experiment:
    usual = {"workers": 3, "on_failure": "continue", "threads": 1, "oversubscribe": True}
    return Experiment(**{"model": "mlp", "data": {"train": numbered(48), "test": numbered(6)}} | usual | fields)


def test_the_data_are_divided_among_those_who_are_left_and_the_rate_follows() -> None:
    three = prepare(Resolved.of(experiment(lr_scaling="linear")))
    for left in (2, 1):
        task = divide_among(three, left)
        assert np.array_equal(np.sort(np.concatenate(task.shards)), np.arange(48))
        assert len(task.shards) == left
        assert task.resolved.lr_scale == left
        assert torch.equal(torch.cat([task.share(task.splits.test, rank) for rank in range(left)]), torch.arange(6))


def test_a_loss_is_told_in_one_sentence() -> None:
    loss = LostWorker.of(WorkerLost(1, "worker 1 (process 7) was killed by SIGKILL"), 1, None)
    event = loss.event(Stopwatch())
    assert event.text == "worker 1 (process 7) was killed by SIGKILL; 1 worker continues from epoch 1"
    assert (event.stage, event.worker, event.epoch) == ("lost", 1, 0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "easgd"}, 'parallel.strategy = "easgd" has none; use one such as butterfly'),
    (
        {"strategy": "butterfly", "workers": 5, "outer": "bmuf"},
        "does not guarantee with the 4 workers that may be left",
    ),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_could_not_go_on_is_refused_before_anything_starts(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        validate_combination(Resolved.of(experiment(**fields)))
    assert sentence in str(refused.value)
    validate_combination(Resolved.of(experiment(**fields, on_failure="end")))


@pytest.mark.parametrize(
    "fields", [{}, {"strategy": "ring"}, {"strategy": "butterfly", "outer": "bmuf"}, {"compression": "topk"}]
)
def test_rounds_can_go_on(fields: dict[str, Any]) -> None:
    assert choose(experiment(**fields)).name == "processes"


def world(size: int, launcher: str = "torchrun", restarts: int = 0) -> World:
    return World(rank=0, size=size, local_rank=0, local_size=size, launcher=launcher, restarts=restarts)


class TestUnderALauncher:
    def test_a_restart_may_bring_fewer_ranks_than_the_experiment_has_workers(self) -> None:
        validate(experiment(), world(2, restarts=1))
        assert issubclass(choose(experiment(), world(1, restarts=1)), Launched)

    @pytest.mark.parametrize(("on_failure", "restarts"), [("continue", 0), ("end", 1)])
    def test_else_the_numbers_must_agree(self, on_failure: str, restarts: int) -> None:
        with pytest.raises(ExperimentError, match="2 ranks"):
            validate(experiment(on_failure=on_failure), world(2, restarts=restarts))

    def test_fractions_cannot_be_divided_again(self) -> None:
        fields = {"shards": "fractions", "fractions": [0.5, 0.3, 0.2]}
        with pytest.raises(ExperimentError, match='"fractions" sets the share of each of 3;'):
            validate(experiment(**fields), world(3))
        validate(experiment(**fields), None)

    def test_only_torchrun_starts_those_who_are_left(self) -> None:
        with pytest.raises(ExperimentError, match=r"requires torchrun, .* open-mpi does not"):
            validate(experiment(), world(3, "open-mpi"))
