import pytest
import torch
from torch import nn

from tenfold.board.demo import choose_task, make_sides, steps_of
from tenfold.board.demo_tasks import TASKS
from tenfold.engines import resolve
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError
from tenfold.workers.task import make_network


@pytest.mark.parametrize("name", TASKS)
def test_each_side_of_a_task_trains_its_network_on_generated_data(name):
    loop, alone, many = (side.experiment for side in make_sides(TASKS[name]))
    task = prepare(resolve(loop))
    losses = [float(loss) for loss, _ in zip(steps_of(make_network(task), task), range(12), strict=False)]
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
    monkeypatch.setattr("tenfold.board.demo.data_source", lambda _: "digits")
    task = choose_task("mlp", print)
    assert (task.target, task.data) == (None, "digits")
    assert isinstance(make_network(prepare(resolve(make_sides(task)[1].experiment))), nn.Module)
