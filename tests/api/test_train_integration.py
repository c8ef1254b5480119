"""What a user of the Python interface is promised of worker processes."""

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import Dataset

import tenfold
from tenfold.api.compare import experiments_of
from tenfold.data import loading

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("_warm_server", "_in_a_folder_of_its_own")]
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [16], "limit": 300, "epochs": 2, "threads": 1}


def test_loader_processes_read_datasets_that_cannot_be_imported(tmp_path: Path) -> None:
    class Local(Dataset[Any]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
            (tmp_path / f"{os.getpid()}.pid").touch()
            return torch.full((3,), float(i)), i % 2

    run = tenfold.train(model="mlp", data=Local(), epochs=2, workers=2, loader_workers=1, threads=1, oversubscribe=True)
    assert run.status == "finished"
    readers = {int(file.stem) for file in tmp_path.glob("*.pid")} - {os.getpid()}
    assert len(readers) >= 2
    patience = time.monotonic() + 10
    while readers & set(psutil.pids()) and time.monotonic() < patience:
        time.sleep(0.05)
    assert not readers & set(psutil.pids())


def test_a_run_loads_its_data_once_and_builds_its_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: each worker process builds its own."""
    loaded: list[object] = []
    built: list[torch.nn.Module] = []
    load = loading.load
    monkeypatch.setattr(loading, "load", lambda *args, **options: loaded.append(args) or load(*args, **options))

    def network() -> torch.nn.Module:
        built.append(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))
        return built[-1]

    fields: dict[str, Any] = SMALL | {"model": network, "hidden": None, "epochs": 1}
    tenfold.train(**fields, workers=2, oversubscribe=True)
    assert (len(loaded), len(built)) == (1, 1)
    cluster = {"groups": [{"count": 2, "step_seconds": 0.01, "link": "10gbe"}]}
    tenfold.simulate(**fields, workers=2, cluster=cluster)
    assert len(loaded) == 2  # the prediction of one worker takes the same data


class TestTheFastestDevice:
    """On a machine without a GPU it is the cpu, in every respect."""

    @pytest.fixture(autouse=True)
    def _without_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    def test_many_workers_share_the_cpu(self) -> None:
        run = tenfold.train(**SMALL, device="auto", workers=2, oversubscribe=True)
        assert run.experiment.machine.device == "cpu"
        assert tenfold.open_run().experiment == run.experiment

    def test_folds_are_those_of_the_cpu(self) -> None:
        done = tenfold.cross_validate(**SMALL, device="auto", fold_mode="folds-over-workers", folds=2)
        assert done.run.experiment.machine.device == "cpu"

    def test_a_grid_has_it_once(self) -> None:
        (one,) = experiments_of(tenfold.Experiment(), {"device": ["auto", "cpu"]}, 1)
        assert one.machine.device == "cpu"
