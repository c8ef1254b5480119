"""A cross-validation as tables: every fold, what they say together, and what went wrong."""

import io
from typing import Any, cast

from rich.console import Console

from tenfold.reports.run_tables import fold_tables, name_of
from tenfold.runs import Run


def fold(number: int, accuracy: float | None, **changes: Any) -> dict[str, Any]:
    measured = {"accuracy": accuracy, "loss": 0.1} if accuracy is not None else {}
    return {
        "fold": number,
        "repeat": 1,
        "node": 0,
        "run": number + 1,
        "status": "finished" if measured else "failed",
        "error": "" if measured else 'the loss became nan\n  File "model.py", line 3',
        "metrics": dict.fromkeys(("train", "validation", "test"), measured),
        "seconds": 1.0,
        "threads": 1,
        "train_samples": 1_000,
        "validation_samples": 500,
    } | changes


class Made:
    """As much of a run as the tables read."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result
        self.clock = "measured"
        self.seconds = result.get("seconds")
        self.metrics = result.get("metrics", {})


def printed(result: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(fold_tables(cast(Run, Made(result))))
    return console.export_text()


def whole() -> dict[str, Any]:
    values = {"accuracy": {"mean": 0.9, "std": 0.1, "low": 0.8, "high": 1.0}, "loss": {"mean": 0.1}}
    model = {"metrics": {"accuracy": 0.91}}
    return {
        "mode": "fold-by-fold",
        "seconds": 3.0,
        "folds": [fold(1, 0.8), fold(2, None), fold(3, 1.0)],
        "spread": dict.fromkeys(("train", "validation", "test"), values),
        "models": {"best": model | {"fold": 3}, "average": model, "vote": model},
    }


def test_folds_summary_and_models() -> None:
    told = printed(whole())
    assert "80.00% – 100.00%" in told
    assert "fold 2: the loss became nan" in told
    assert "1,000 + 500" in told
    assert "fold by fold; 3.00 s measured" in told
    assert "best model by validation, fold 3" in told
    assert "loss" not in told.replace("the loss became nan", "")


def test_what_is_known_of_an_interrupted_one() -> None:
    told = printed({"mode": "folds-over-workers", "folds": [fold(1, 0.8)]})
    assert "fold 1" in told
    assert "mean" not in told
    assert printed({}).strip() == ""


def test_names() -> None:
    folds = [fold(1, 0.5, node=2), fold(1, 0.5, repeat=2)]
    assert [name_of(fold) for fold in folds] == ["node 2, fold 1", "repeat 2, fold 1"]
