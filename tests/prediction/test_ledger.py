"""The ledger of predictions: what is noted, what is scored, and what it says of them."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import tenfold
from tenfold.cluster.time_prediction import TimePrediction
from tenfold.prediction import ledger
from tenfold.prediction.ledger import Ledger, Score, ledger_path

STEPS = 4
"""Of an epoch."""
FIELDS: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [8], "epochs": 1, "limit": 256, "batch_size": 64}


@pytest.fixture(autouse=True)
def _ledger_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_PROFILE", str(tmp_path / "profile.toml"))


def note(seconds: float, **fields: Any) -> None:
    prediction = TimePrediction(
        seconds=seconds,
        interval=(0.9 * seconds, 1.1 * seconds),
        total=seconds,
        times={},
        bytes_per_worker=None,  # type: ignore[arg-type]
        marks={STEPS * fields.get("epochs", 1): seconds},
        spans=(),
        reasons=(),
        calibrated=True,
    )
    Ledger.note(tenfold.Experiment(**FIELDS | fields), 256, prediction, 0.05)


def score(predicted: float, measured: float, key: str = "a", group: str = "g") -> Score:
    return Score(key, group, "1 x 1", predicted, 0.9 * predicted, 1.1 * predicted, measured)


def test_a_prediction_is_scored_by_the_run_that_follows() -> None:
    note(123.0)
    assert not Ledger.load().scores
    run = tenfold.train(**FIELDS)
    (scored,) = Ledger.load().scores
    assert (scored.predicted, scored.measured) == (123.0, run.seconds)
    tenfold.train(**FIELDS, seed=1)
    assert len(Ledger.load().scores) == 2, "each run tests it"


def test_old_predictions_are_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    note(123.0)
    monkeypatch.setattr(ledger, "VALID_SECONDS", 0.0)
    tenfold.train(**FIELDS)
    assert not Ledger.load().scores


def test_a_run_that_stops_early_tests_the_steps_that_it_took() -> None:
    fields = FIELDS | {"epochs": 4, "target": 0.01}
    note(100.0, **fields)
    run = tenfold.train(**fields)
    (scored,) = Ledger.load().scores
    assert (scored.predicted, scored.share) == (25.0, 0.25)
    assert scored.measured == run.seconds


def test_a_plan_is_scored_by_the_time_to_the_target() -> None:
    best = tenfold.Experiment(**FIELDS, target=0.01)
    Ledger.note_plan(best, 256, 50.0, (40.0, 60.0))
    tenfold.train(best.replace(target=0.02))
    assert not Ledger.load().scores
    run = tenfold.train(best)
    (scored,) = Ledger.load().scores
    assert (scored.predicted, scored.measured) == (50.0, run.seconds_to_target)


def test_the_median_of_repeats_is_compared() -> None:
    """Of five runs one was slow: the prediction was right, and covered four of five."""
    scores = Ledger(tuple(score(1.0, measured) for measured in (1.0, 1.02, 0.98, 1.01, 3.0)))
    assert scores.median_error == pytest.approx(0.01, abs=0.001)
    assert scores.coverage == pytest.approx(0.8)


@pytest.mark.parametrize("fields", [{"batch_size": 7}, {"epochs": 2}, {"engine": "one-device"}, {"target": 0.01}])
def test_another_run_scores_nothing(fields: dict[str, Any]) -> None:
    note(123.0)
    tenfold.train(**FIELDS | fields)
    assert not Ledger.load().scores


def test_what_the_scores_say() -> None:
    scores = Ledger((score(1.0, 1.0, "a"), score(2.2, 2.0, "b"), score(2.0, 4.0, "c")))
    assert scores.median_error == pytest.approx(0.1)
    assert scores.coverage == pytest.approx(2 / 3)
    assert scores.rank_correlation() == (pytest.approx(1 / 3), 3)


def test_settings_that_differ_little_are_not_ranked() -> None:
    assert Ledger((score(1.0, 1.0, "a"), score(0.9, 1.04, "b"))).rank_correlation() is None
    assert Ledger((score(1.0, 1.0, "a"), score(0.9, 2.0, "b", group="h"))).rank_correlation() is None


def test_the_typical_error_follows_the_scores() -> None:
    assert Ledger().typical_error == pytest.approx(0.08, abs=1e-4)
    few, many = (Ledger(tuple(score(1.3, 1.0, f"{n}") for n in range(count))) for count in (1, 100))
    assert 0.09 < few.typical_error < 0.15 < many.typical_error < 0.27
    right, wrong = (tuple(score(size, 1.0, f"{size} {n}") for n in range(50)) for size in (1.01, 1e9))
    assert Ledger(right + wrong[:10]).typical_error < 0.05, "outliers of a fifth of the runs do not count"
    assert Ledger(wrong).typical_error < 0.6


def test_eight_of_ten_runs_lie_in_intervals_of_the_typical_error() -> None:
    """Whatever an interval has room for without it counts once."""
    errors, own = torch.randn(400, generator=torch.Generator().manual_seed(0)).mul(0.05).tolist(), 0.03
    half = ledger.DEVIATIONS * math.hypot(own, math.log1p(0.02))
    scores = [
        Score(f"{n}", "g", "1 x 1", 1.0, math.exp(-half), math.exp(half), math.exp(error), typical=0.02)
        for n, error in enumerate(errors)
    ]
    typical = Ledger(tuple(scores)).typical_error
    assert typical == pytest.approx(0.04, abs=0.005)
    wider = ledger.DEVIATIONS * math.hypot(own, typical)
    assert sum(abs(error) <= wider for error in errors) / len(errors) == pytest.approx(0.8, abs=0.01)


def test_the_spread_is_that_of_runs_not_of_errors() -> None:
    """Predictions may be wrong by a factor, as long as all runs of a setting take the same time."""
    wrong = Ledger(tuple(score(2.0, measured) for measured in (1.5, 1.5, 1.5) * 30))
    uneven = Ledger(tuple(score(1.0, measured) for measured in (0.8, 1.25) * 30))
    assert wrong.spread < Ledger().spread == 0.08 < uneven.spread < 0.23


def test_a_damaged_ledger_is_read_as_far_as_it_goes() -> None:
    note(123.0)
    with ledger_path().open("a") as file:
        file.write('nonsense\n[1]\n{"key": 3}\n{"key": "x", "predicted": "1"}\n{"key": "x", "measured": -1.0}\n')
    tenfold.train(**FIELDS)
    assert len(Ledger.load().scores) == 1


def test_a_ledger_that_cannot_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_PROFILE", "/proc/nowhere/profile.toml")
    note(123.0)
    assert tenfold.train(**FIELDS).seconds
