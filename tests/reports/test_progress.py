import io
from dataclasses import replace
from typing import Any

import pytest
from made_runs import epoch_events, started
from rich.console import Console

from tenfold.experiment import Experiment
from tenfold.reports.display import as_plain_text
from tenfold.reports.progress import FoldProgress, GridProgress, RankTimes, RunProgress
from tenfold.runs.events import Event, FoldChanged, FoldsStarted, Metric, Span, Warned


def listen(experiment, events, *, terminal=False, width=100, **options):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=width, _environ={"TERM": "xterm"})
    with RunProgress(experiment, console=console, **options) as progress:
        for event in events:
            progress.listen(event)
    return console.file.getvalue()


def whole_run(experiment, **options):
    epochs = range(experiment.training.epochs)
    return [
        started(experiment, 938),
        *(event for epoch in epochs for event in epoch_events(experiment, epoch, **options)),
    ]


def test_one_plain_line_an_epoch():
    experiment = Experiment(lr=0.08, epochs=2)
    lines = listen(experiment, whole_run(experiment)).splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("epoch 2/2  loss 0.17")
    assert lines[1].endswith("  17,768 samples/s  6.75 s measured")
    assert "  test accuracy 93." in lines[1]


def test_lines_hold_no_control_characters():
    experiment = Experiment()
    warning = Warned(at=0, text="odd \x1b[31m name\r\n")
    text = listen(experiment, [warning, *whole_run(experiment)])
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert text.startswith("warning: odd")


def test_quiet_says_nothing_even_on_a_terminal():
    experiment = Experiment()
    warning = Warned(at=0, text="odd")
    assert listen(experiment, [warning, *whole_run(experiment)], quiet=True, terminal=True) == ""


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_gets_lines_and_gives_the_cursor_back(width):
    experiment = Experiment(epochs=2)
    text = listen(experiment, whole_run(experiment), terminal=True, width=width)
    assert "epoch 2/2" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_live_line_tells_how_far_it_is():
    experiment = Experiment()
    console = Console(file=io.StringIO(), width=100)
    progress = RunProgress(experiment, console=console)
    console.print(progress.drawing())
    for event in whole_run(experiment):
        if event.epoch == 1 and isinstance(event, Metric) and event.step > 1400:
            break
        progress.listen(event)
    console.print(progress.drawing())
    first, *_, last = console.file.getvalue().splitlines()
    assert first.strip() == "starting, 3 epochs"
    for expected in ("epoch 2/3", "loss", "test accuracy", "0:06 left", "17,768 samples/s"):
        assert expected in last


def test_an_exception_passes_and_what_was_measured_is_shown():
    experiment = Experiment()
    console = Console(file=io.StringIO())
    with pytest.raises(KeyboardInterrupt), RunProgress(experiment, console=console) as progress:  # noqa: PT012
        for event in epoch_events(experiment, 0)[:-1]:
            progress.listen(event)
        raise KeyboardInterrupt
    assert console.file.getvalue().startswith("epoch 1/3")


def test_a_resumed_run_is_timed_from_where_it_goes_on():
    experiment = Experiment()
    resumed = replace(started(experiment, 938), at=50.0, epoch=2, resumed=True)
    events = [resumed, *epoch_events(experiment, 2)]
    first, second = listen(experiment, events).splitlines()
    assert first == "resumed at epoch 3 of 3"
    assert "17,768 samples/s" in second


def fold(worker: int, **metadata: Any) -> FoldChanged:
    return FoldChanged(at=0.0, worker=worker, fold=worker + 1, repeat=1, node=0, **metadata)


def metric(name: str, value: float, part: Any, step: int, worker: int) -> Metric:
    return Metric(at=0.0, name=name, value=value, part=part, step=step, epoch=0, seconds=0.1, worker=worker)


EVENTS = [
    FoldsStarted(at=0.0, mode="folds-over-workers", names=("fold 1", "fold 2", "fold 3"), epochs=2),
    fold(0, status="started", steps_per_epoch=10, run=2, metrics={}),
    fold(1, status="started", steps_per_epoch=10, run=3, metrics={}),
    metric("loss", 0.5, "train", 10, 0),
    metric("loss", 0.4, "validation", 10, 0),
    metric("accuracy", 0.9, "validation", 10, 0),
    fold(1, status="failed", error="the loss became nan", run=3, metrics={}),
]


def shown(terminal: bool, *events: Event, quiet: bool = False) -> tuple[str, str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with FoldProgress(quiet=quiet, console=console) as progress:
        for event in events:
            progress.listen(event)
        drawn = Console(file=io.StringIO(), width=100, record=True)
        drawn.print(progress.drawing())
    return file.getvalue(), drawn.export_text()


def test_a_bar_for_each_fold_that_is_trained() -> None:
    _, drawn = shown(True, *EVENTS)
    assert "fold 1" in drawn
    assert "epoch 2/2  loss 0.5000  accuracy 90.00%" in drawn
    assert "fold 2" not in drawn
    assert "1 of 3 folds done" in drawn


EXPERIMENT = Experiment(epochs=2)


@pytest.fixture
def progress():
    return GridProgress(console=Console(file=io.StringIO(), width=120))


def drawn(progress):
    return as_plain_text(progress.drawing(), 120)


def test_the_running_cell_has_a_bar_and_a_time_left(progress):
    progress.start_run("1/2  1 worker", EXPERIMENT)
    assert "starting, 2 epochs" in drawn(progress)
    progress.listen(started(EXPERIMENT, 938))
    for event in epoch_events(EXPERIMENT, 0)[:4000]:
        progress.listen(event)
    assert drawn(progress).startswith("1/2  1 worker")
    assert "epoch 1/2" in drawn(progress)
    assert " left" in drawn(progress)


def test_only_runs_that_are_done_leave_lines(progress):
    with progress:
        progress.start_run("1/2  1 worker", EXPERIMENT)
        for event in epoch_events(EXPERIMENT, 0):
            progress.listen(event)
        progress.end_run("1/2  1 worker: 3 s measured")
    assert progress.console.file.getvalue() == "1/2  1 worker: 3 s measured\n"
    assert drawn(progress) == ""


def span(worker: int, kind: str, seconds: float) -> Span:
    return Span(at=0.0, kind=kind, seconds=seconds, worker=worker)  # type: ignore[arg-type]


def test_the_spans_of_the_asked_ranks_are_added_up() -> None:
    times = RankTimes({1, 3})
    for item in (span(1, "compute", 1.0), span(0, "compute", 5.0), span(1, "compute", 0.5), span(3, "wait", 2.0)):
        times.add(item)
    assert times.lines() == ["[rank 1] compute 1.50 s", "[rank 3] wait 2.00 s"]
    assert times.lines() == []
