import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from tenfold.data import DatasetPart, Part, Splits, Tensors, load
from tenfold.data.dataset_part import join_parts, quiet_randomness, with_loader
from tenfold.data.part import MOST_PENDING, CopyTimer, SubsetPart
from tenfold.runs.events import Span, Stopwatch
from tenfold.workers.worker import SINGLE_SPANS, Timekeeper

X = torch.arange(40, dtype=torch.float32).reshape(10, 2, 2)


Y = torch.arange(10) % 3


class Noisy(Dataset):
    """Augments at random, as image data sets do."""

    def __len__(self):
        return 10

    def __getitem__(self, i):
        return X[i] + torch.rand(()) + np.random.rand(), int(Y[i])


@pytest.fixture(params=["tensors", "mapped"])
def part(request) -> Part:
    return Tensors(X, Y) if request.param == "tensors" else DatasetPart(TensorDataset(X, Y), known_targets=Y)


class TestEveryPart:
    def test_batches_hold_the_samples_asked_for(self, part):
        asked = [torch.tensor([3, 1]), [0], np.array([9, 9, 2]), range(2)]
        got = list(part.batches(asked))
        assert len(got) == 4
        for indices, (x, y) in zip(asked, got, strict=True):
            rows = torch.as_tensor(list(indices))
            assert torch.equal(x, X[rows])
            assert torch.equal(y, Y[rows])

    def test_batches_can_be_asked_for_again_and_lazily(self, part):
        for _ in range(2):
            assert [len(y) for _, y in part.batches(iter([[0, 1], [2]]))] == [2, 1]
        assert list(part.batches([])) == []

    def test_a_pass_may_be_abandoned(self, part):
        assert next(part.batches([[0], [1]]))[1].tolist() == [0]
        assert [y.tolist() for _, y in part.batches([[4]])] == [[1]]

    def test_a_subset_holds_its_samples_in_their_order(self, part):
        some = part.subset([7, 2]).subset([1, 0, 1])
        assert len(some) == 3
        assert some.targets.tolist() == Y[[2, 7, 2]].tolist()
        ((x, _),) = some.batches([[0, 1, 2]])
        assert torch.equal(x, X[[2, 7, 2]])

    def test_the_fingerprint_depends_on_content_alone(self, part):
        assert part.fingerprint() == part.subset(range(10)).fingerprint()
        assert len({part.fingerprint(), part.subset([1, 0]).fingerprint(), part.subset([0, 1]).fingerprint()}) == 3

    def test_it_can_be_sent_to_another_process(self, part):
        list(part.batches([[0]]))
        copy = pickle.loads(pickle.dumps(part))
        assert copy.fingerprint() == part.fingerprint()
        assert len(list(copy.batches([[1], [2]]))) == 2

    def test_batches_follow_the_part_to_a_device(self, part):
        moved = part.to("meta")
        ((x, y),) = moved.batches([[0, 1]])
        assert x.device.type == y.device.type == "meta"
        assert len(moved) == len(part)

    def test_the_global_generators_are_left_alone(self, part):
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        list(part.batches([[0], [1]]))
        part.fingerprint()
        assert torch.equal(before, torch.get_rng_state())
        assert np.array_equal(numpy_before, np.random.get_state()[1])


@pytest.mark.parametrize("position", [0, 1234, 4_999_999])
def test_large_tensors_are_fingerprinted_by_shape_type_and_a_sample(position):
    x = torch.zeros(5000, 1000)
    part = Tensors(x, torch.zeros(5000, dtype=torch.int64))
    assert part.fingerprint() != Tensors(x.half(), part.y).fingerprint()
    assert part.fingerprint() != Tensors(x.reshape(5000, 10, 100), part.y).fingerprint()
    changed = x.clone()
    changed.view(-1)[position : position + 20] = 1
    changed.view(-1)[max(0, position - 20) : position] = 1
    assert part.fingerprint() != Tensors(changed, part.y).fingerprint()


def test_random_augmentation_neither_changes_the_fingerprint_nor_the_generators():
    part = DatasetPart(Noisy())
    torch.manual_seed(1)
    first, state = part.fingerprint(), torch.get_rng_state()
    assert part.fingerprint() == first
    assert torch.equal(state, torch.get_rng_state())


def test_quiet_randomness_restores_after_an_error_too():
    before = torch.get_rng_state()
    with pytest.raises(IndexError), quiet_randomness():
        _ = [][int(torch.randint(9, ()))]
    assert torch.equal(before, torch.get_rng_state())


def test_quiet_randomness_saves_and_restores_all_generators_under_the_lock(monkeypatch):
    class Lock:
        def __enter__(self):
            random.seed(7)  # as another thread does before it releases the lock
            np.random.seed(7)

        def __exit__(self, *_):
            states.append((random.random(), np.random.random()))

    states = []
    monkeypatch.setattr("tenfold.data.dataset_part.RANDOM_LOCK", Lock())
    with quiet_randomness():
        random.random()
    random.seed(7)
    np.random.seed(7)
    assert states == [(random.random(), np.random.random())]


def test_batches_of_a_dataset_come_in_the_types_that_training_takes():
    class Raw(Noisy):
        def __getitem__(self, i):
            return {"image": np.full(3, 255, dtype=np.uint8), "tokens": [np.int32(i)], "id": "a"}, np.float64(i)

    ((x, y),) = DatasetPart(Raw()).batches([[1, 2]])
    assert x["image"].dtype == torch.float32
    assert x["image"].max() == 1
    assert x["tokens"][0].dtype == torch.int64
    assert x["id"] == ("a", "a")
    assert y.dtype == torch.float32


def test_tensors_are_read_through_a_loader_when_that_is_asked_for():
    assert isinstance(load((X / 40, Y), test_fraction=0.5).train, Tensors)
    by_one = load((X / 40, Y), test_fraction=0.5, loader="dataloader").train
    assert (type(by_one), by_one.loader_workers) == (DatasetPart, 0)
    assert isinstance(load((X / 40, Y), test_fraction=0.5, loader_workers=1).train, DatasetPart)
    part = Tensors(X, Y)
    wrapped = with_loader(part, 2)
    assert isinstance(wrapped, DatasetPart)
    assert wrapped.loader_workers == 2
    assert wrapped.targets is part.targets
    assert with_loader(wrapped, 0).loader_workers == 0


@pytest.mark.parametrize("first", [Tensors(X, Y), DatasetPart(TensorDataset(X, Y), known_targets=Y)])
@pytest.mark.parametrize("second", [Tensors(X, Y), DatasetPart(TensorDataset(X, Y), known_targets=Y)])
def test_pooling_puts_one_part_after_the_other(first, second):
    both = join_parts(first, second.subset([5]))
    assert len(both) == 11
    assert both.targets.tolist() == [*Y.tolist(), int(Y[5])]
    ((x, _),) = both.batches([[0, 10]])
    assert torch.equal(x, X[[0, 5]])


@pytest.mark.parametrize("first", [Tensors(X, Y), DatasetPart(TensorDataset(X, Y))])
def test_pooling_stays_on_the_device(first):
    second = DatasetPart(TensorDataset(X, Y))
    assert join_parts(first.to("meta"), second.to("meta")).device.type == "meta"
    assert join_parts(first, second).device.type == "cpu"


def test_pooling_does_not_guess_unknown_targets():
    assert join_parts(DatasetPart(Noisy()), Tensors(X, Y)).targets is None


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
