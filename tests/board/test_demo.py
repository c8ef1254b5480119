import io

import pytest
import torch
from rich.console import Console
from torch import nn

from tenfold.board.demo import RaceDisplay, choose_task, make_sides, steps_of
from tenfold.board.demo_tasks import TASKS
from tenfold.board.race import Contestant, Race
from tenfold.engines import resolve
from tenfold.engines.prepare import prepare
from tenfold.errors import DataError, ExperimentError
from tenfold.reports.display import as_plain_text
from tenfold.runs.events import Metric
from tenfold.workers.task import make_network


@pytest.mark.parametrize("name", TASKS)
def test_each_side_of_a_task_trains_its_network_on_generated_data(name):
    loop, alone, many = (side.experiment for side in make_sides(TASKS[name]))
    task = prepare(resolve(loop))
    losses = [
        float(loss)
        for loss, _ in zip(steps_of(make_network(task), task), range(30 if name == "tabular" else 12), strict=False)
    ]
    assert losses[-1] < losses[0]
    assert (loop.model, loop.data) == (alone.model, alone.data) == (many.model, many.data)
    assert many.parallel.workers > alone.parallel.workers == 1


@pytest.mark.parametrize("name", TASKS)
def test_generated_data_are_the_same_every_time(name):
    module, _, function = TASKS[name].data.partition(":")
    make = getattr(__import__(module, fromlist=[function]), function)
    first, second = make(), make()
    assert all(torch.equal(*pair) for part in first for pair in zip(first[part], second[part], strict=True))


def test_an_unknown_network_is_refused_with_the_one_that_was_probably_meant():
    with pytest.raises(ExperimentError, match="tabular"):
        choose_task("tabulr", print)


def test_any_other_network_races_to_the_end_of_training(monkeypatch):
    def fail(_: str) -> None:
        raise DataError("no network")

    monkeypatch.setattr("tenfold.board.demo.load", fail)
    task = choose_task("mlp", print)
    assert (task.target, task.data) == (None, "digits")
    assert isinstance(make_network(prepare(resolve(make_sides(task)[1].experiment))), nn.Module)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_terminal_of_any_width_shows_whole_names_times_and_accuracies(width):
    slow = Contestant(name="the tutorial's loop", about="", seconds=700.0, interval=(600.0, 800.0))
    fast = Contestant(name="one worker", about="", seconds=7.0, interval=(6.0, 8.0))
    race = Race(title="", task="", machine="", target=0.99, contestants=[slow, fast])
    display = RaceDisplay(race, console=Console(width=width, file=io.StringIO()))
    display.begin(0)
    display.listen(Metric(at=0.0, name="accuracy", value=0.9876, part="test", step=1, epoch=0, seconds=754.0))
    first, second, *_ = (line.rstrip() for line in as_plain_text(display.drawing(), width).splitlines())
    assert first.startswith("the tutorial's loop ")
    assert first.endswith("12 min 34 s  98.76%")
    assert second.endswith("waiting")
    assert first.index("⚑") > second.index("⚑") > 0
