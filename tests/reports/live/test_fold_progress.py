"""The progress of folds: a line for each that is done, bars on a terminal."""

import io
from typing import Any

from rich.console import Console

from tenfold.reports.progress import FoldProgress
from tenfold.runs import Event, FoldChanged, FoldsStarted, Metric, Warned


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
END = fold(0, status="finished", seconds=1.5, run=2, metrics={"loss": 0.3, "accuracy": 0.95})


def shown(terminal: bool, *events: Event, quiet: bool = False) -> tuple[str, str]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with FoldProgress(quiet=quiet, console=console) as progress:
        for event in events:
            progress.listen(event)
        drawn = Console(file=io.StringIO(), width=100, record=True)
        drawn.print(progress.drawing())
    return file.getvalue(), drawn.export_text()


def test_plain_lines() -> None:
    said, _ = shown(False, *EVENTS, END)
    assert said.splitlines() == [
        "started: 3 folds, folds over workers",
        "fold 2  failed: the loss became nan",
        "fold 1  validation accuracy 95.00%  1.50 s measured",
    ]


def test_a_bar_for_each_fold_that_is_trained() -> None:
    _, drawn = shown(True, *EVENTS)
    assert "fold 1" in drawn
    assert "epoch 2/2  loss 0.5000  accuracy 90.00%" in drawn
    assert "fold 2" not in drawn
    assert "1 of 3 folds done" in drawn


def test_warnings_are_said() -> None:
    warning = Warned(at=0.0, text="fold 1: not pinned")
    assert "warning: fold 1: not pinned" in shown(False, *EVENTS, warning)[0]


def test_quiet() -> None:
    assert shown(False, *EVENTS, END, quiet=True)[0] == ""


def test_before_anything_is_known() -> None:
    assert "starting" in shown(True)[1]
