"""The predicted time of a cross-validation."""

from typing import Any

import pytest
import torch

from tenfold.crossval.crossval_run import predict_fold_times
from tenfold.data import Splits, Tensors
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.prediction.task_prediction import predict_task
from tenfold.workers.task import Resolved, Task

NODES = {"groups": [{"count": 4, "step_seconds": 0.01}]}


def predicted(cluster: dict[str, Any] = NODES, **fields: Any) -> float:
    part = Tensors(torch.zeros(120, 3), torch.zeros(120, 1))
    splits = Splits(name="zeros", train=part, shape=(3,), classes=None, outputs=1)
    experiment = Experiment(
        model="mlp", hidden=[4], batch_size=1, epochs=1, cluster=cluster, engine="virtual", **fields
    )
    task = Task.of(Resolved.of(experiment), splits, 1)
    return (predict_fold_times(task, predict_task) if experiment.parallel.folds else predict_task(task)).seconds


@pytest.mark.parametrize(
    ("mode", "steps"),
    [
        ("folds-over-workers", 3 * 108),  # 10 folds on 4 workers take 3 turns of 9/10 of the samples
        ("data-and-folds", 10 * 27),  # each node trains 10 folds on 9/10 of its 30 samples
    ],
)
def test_the_folds_take_turns(mode: str, steps: int) -> None:
    assert predicted(workers=4, folds=10, fold_mode=mode) == pytest.approx(0.01 * steps, rel=1e-6)


def test_nodes_that_share_the_cores_of_a_computer_slow_each_other_down() -> None:
    crowded = {"groups": [{"workers": 4, "cores": 2, "step_seconds": 0.01}]}
    for mode in ("folds-over-workers", "data-and-folds"):
        apart, together = (predicted(cluster, workers=4, folds=8, fold_mode=mode) for cluster in (NODES, crowded))
        assert together == pytest.approx(2 * apart, rel=1e-6)


def test_folds_that_use_all_workers_follow_one_another() -> None:
    one_fold = predicted(workers=4, folds=10, fold_mode="fold-by-fold") / 10
    assert 0.9 * predicted(workers=4) == pytest.approx(one_fold, rel=0.05)


def test_fused_folds_are_refused() -> None:
    with pytest.raises(ExperimentError, match="virtual"):
        predicted(workers=1, folds=10, fold_mode="stacked")
