import pytest
from made_runs import make_run

from tenfold.reports import run_tables
from tenfold.reports.display import as_plain_text
from tenfold.reports.tables import TextTable


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
