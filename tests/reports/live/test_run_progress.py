import io
from dataclasses import replace

import pytest
from made_runs import epoch_events, started
from rich.console import Console

from tenfold.experiment import Experiment
from tenfold.reports.progress import RunProgress
from tenfold.runs import EpochEnded, Lifecycle, Metric, Warned, WorkerDropped


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


def test_a_run_without_classes_shows_its_loss():
    experiment = Experiment(epochs=1)
    assert "test loss" in listen(experiment, whole_run(experiment, accuracy=False))


def test_lines_hold_no_control_characters():
    experiment = Experiment()
    warning = Warned(at=0, text="odd \x1b[31m name\r\n")
    text = listen(experiment, [warning, *whole_run(experiment)])
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert text.startswith("warning: odd")


def test_a_lost_worker_leaves_a_line():
    lost = WorkerDropped(at=1, text="worker 1 was killed; 2 workers go on, from epoch 1", worker=1)
    assert listen(Experiment(), [lost]) == f"lost: {lost.text}\n"


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


def test_an_epoch_ends_whether_or_not_it_is_announced():
    experiment = Experiment(epochs=3)
    events = [event for event in whole_run(experiment) if not isinstance(event, EpochEnded)]
    assert listen(experiment, events).count("epoch") == 3
    announced_first = sorted(whole_run(experiment), key=lambda event: (event.epoch, not isinstance(event, Lifecycle)))
    assert listen(experiment, announced_first).count("epoch") == 3


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


def test_a_start_of_unknown_size_does_no_harm():
    experiment = Experiment(epochs=1)
    text = listen(experiment, [started(experiment, 0, samples=0), *epoch_events(experiment, 0)])
    assert text.startswith("epoch 1/1  loss")
    assert "samples/s" not in text


def test_only_the_first_worker_is_shown():
    experiment = Experiment(epochs=1)
    other = Metric(at=9, name="accuracy", value=0.5, part="test", step=1, epoch=0, seconds=9, worker=1)
    assert "50.00%" not in listen(experiment, [*whole_run(experiment)[:-1], other])
