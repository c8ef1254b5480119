"""The mode of the folds, and the experiment of one fold."""

from typing import Any

from looped import looped

from tenfold.crossval.fold import FoldMode, fold_experiment
from tenfold.experiment import Experiment, Parallel


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
