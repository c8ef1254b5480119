"""A task on its way to the workers: the data stay where they are, everything else travels by value."""

import gc
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from engine_models import Numbered, numbered
from threaded import make_task
from torch import nn

from tenfold.data import SubsetPart, Tensors
from tenfold.errors import ExperimentError, MachineError
from tenfold.runs.events import Printed, Stopwatch
from tenfold.transport import segment as shared_arrays
from tenfold.transport.segment import allocate as shared_arrays_allocate
from tenfold.workers import process as worker_process
from tenfold.workers.pool import WorkerConnection
from tenfold.workers.process import Scheduler, TaskSnapshot, bytes_to_share, in_shared_memory


def sent(snapshot: TaskSnapshot) -> TaskSnapshot:
    return pickle.loads(pickle.dumps(snapshot))  # type: ignore[no-any-return]


def test_the_task_arrives_as_it_was() -> None:
    data = {"train": numbered(30), "validation": numbered(7), "test": numbered(5)}
    task = make_task(model="mlp", data=data, workers=2, lr=0.3)
    snapshot = TaskSnapshot(task)
    opened = sent(snapshot).open()
    assert opened.experiment.training == task.experiment.training
    assert opened.experiment.parallel == task.experiment.parallel
    assert opened.steps_per_epoch == task.steps_per_epoch
    assert [shard.tolist() for shard in opened.shards] == [shard.tolist() for shard in task.shards]
    for name in ("train", "validation", "test"):
        ours, theirs = getattr(task.splits, name), getattr(opened.splits, name)
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)
    snapshot.close()


def test_the_data_exist_once() -> None:
    snapshot = TaskSnapshot(make_task(model="mlp", data=(torch.randn(20_000, 10), torch.randn(20_000))))
    assert len(pickle.dumps(snapshot)) < 20_000
    first, second = sent(snapshot).open(), sent(snapshot).open()
    assert isinstance(first.splits.train, Tensors)
    assert isinstance(second.splits.train, Tensors)
    first.splits.train.x[3, 0] = 1234.5
    assert second.splits.train.x[3, 0] == 1234.5
    snapshot.close()


def test_what_a_snapshot_copies_is_known_beforehand() -> None:
    task = make_task(model="mlp", data=(torch.randn(20_000, 10), torch.randn(20_000)))
    whole = task.splits.train
    picked = replace(task.splits, train=SubsetPart(whole, range(100)), validation=SubsetPart(whole, [7, 5]))
    assert bytes_to_share(task.splits) == bytes_to_share(picked) == 20_000 * 11 * 4
    assert bytes_to_share(in_shared_memory(task.splits)) == 0


def test_what_is_picked_from_one_part_travels_once() -> None:
    task = make_task(model="mlp", data=(torch.randn(20_000, 10), torch.randn(20_000)))
    whole = task.splits.train
    splits = replace(task.splits, train=SubsetPart(whole, range(100)), validation=SubsetPart(whole, [7, 5]))
    snapshot = TaskSnapshot(replace(task, splits=splits))
    opened = sent(snapshot).open().splits
    assert isinstance(opened.train, SubsetPart)
    assert isinstance(opened.validation, SubsetPart)
    assert opened.train.part is opened.validation.part
    assert opened.validation.indices.tolist() == [7, 5]
    assert torch.equal(next(opened.validation.batches([[0]]))[0], whole.x[7:8])  # type: ignore[attr-defined]
    snapshot.close()


def test_what_lies_in_shared_memory_is_not_copied_into_it_again() -> None:
    task = make_task(model="mlp", data=(torch.randn(100, 10), torch.randn(100)))
    expected = task.splits.fingerprint()
    task = replace(task, splits=in_shared_memory(task.splits))
    assert task.splits.fingerprint() == expected
    snapshots = [TaskSnapshot(task), TaskSnapshot(task)]
    first, second = (sent(snapshot).open().splits.train for snapshot in snapshots)
    task.splits.train.x[3, 0] = 1234.5  # type: ignore[attr-defined]
    for part in (first, second):
        assert isinstance(part, Tensors)
        assert part.x[3, 0] == 1234.5
    for snapshot in snapshots:
        snapshot.close()
    assert isinstance(sent(snapshots[0]).open().splits.train, Tensors)  # who made the memory still keeps it


def test_parts_that_are_missing_or_no_tensors() -> None:
    snapshot = TaskSnapshot(make_task(model="mlp", data={"train": Numbered(9), "test": Numbered(3)}))
    opened = sent(snapshot).open()
    assert opened.splits.validation is None
    assert len(opened.splits.train) == 9
    snapshot.close()


def test_functions_travel_by_value() -> None:
    width = 5

    def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, outputs))

    from tenfold.workers.task import make_network

    snapshot = TaskSnapshot(make_task(model=network, data=numbered(9)))
    assert [p.shape[0] for p in make_network(sent(snapshot).open()).parameters()] == [5, 5, 2, 2]
    snapshot.close()


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
        with pytest.raises(ExperimentError, match="pickle"):
            TaskSnapshot(task)
    else:
        TaskSnapshot(task).close()
    assert psutil.Process().num_fds() == before


@pytest.mark.parametrize("pack", [TaskSnapshot, lambda task: in_shared_memory(task.splits)])
@pytest.mark.parametrize("call", range(4))
def test_nothing_stays_open_if_the_memory_does_not_suffice(
    pack: Any, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(model="mlp", data={"train": numbered(30), "test": numbered(5)})
    gc.collect()
    before, calls = psutil.Process().num_fds(), iter(range(9))

    def allocate(nbytes: int) -> Any:
        if next(calls) == call:
            raise MachineError("no more memory")
        return shared_arrays_allocate(nbytes)

    monkeypatch.setattr(shared_arrays, "allocate", allocate)
    with pytest.raises(MachineError):
        pack(task)
    gc.collect()
    assert psutil.Process().num_fds() == before


def test_what_is_printed_while_prints_are_collected_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may print at any moment; here it does so after every function that is called."""
    listeners: list[Callable[[str], None]] = []
    monkeypatch.setattr(worker_process, "tap_streams", listeners.append)
    connection = WorkerConnection(None)  # type: ignore[arg-type]
    worker_process.forward_prints(connection, Stopwatch(), 3)
    printed = 0

    def print_one() -> None:
        nonlocal printed
        printed += 1
        listeners[0]("x")

    def between(_: Any, event: str, __: Any) -> None:
        if event == "c_return":
            print_one()

    print_one()
    sys.setprofile(between)
    heard = connection.printed()
    sys.setprofile(None)
    heard += connection.printed()
    assert printed > 1
    assert "".join(event.text for event in heard if isinstance(event, Printed)) == "x" * printed


def test_workers_that_take_turns_keep_their_own_modes_of_autograd_and_autocast() -> None:
    scheduler, modes, first_waits = Scheduler(), {}, []

    def first() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            first_waits.append(True)
            scheduler.wait_until(lambda: "second" in modes)
            modes["first"] = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    def second() -> None:
        assert first_waits
        modes["second"] = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    scheduler.run([first, second])
    assert modes == {"second": (True, False), "first": (False, True)}
