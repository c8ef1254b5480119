"""Mean, standard deviation and interval, against a case computed by hand."""

import math

import pytest

from tenfold.crossval.fold_statistics import interval, summarize_folds, summary

# By hand: the mean of 0.90, 0.92, 0.94, 0.96, 0.98 is 0.94; the squared deviations add up to 0.0040, so that
# s = sqrt(0.0040 / 4) = 0.0316228; t(0.975, 4) = 2.776445; the reach is 2.776445 * 0.0316228 / sqrt(5) = 0.0392649.
FIVE = [0.90, 0.92, 0.94, 0.96, 0.98]


def test_five_folds_by_hand() -> None:
    found = summary(FIVE)
    assert found["mean"] == pytest.approx(0.94)
    assert found["std"] == pytest.approx(0.0316228, abs=1e-7)
    assert found["low"] == pytest.approx(0.94 - 0.0392649, abs=1e-6)
    assert found["high"] == pytest.approx(0.94 + 0.0392649, abs=1e-6)


def test_other_levels() -> None:
    low, high = interval(FIVE, 0.99) or (math.nan, math.nan)
    assert (high - low) / 2 == pytest.approx(4.604095 * 0.0316228 / math.sqrt(5), abs=1e-6)  # t(0.995, 4)


def test_one_value_says_nothing_of_its_spread() -> None:
    assert interval([0.9]) is None
    assert summary([0.9]) == {"mean": 0.9, "std": None, "low": None, "high": None}


def test_folds_that_failed_do_not_count() -> None:
    def fold(status: str, accuracy: float) -> dict[str, object]:
        return {"status": status, "metrics": {"train": {}, "validation": {"accuracy": accuracy}, "test": {}}}

    found = summarize_folds([fold("finished", 0.8), fold("failed", 0.1), fold("finished", 0.9)])
    assert found["validation"]["accuracy"]["mean"] == pytest.approx(0.85)
    assert found["train"] == found["test"] == {}
