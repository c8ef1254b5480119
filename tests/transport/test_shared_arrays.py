"""Tensors that exist once: every process that opens one sees the same memory."""

import gc
import multiprocessing
import os
import pickle
import resource
from multiprocessing.connection import Connection
from typing import Any, cast

import psutil
import pytest
import torch
from torch import Tensor

from tenfold.errors import MachineError
from tenfold.transport import SharedTensor
from tenfold.workers.pool import attach_to_parent

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 1, 3)])
def test_what_goes_in_comes_out(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    shared = SharedTensor(tensor)
    opened = pickle.loads(pickle.dumps(shared)).open()
    assert opened.dtype == dtype
    assert opened.shape == tensor.shape
    assert torch.equal(opened, tensor)
    shared.close()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0, 2)])
def test_empty_ones(shape: tuple[int, ...]) -> None:
    shared = SharedTensor(torch.empty(shape, dtype=torch.int64))
    opened = shared.open()
    assert opened.shape == shape
    assert opened.dtype == torch.int64
    shared.close()


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(12.0).reshape(3, 4).T, torch.arange(12.0)[::2], torch.ones(1, 3).expand(4, 3)],
    ids=["transposed", "strided", "expanded"],
)
def test_any_layout(tensor: Tensor) -> None:
    shared = SharedTensor(tensor)
    assert torch.equal(shared.open(), tensor)
    shared.close()


def test_it_is_a_copy_of_the_original_without_its_history() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    shared = SharedTensor(parameter)
    opened = shared.open()
    assert not opened.requires_grad
    opened[0] = 5
    assert parameter[0] == 1
    shared.close()


def test_all_who_open_it_see_one_memory() -> None:
    shared = SharedTensor(torch.zeros(4))
    first, second = shared.open(), pickle.loads(pickle.dumps(shared)).open()
    first[2] = 7
    assert second.tolist() == [0, 0, 7, 0]
    shared.close()


def test_only_its_name_travels() -> None:
    shared = SharedTensor(torch.zeros(1_000_000))
    assert len(pickle.dumps(shared)) < 1000
    shared.close()


def _double(shared: SharedTensor, connection: Any) -> None:
    tensor = shared.open()
    connection.send(tensor.sum().item())
    connection.recv()
    connection.send(tensor.sum().item())
    tensor.mul_(2)


@pytest.mark.timeout(60)
def test_another_process_maps_the_same_memory() -> None:
    """What is written here is read there, and the other way round: there is no copy."""
    context = multiprocessing.get_context("forkserver")
    shared = SharedTensor(torch.ones(1000))
    mine = shared.open()
    here, there = context.Pipe()
    process = context.Process(target=_double, args=(shared, there))
    process.start()
    there.close()
    assert here.recv() == 1000
    mine[0] = 101
    here.send("go on")
    assert here.recv() == 1100
    process.join(30)
    assert process.exitcode == 0
    assert mine.sum() == 2200
    process.close()
    here.close()
    shared.close()


def test_who_has_it_open_keeps_it() -> None:
    shared = SharedTensor(torch.arange(5))
    opened = shared.open()
    shared.close()
    gc.collect()
    assert opened.tolist() == [0, 1, 2, 3, 4]


def test_closing_leaves_nothing_open_and_may_be_repeated() -> None:
    gc.collect()
    before = psutil.Process().num_fds()
    for _ in range(5):
        shared = SharedTensor(torch.ones(10))
        shared.open()
        shared.close()
        shared.close()
    gc.collect()
    assert psutil.Process().num_fds() <= before


def test_without_anonymous_memory_it_is_a_file_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    monkeypatch.delattr(os, "memfd_create", raising=False)
    shared = SharedTensor(torch.arange(3))
    assert Path(shared.name).is_file()
    assert pickle.loads(pickle.dumps(shared)).open().tolist() == [0, 1, 2]
    shared.close()
    assert not Path(shared.name).exists()


def test_a_limit_on_the_size_of_files_is_named() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(MachineError, match="memory"):
            SharedTensor(torch.zeros(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_process_that_starts_after_its_program_was_killed_ends_quietly() -> None:
    floats = SharedTensor(torch.zeros(1))
    sent = pickle.dumps(floats)
    floats.close()
    with pytest.raises(SystemExit):
        attach_to_parent(0, cast(Connection, None), pickle.loads(sent))
