import gc
import os

import pytest
import torch
from torch.utils.data import Dataset

from tenfold.data import DatasetPart, Tensors
from tenfold.data.dataset_part import with_loader
from tenfold.errors import DataError

pytestmark = pytest.mark.timeout(60)


class Who(Dataset):
    """Tells which process read a sample."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.tensor([float(i)]), os.getpid()


def test_loader_processes_read_all_batches_in_order_and_live_on_between_passes():
    part = DatasetPart(Who(), loader_workers=2)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    readers = []
    for start in (0, 6):
        wanted = [torch.arange(i, i + 2) for i in range(start, start + 6, 2)]
        got = list(part.batches(wanted))
        assert [x.flatten().tolist() for x, _ in got] == [w.tolist() for w in wanted]
        readers.append({int(pid) for _, y in got for pid in y})
    assert os.getpid() not in readers[0]
    assert readers[0] == readers[1]
    assert torch.equal(before, torch.get_rng_state())


def test_an_abandoned_pass_leaves_nothing_behind_for_the_next():
    part = with_loader(Tensors(torch.arange(12.0).reshape(12, 1), torch.arange(12)), 1)
    old = part.batches([[i] for i in range(12)])
    next(old)
    assert [y.tolist() for _, y in part.batches([[7], [8, 9]])] == [[7], [8, 9]]
    with pytest.raises(RuntimeError, match="newer iteration"):
        list(old)


class Ending(torch.utils.data.Dataset):
    """Raises StopIteration in the middle, as a dataset over an iterator does."""

    def __len__(self):
        return 20

    def __getitem__(self, i):
        if i == 11:
            raise StopIteration
        return torch.ones(3), i % 2


class Short(Ending):
    """Returns fewer samples than it was asked for."""

    def __getitems__(self, rows):
        return [(torch.ones(3), i % 2) for i in rows[:-1]]


class Holed(Ending):
    """Has a sample without inputs."""

    def __getitem__(self, i):
        return (None if i == 11 else torch.ones(3)), i % 2


def test_samples_that_make_no_batch_are_explained():
    with pytest.raises(DataError, match="NoneType"):
        list(DatasetPart(Holed(), 0).batches(torch.arange(20).split(4)))


@pytest.mark.parametrize("loaders", [0, 2])
def test_an_end_inside_the_dataset_is_an_error_not_a_shorter_epoch(loaders, monkeypatch):
    monkeypatch.setattr(
        torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1
    )  # else torch waits 5 s for each loader
    part = DatasetPart(Ending(), loaders)
    batches = part.batches(torch.arange(20).split(4))
    assert [len(next(batches)[1]) for _ in range(2)] == [4, 4]
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        list(batches)
    assert isinstance(caught.value.__cause__, StopIteration)
    del caught, batches
    gc.collect()


@pytest.mark.parametrize("loaders", [0, 2])
def test_fewer_samples_than_asked_for_are_an_error(loaders):
    with pytest.raises(DataError, match="dataset"):
        list(DatasetPart(Short(), loaders).batches([[0, 1, 2, 3]]))


class DiesElsewhere:
    """Ends any process but its own that frees it, as the events of a GPU do; garbage, because it refers to itself."""

    def __init__(self) -> None:
        self.process, self.itself = os.getpid(), self

    def __del__(self) -> None:
        if os.getpid() != self.process:
            os._exit(3)


class Collecting(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        gc.collect()
        return torch.ones(2), torch.tensor(int(gc.isenabled()))


def test_loader_processes_do_not_free_what_they_inherited():
    DiesElsewhere()
    part = DatasetPart(Collecting(), loader_workers=2)
    assert [y.tolist() for _, y in part.batches([[0, 1], [2, 3]])] == [[1, 1], [1, 1]]
    assert gc.isenabled()
    gc.collect()  # before another test forks
