"""What connects workers takes no more memory and no more locks than they use."""

import torch
from threaded import make_task

from tenfold.engines import processes
from tenfold.workers.channels import single_worker_channels

SMALL = {"model": "mlp", "data": "digits", "hidden": [4], "limit": 60, "workers": 3}


def test_a_single_worker_has_one_buffer_of_the_size_of_its_weights() -> None:
    channels = single_worker_channels(1000, torch.device("cpu"))
    assert channels.weights.buffer.numel() == 1000
    assert channels.second.buffer.numel() + channels.centre.numel() == 1
    assert single_worker_channels(1000, torch.device("cpu"), centre=True).centre.shape == (2, 1000)


def test_only_asynchronous_strategies_have_locks() -> None:
    for strategy, locks in {"allreduce": 0, "ring": 0, "downpour": 4}.items():
        channels = processes._make_channels(make_task(**SMALL, strategy=strategy))
        channels.close()
        assert len(channels.locks) == locks
