"""Which workers are named when a process fails, and how many there may be."""

import os
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tenfold
from tenfold.engines.processes import _named
from tenfold.errors import MachineError, ModelError, WorkerLost, name_workers
from tenfold.machine import cores


@pytest.mark.parametrize(("ranks", "who"), [(range(32, 64), "workers 32 to 63"), (range(64, 65), "worker 64")])
def test_the_workers_of_a_process_are_named(ranks: range, who: str) -> None:
    assert name_workers(ranks) == who
    assert str(_named(ModelError("it does not fit"), ranks)) == f"{who}: it does not fit"
    assert str(_named(RuntimeError("Traceback"), ranks)) == f"{who} failed:\nTraceback"
    assert str(_named(WorkerLost(40, "worker 40 died"), ranks)) == "worker 40 died"


def test_too_many_workers_for_the_open_files_leave_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "open_file_limit", lambda: 16)
    with pytest.raises(MachineError, match="2 workers need about"):
        tenfold.train(model="mlp", data="digits", limit=40, workers=2, runs=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("start", [tenfold.train, tenfold.cross_validate])
def test_data_that_do_not_fit_into_memory_twice_leave_no_run(
    start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "free_memory", lambda: 2_400_000)
    options: dict[str, Any] = {"model": "mlp", "epochs": 1, "workers": 2, "threads": 1, "oversubscribe": True}
    x, y = torch.zeros(1000, 800), torch.arange(1000) % 2
    with pytest.raises(MachineError, match="memory"):
        start(data=(x, y), runs=tmp_path, **options)
    assert not list(tmp_path.iterdir())
    assert start(data=(x[:400], y[:400]), runs=tmp_path, **options)


class WithProcess(nn.Module):
    """A linear layer that notes the process in which it was last called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("process", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.process.fill_(os.getpid())
        return self.layer(x)


class Unsendable(nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.usefixtures("_workers_with_imports")
def test_one_worker_leaves_a_process_whose_threads_would_spin_on_a_busy_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.randn(64, 4), torch.arange(64) % 2
    options: dict[str, Any] = {"data": (x, y), "epochs": 1, "threads": 2, "oversubscribe": True, "runs": tmp_path}
    network = WithProcess()
    here = tenfold.train(model=deepcopy(network), **options)
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(cores, "load_is_high", lambda: True)
    moved = tenfold.train(model=deepcopy(network), **options)
    single = tenfold.train(model=deepcopy(network), **options | {"threads": 1})
    with pytest.warns(UserWarning, match="OMP_WAIT_POLICY"):
        stayed = tenfold.train(model=deepcopy(network), loss=Unsendable(), **options)
    processes = [int(run.model.process) for run in (here, single, stayed, moved)]
    assert processes[:3] == [os.getpid()] * 3
    assert processes[3] != os.getpid()
    assert torch.equal(moved.model.layer.weight, here.model.layer.weight)
