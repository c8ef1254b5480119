import io

import pytest
from made_runs import epoch_events, started
from rich.console import Console

from tenfold.experiment import Experiment
from tenfold.reports.display import as_plain_text
from tenfold.reports.progress import GridProgress
from tenfold.runs import FoldChanged, FoldsStarted, Warned

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


def test_a_cross_validation_has_a_bar_for_each_fold(progress):
    progress.start_run("1/1  5 folds", Experiment(folds=5))
    progress.listen(FoldsStarted(at=0.0, mode="fold-by-fold", names=("fold 1", "fold 2"), epochs=3))
    progress.listen(FoldChanged(at=0.0, fold=1, repeat=1, node=0, status="started", steps_per_epoch=10))
    assert "fold 1" in drawn(progress)
    assert "0 of 2 folds done" in drawn(progress)


def test_warnings_are_written_and_quiet_writes_nothing(progress):
    progress.listen(Warned(at=0.0, text="look\nout"))
    assert progress.console.file.getvalue() == "warning: look out\n"
    quiet = GridProgress(quiet=True, console=Console(file=io.StringIO()))
    quiet.start_run("1/1", EXPERIMENT)
    quiet.end_run("1/1 done")
    assert quiet.console.file.getvalue() == ""
