import os

import pytest
import torch
from torch.utils.data import Dataset

from tenfold.data import DatasetPart, Tensors, with_loader

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
    with pytest.raises(RuntimeError, match="newer pass"):
        list(old)
