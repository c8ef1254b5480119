"""The best of the folds."""

import math

import pytest

from tenfold.crossval.combine import rank


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        ({"loss": math.nan}, {"loss": 7.0}),
        ({"loss": 2.0}, {"loss": 1.0}),
        ({"loss": 1.0, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.6}),
        ({"loss": math.nan, "accuracy": 0.5}, {"loss": 2.0, "accuracy": 0.5}),
    ],
)
def test_the_best_comes_first_wherever_it_stands(worse: dict[str, float], better: dict[str, float]) -> None:
    assert min([worse, better], key=rank) is min([better, worse], key=rank) is better
