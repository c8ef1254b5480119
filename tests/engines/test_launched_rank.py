"""What ranks do beside their training: checkpoints that stay until better ones are whole, runs that are found again."""

import os
import signal
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from threaded import make_task

from tenfold.engines import validate
from tenfold.engines.launched import find_begun
from tenfold.engines.launched_rank import EndedByLauncher, RankConnection, ending_by_signal
from tenfold.engines.prepare import describe
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import with_defaults
from tenfold.launchers import World
from tenfold.runs import Store, checkpoint
from tenfold.runs.events import Stopwatch
from tenfold.transport.network import Network
from tenfold.workers.coordinator import Coordinator, Saved

SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [4], "limit": 50, "threads": 1}


def alone() -> Any:
    """A network of one rank."""
    one = SimpleNamespace(rank=0, size=1, gather=lambda said: [said], broadcast=lambda said=None: said)
    one.all_gather = one.gather
    return one


def post(network: Network, folder: Path) -> RankConnection:
    coordinator = Coordinator(make_task(folder, **SMALL), Stopwatch(), lambda _: None)
    return RankConnection(network, lambda _: None, coordinator, folder)


def save(folder: Path, epoch: int) -> None:
    checkpoint.save_tensors({}, folder / checkpoint.file_name(epoch, 0))


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.pt"))


class TestPost:
    def test_a_checkpoint_stays_until_the_next_is_committed(self, tmp_path: Path) -> None:
        teller = post(alone(), tmp_path)
        save(tmp_path, 1)
        assert teller.report(Saved(epoch=1, seconds=1.0)).saved
        assert not teller.report(Saved(epoch=2, seconds=2.0, problem="the disk is full")).saved
        assert saved(tmp_path) == ["epoch-1-worker-0.pt"]
        save(tmp_path, 3)
        assert teller.report(Saved(epoch=3, seconds=3.0)).saved
        assert saved(tmp_path) == ["epoch-1-worker-0.pt", "epoch-3-worker-0.pt"], "the one before stays, too"
        save(tmp_path, 4)
        assert teller.report(Saved(epoch=4, seconds=4.0)).saved
        assert saved(tmp_path) == ["epoch-3-worker-0.pt", "epoch-4-worker-0.pt"]

    def test_also_where_the_manifest_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        teller = post(alone(), tmp_path)
        save(tmp_path, 1)
        teller.report(Saved(epoch=1, seconds=1.0))

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(checkpoint, "write_atomically", full)
        save(tmp_path, 2)
        assert not teller.report(Saved(epoch=2, seconds=2.0)).saved
        assert "epoch-1-worker-0.pt" in saved(tmp_path)


class TestTermination:
    def test_the_signal_becomes_an_error_and_the_handler_is_given_back(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(EndedByLauncher, match="worker 3 was ended by the launcher"), ending_by_signal(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is before

    def test_after_an_error_the_signal_does_not_disturb_the_recording(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with ending_by_signal(0):
            with pytest.raises(ZeroDivisionError), ending_by_signal(0):
                raise ZeroDivisionError
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("size", [1, 2])
def test_reaching_into_memory_is_refused_however_few_ranks_there_are(size: int) -> None:
    with pytest.raises(ExperimentError, match='"downpour" needs memory that all workers share'):
        validate(Experiment(engine="launched", strategy="downpour"), World(0, size, 0, size, "torchrun"))


class Begun:
    """A store with a run that two ranks of a launch have begun."""

    def __init__(self, folder: Path, launcher: str) -> None:
        self.store = Store(folder)
        self.world = World(0, 2, 0, 2, launcher, "77", restarts=1)
        self.experiment = with_defaults(Experiment(**SMALL, oversubscribe=True, workers=2))
        self.task = make_task(**SMALL, workers=2)
        metadata = describe(self.task) | {"launch": {"name": "77"}}
        self.number = self.store.create(self.experiment, kind="train", metadata=metadata)

    def change(self, **columns: object) -> None:
        with sqlite3.connect(self.store.file) as connection:
            for column, value in columns.items():
                connection.execute(f"UPDATE runs SET {column} = ?", (value,))


def test_a_job_that_slurm_starts_anew_finds_its_run_again(tmp_path: Path) -> None:
    job, named = Begun(tmp_path / "slurm", "slurm"), Begun(tmp_path / "torchrun", "torchrun")
    for item in (job, named):
        item.change(created=1000.0)
    found = find_begun(job.store, job.world, job.experiment)
    assert found is not None
    assert found["id"] == job.number
    assert find_begun(named.store, named.world, named.experiment) is None
