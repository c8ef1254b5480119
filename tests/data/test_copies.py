"""Copies to a GPU: how their times are added up, with a device that is made up."""

import pickle
from typing import Any

import pytest
import torch

from tenfold.data.dataset_part import DatasetPart
from tenfold.data.part import MOST_PENDING, CopyTimer, Splits, SubsetPart, Tensors
from tenfold.runs import Span, Stopwatch
from tenfold.workers.timekeeper import SINGLE_SPANS, Timekeeper

CPU = torch.device("cpu")


class Device:
    """A device whose clock goes on by 2 ms with every event."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, 0

    def mark(self) -> "Event":
        event = Event(self)
        event.record()
        return event


class Event:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self) -> None:
        self.device.now += 2.0
        self.at = self.device.now

    def synchronize(self) -> None:
        self.device.waits += 1

    def elapsed_time(self, end: "Event") -> float:
        return end.at - self.at


def test_copies_are_added_up_and_waited_for_once() -> None:
    device = Device()
    timer = CopyTimer(CPU, device.mark)
    for _ in range(5):
        with timer.timing():
            pass
    assert device.waits == 0
    assert timer.take() == 5 * 0.002
    assert (timer.take(), device.waits) == (0.0, 1)


def test_copies_that_nobody_asks_about_do_not_pile_up() -> None:
    timer = CopyTimer(CPU, Device().mark)
    for _ in range(3 * MOST_PENDING):
        with timer.timing():
            pass
    assert round(timer.take(), 6) == round(3 * MOST_PENDING * 0.002, 6)


def test_copies_to_the_second_gpu_are_timed_there(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []

    class OnStream(Event):
        def record(self, stream: Any = None) -> None:
            used.append(stream)
            super().record()

    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: OnStream(device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
    second = torch.device("cuda:1")
    timer = pickle.loads(pickle.dumps(CopyTimer(second)))
    with timer.timing():
        pass
    assert timer.take() == 0.002
    assert used == [second, second]


def test_a_loader_times_the_copies_of_its_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.rand(8, 2), torch.zeros(8, dtype=torch.int64))
    part = DatasetPart(data)
    some = SubsetPart(part, range(8))
    assert len(list(some.batches([[0, 1], [2, 3]]))) == 2
    assert some.take_copy_seconds() == 0.0
    part._copies = CopyTimer(CPU, Device().mark)
    assert len(list(some.batches([[0, 1], [2, 3]]))) == 2
    assert some.take_copy_seconds() == 0.004


def test_data_that_stay_on_the_cpu_are_not_copied() -> None:
    part = Tensors(torch.rand(4, 2), torch.zeros(4, dtype=torch.int64))
    splits = Splits(name="made up", train=part, shape=(2,), classes=2, outputs=2)
    assert splits.to("cpu").copy_seconds == 0.0
    assert part.take_copy_seconds() == 0.0


def test_copies_are_taken_out_of_the_computing_since_the_last_time() -> None:
    spans: list[Span] = []
    time = Timekeeper(Stopwatch(), spans.append, 0)  # type: ignore[arg-type]
    time._single = 0
    time._add("compute", 0.0, 1.0)
    time.count_copies(0.25)
    time.emit_sums()
    assert time.times == {"compute": 0.75, "copy": 0.25}
    assert {span.kind: span.seconds for span in spans} == {"compute": 0.75, "copy": 0.25}
    time._add("compute", 1.0, 0.5)
    time.count_copies(2.0)  # most of it has overlapped with other work
    assert time.times == {"compute": 0.75, "copy": 0.75}
    assert time.seconds == 1.5
    fresh = Timekeeper(Stopwatch(), spans.append, 0)  # type: ignore[arg-type]
    assert fresh._single == SINGLE_SPANS
    fresh.count_copies(0.0)
    assert fresh.times == {}
