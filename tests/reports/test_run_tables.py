import io
from typing import Any, cast

import pytest
from made_runs import make_run
from rich.console import Console

import tenfold
from tenfold.reports import run_tables
from tenfold.reports.display import as_plain_text
from tenfold.reports.pages.run_pages import render_report
from tenfold.reports.run_tables import fold_tables
from tenfold.reports.tables import TextTable
from tenfold.runs import Run


def shown(renderable, width=120):
    return as_plain_text(renderable, width)


def test_result_of_a_failed_run_says_why(tmp_path):
    failed = make_run(tmp_path, status="failed", epochs_done=1, error="the loss is no number")
    text = shown(run_tables.run_summary_table(failed))
    assert "the loss is no number" in text
    assert "1 of 3 epochs" in text
    assert "training time" not in text


def test_cells_do_not_end_where_a_text_has_a_bar():
    assert TextTable(["a", "b"], [["x|y", "1"]]).to_markdown() == "| a | b |\n|---|---|\n| x\\|y | 1 |\n"


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("status", ["finished", "failed", "interrupted", "running"])
@pytest.mark.parametrize("empty", [True, False])
def test_every_table_renders_for_every_run(tmp_path, width, status, empty):
    run = make_run(tmp_path, steps_per_epoch=40, status=status, empty=empty, metadata={}, name="[red]loud[/] \x1b[2J")
    for renderable in (run_tables.run_summary_table(run), run_tables.RunsTable([run]), run_tables.show_tables(run)):
        text = shown(renderable, width)
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= width
    assert "[red]loud[/]" in shown(run_tables.run_summary_table(run))


@pytest.mark.parametrize("width", [20, 30, 50])
def test_a_narrow_terminal_keeps_the_numbers_and_titles_of_runs(tmp_path, width):
    runs = [make_run(tmp_path, steps_per_epoch=40, name=f"title{number}") for number in range(3)]
    text = shown(run_tables.RunsTable(runs), width)
    assert max(map(len, text.splitlines())) <= width
    lines = [line.split() for line in text.splitlines()]
    for number, run in enumerate(runs):
        assert any(line[:2] == [str(run.id), f"title{number}"] for line in lines)
    assert "…" not in text


def test_very_long_titles_do_not_fill_the_screen(tmp_path):
    run = make_run(tmp_path, steps_per_epoch=40, name="x" * 10_000)
    for renderable in (run_tables.RunsTable([run]), run_tables.run_summary_table(run), run_tables.show_tables(run)):
        assert shown(renderable, 80).count("x") < 1000


@pytest.mark.parametrize(("lr_scaling", "factor"), [("sqrt", 2), ("none", 1)])
def test_a_learning_rate_is_shown_as_it_was_trained_with(tmp_path, lr_scaling, factor):
    fields = {"model": "mlp", "data": "digits", "limit": 200, "epochs": 1, "engine": "one-device", "workers": 4}
    run = tenfold.train(**fields, lr=0.02, lr_scaling=lr_scaling, strategy="ring", runs=tmp_path)
    rates = [event.value for event in run.events("metric") if event.name == "lr"]
    assert max(rates) <= 0.02 * factor
    for text in (shown(run_tables.run_summary_table(run)), shown(run_tables.show_tables(run)), render_report([run])):
        assert ("0.04 = 0.02" in text) == (factor == 2)
        assert "0.02" in text


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
