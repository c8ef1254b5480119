import io
from typing import Any, cast

import pytest
from made_runs import make_run
from rich.console import Console

from tenfold.reports import run_tables
from tenfold.reports.display import as_plain_text
from tenfold.reports.run_tables import fold_tables, name_of
from tenfold.reports.tables import TextTable
from tenfold.runs import Run


def shown(renderable, width=120):
    return as_plain_text(renderable, width)


def test_result_says_what_came_out_with_units(tmp_path):
    text = shown(run_tables.run_summary_table(make_run(tmp_path)))
    for expected in (
        "lenet5, 61,706 parameters",
        "mnist, 60,000 training and 10,000 test samples",
        "3 epochs, 2,814 steps",
        "test accuracy",
        "%",
        "10.1 s measured, 17,768 samples/s",
        "startup 1.20 s, evaluation 1.14 s, saving 20.0 ms",
        "1 worker with 2 threads on cpu",
        str(tmp_path),
    ):
        assert expected in text.replace("\n", "")


def test_result_of_a_failed_run_says_why(tmp_path):
    failed = make_run(tmp_path, status="failed", epochs_done=1, error="the loss is no number")
    text = shown(run_tables.run_summary_table(failed))
    assert "the loss is no number" in text
    assert "1 of 3 epochs" in text
    assert "training time" not in text


def test_result_of_an_interrupted_run_says_how_to_go_on(tmp_path):
    assert "tenfold resume 1" in shown(
        run_tables.run_summary_table(make_run(tmp_path, status="interrupted", epochs_done=1))
    )


def test_runs_tell_what_differs(tmp_path):
    runs = [make_run(tmp_path), make_run(tmp_path, lr=0.1, workers=2), make_run(tmp_path, status="failed", error="no")]
    lines = shown(run_tables.runs_table(runs, now=runs[0].created + 200)).splitlines()
    assert "lr=0.1 workers=2" in lines[3]
    assert "lr=" not in lines[2]
    assert "3 min ago" in lines[2]
    assert "10.1 s" in lines[2]
    assert "–/3" in lines[4]
    assert "measured" in lines[-1]


def test_runs_without_classes_show_their_loss(tmp_path):
    header = shown(run_tables.runs_table([make_run(tmp_path, accuracy=False)])).splitlines()[0]
    assert "loss" in header
    assert "accuracy" not in header
    mixed = shown(run_tables.runs_table([make_run(tmp_path, accuracy=False), make_run(tmp_path)])).splitlines()[0]
    assert "loss" in mixed
    assert "accuracy" in mixed


def test_cells_do_not_end_where_a_text_has_a_bar():
    assert TextTable(["a", "b"], [["x|y", "1"]]).to_markdown() == "| a | b |\n|---|---|\n| x\\|y | 1 |\n"


def test_no_runs_is_said():
    assert "no runs yet" in shown(run_tables.runs_table([]))


def test_show_has_everything(tmp_path):
    run = make_run(tmp_path, lr=0.1, workers=2, name="two")
    text = shown(run_tables.show_tables(run))
    lines = [line.split() for line in text.splitlines()]
    assert ["lr", "0.1"] in lines
    assert ["workers", "2"] in lines
    assert "optimizer=muon" in text
    assert "time, measured" in text
    assert "communication" in text
    assert "experiment.toml" in text
    assert "tenfold train --set lr=0.05" in text
    assert lines.index(["lr", "0.1"]) < next(at for at, line in enumerate(lines) if "optimizer=muon" in line)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("status", ["finished", "failed", "interrupted", "running"])
@pytest.mark.parametrize("empty", [True, False])
def test_every_table_renders_for_every_run(tmp_path, width, status, empty):
    run = make_run(tmp_path, steps_per_epoch=40, status=status, empty=empty, metadata={}, name="[red]loud[/] \x1b[2J")
    for renderable in (run_tables.run_summary_table(run), run_tables.runs_table([run]), run_tables.show_tables(run)):
        text = shown(renderable, width)
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= width
    assert "[red]loud[/]" in shown(run_tables.run_summary_table(run))


@pytest.mark.parametrize("width", [80, 120])
def test_numbers_are_never_cut(tmp_path, width):
    runs = [
        make_run(tmp_path, steps_per_epoch=40),
        make_run(tmp_path, steps_per_epoch=40, lr=0.1, strategy="butterfly"),
    ]
    assert "…" not in shown(run_tables.runs_table(runs), width)


@pytest.mark.parametrize("width", [20, 30, 50])
def test_a_narrow_terminal_keeps_the_numbers_and_titles_of_runs(tmp_path, width):
    runs = [make_run(tmp_path, steps_per_epoch=40, name=f"title{number}") for number in range(3)]
    text = shown(run_tables.runs_table(runs), width)
    assert max(map(len, text.splitlines())) <= width
    lines = [line.split() for line in text.splitlines()]
    for number, run in enumerate(runs):
        assert any(line[:2] == [str(run.id), f"title{number}"] for line in lines)
    assert "…" not in text


def test_a_very_long_title_is_cut_off(tmp_path):
    run = make_run(tmp_path, steps_per_epoch=40, name="long " * 2000)
    for renderable in (run_tables.run_summary_table(run), run_tables.runs_table([run]), run_tables.show_tables(run)):
        assert shown(renderable, 120).count("long") < 60


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
