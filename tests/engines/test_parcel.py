"""A task on its way to the workers: the data stay where they are, everything else travels by value."""

import gc
import pickle
from typing import Any

import psutil
import pytest
import torch
from engine_models import Numbered, numbered
from threaded import make_task
from torch import nn

from tenfold.data import Tensors
from tenfold.engines.parcel import Parcel
from tenfold.errors import ExperimentError


def sent(parcel: Parcel) -> Parcel:
    return pickle.loads(pickle.dumps(parcel))  # type: ignore[no-any-return]


def test_the_task_arrives_as_it_was() -> None:
    data = {"train": numbered(30), "validation": numbered(7), "test": numbered(5)}
    task = make_task(model="mlp", data=data, workers=2, lr=0.3)
    parcel = Parcel(task)
    opened = sent(parcel).open()
    assert opened.experiment.training == task.experiment.training
    assert opened.experiment.division == task.experiment.division
    assert opened.steps_per_epoch == task.steps_per_epoch
    assert [shard.tolist() for shard in opened.shards] == [shard.tolist() for shard in task.shards]
    for name in ("train", "validation", "test"):
        ours, theirs = getattr(task.splits, name), getattr(opened.splits, name)
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)
    parcel.close()


def test_the_data_exist_once() -> None:
    parcel = Parcel(make_task(model="mlp", data=(torch.randn(20_000, 10), torch.randn(20_000))))
    assert len(pickle.dumps(parcel)) < 20_000
    first, second = sent(parcel).open(), sent(parcel).open()
    assert isinstance(first.splits.train, Tensors)
    assert isinstance(second.splits.train, Tensors)
    first.splits.train.x[3, 0] = 1234.5
    assert second.splits.train.x[3, 0] == 1234.5
    parcel.close()


def test_parts_that_are_missing_or_no_tensors() -> None:
    parcel = Parcel(make_task(model="mlp", data={"train": Numbered(9), "test": Numbered(3)}))
    opened = sent(parcel).open()
    assert opened.splits.validation is None
    assert len(opened.splits.train) == 9
    parcel.close()


def test_functions_travel_by_value() -> None:
    width = 5

    def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, outputs))

    from tenfold.engines.base import make_network

    parcel = Parcel(make_task(model=network, data=numbered(9)))
    assert [p.shape[0] for p in make_network(sent(parcel).open()).parameters()] == [5, 5, 2, 2]
    parcel.close()


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_open(fails: bool) -> None:
    import threading

    lock = threading.Lock()

    def network() -> nn.Module:
        with lock:
            return nn.Linear(3, 2)

    options: dict[str, Any] = {"model": network} if fails else {"model": "mlp"}
    task = make_task(data=numbered(30), **options)
    gc.collect()
    before = psutil.Process().num_fds()
    if fails:
        with pytest.raises(ExperimentError, match="cannot be sent to worker processes: cannot pickle"):
            Parcel(task)
    else:
        Parcel(task).close()
    assert psutil.Process().num_fds() == before
