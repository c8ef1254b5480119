"""What connects workers takes no more memory than they use, and no semaphores."""

from pathlib import Path

import pytest
import torch
from threaded import make_task

from tenfold.engines import processes
from tenfold.errors import ModelError
from tenfold.mixing.strategies import ADPSGD, Downpour
from tenfold.workers.channels import SharedChannels, single_worker_channels
from tenfold.workers.model_errors import check_shapes
from tenfold.workers.task import make_network

SEMAPHORES = Path("/dev/shm")
SMALL = {"model": "mlp", "data": "digits", "hidden": [4], "limit": 60, "workers": 3}


def test_a_single_worker_has_one_buffer_of_the_size_of_its_weights() -> None:
    channels = single_worker_channels(1000, torch.device("cpu"))
    assert channels.transport.buffer.numel() == 1000
    assert channels.gradient_transport.buffer.numel() == 1
    assert channels.exchange_memory is None
    downpour = single_worker_channels(1000, torch.device("cpu"), Downpour())
    assert downpour.exchange_memory is not None
    assert downpour.exchange_memory.center.shape == (2, 1000)


def test_locks_are_no_semaphores() -> None:
    before = set(SEMAPHORES.glob("sem.*"))
    channels = processes._make_channels(make_task(**SMALL, strategy="downpour"))
    memory = channels.open(0).exchange_memory
    assert memory is not None
    assert len(memory.locks) == 4
    channels.close()
    assert not {path for path in SEMAPHORES.glob("sem.mp-*") if path not in before}


def test_there_is_room_for_the_versions_of_many_workers() -> None:
    channels = SharedChannels(200, 8, strategy=ADPSGD())
    memory = channels.open(0).exchange_memory
    assert memory is not None
    memory.versions[200] += 1  # of the center, the last
    channels.close()


def test_workers_that_average_in_rounds_share_no_center() -> None:
    channels = processes._make_channels(make_task(**SMALL))
    assert channels.open(0).exchange_memory is None
    channels.close()


def test_replicas_of_other_shapes_are_refused_even_where_their_vectors_are_equally_long() -> None:
    task, other = make_task(**SMALL), make_task(**SMALL | {"hidden": [5]})
    check_shapes(make_network(task), task.metadata)
    with pytest.raises(ModelError, match="weights"):
        check_shapes(make_network(other), task.metadata)
