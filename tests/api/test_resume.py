"""A run that was interrupted goes on as if nothing had happened, or a sentence says why it cannot."""

import shutil
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from looped import looped
from torch import Tensor, nn
from torch.utils.data import Dataset

import tenfold
from tenfold.errors import ExperimentError, ModelError, StoreError
from tenfold.executors.jobs import Job, train_rank
from tenfold.runs.events import EpochEnded, Event, Started

pytestmark = pytest.mark.usefixtures("_in_a_folder_of_its_own")
SMALL: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "hidden": [16],
    "limit": 80,
    "epochs": 5,
    "dropout": 0.2,
    "batchnorm": True,
    "threads": 1,
}


class CtrlC:
    """A listener that interrupts its run once, at the end of an epoch (counted from 1)."""

    def __init__(self, epoch: int = 3) -> None:
        self.epoch = epoch

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochEnded) and event.epoch == self.epoch - 1:
            self.epoch = 0
            raise KeyboardInterrupt


def interrupted(epoch: int = 3, **fields: Any) -> tenfold.Run:
    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**fields, listen=CtrlC(epoch))
    run = tenfold.open_run()
    assert run.status == "interrupted"
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tenfold.Run:
    """A run of `SMALL` that nothing interrupted."""
    return tenfold.train(**SMALL, runs=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def interrupted_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**SMALL, listen=CtrlC(3), runs=folder)
    return folder


@pytest.fixture
def run(interrupted_runs: Path) -> tenfold.Run:
    """A run of `SMALL` that was interrupted at the end of its third epoch, in a store of its own."""
    shutil.copytree(interrupted_runs, "runs")
    return tenfold.open_run()


def assert_same(resumed: tenfold.Run, whole: tenfold.Run) -> None:
    one, other = resumed.model.state_dict(), whole.model.state_dict()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert resumed.metrics == whole.metrics
    assert [row["epoch"] for row in resumed.history] == [row["epoch"] for row in whole.history]
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in whole.history]


class RanksHere(Executor):
    """An executor that trains the one rank of a run in this process."""

    def train(self, job: Job, runs: Path, listen: Callable[[Event], None], _notify: Callable[[str], None]) -> int:
        end = train_rank(job, str(runs), listen)
        assert not end.error
        return end.run


class JobsOnly(Executor):
    """An executor that runs jobs, as all do, and nothing else."""


def test_a_run_goes_on_where_its_resumption_says(run: tenfold.Run, whole: tenfold.Run) -> None:
    heard: list[Event] = []
    resumed = tenfold.resume(on=RanksHere(), listen=heard.append)
    assert_same(resumed, whole)
    assert resumed.id == run.id
    assert next(event for event in heard if isinstance(event, Started)).resumed


def test_an_executor_of_jobs_alone_is_refused_and_the_run_left_as_it_was(run: tenfold.Run) -> None:
    with pytest.raises(ExperimentError, match="ray"):
        tenfold.resume(on=JobsOnly())
    assert tenfold.open_run(run.id).status == "interrupted"


def test_a_resumed_run_counts_its_seconds_from_those_of_before(run: tenfold.Run) -> None:
    before = max(event.at for event in run.events())
    assert run.store.elapsed(run.id) == before


def points(count: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long()


class Noisy(Dataset[tuple[Tensor, int]]):
    """Adds noise from torch's generator, as augmentations do."""

    def __init__(self) -> None:
        self.x, self.y = points()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index] + 0.1 * torch.randn(4), int(self.y[index])


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def wide_network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 2))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


class TestTheSameWeights:
    @pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "adagrad", "lbfgs"])
    def test_with_every_optimizer(self, optimizer: str) -> None:
        fields = SMALL | {"optimizer": optimizer}
        run = interrupted(**fields)
        assert_same(tenfold.resume(run), tenfold.train(**fields))

    def test_with_a_schedule_that_looks_at_the_loss(self) -> None:
        plateau = {"patience": 0, "factor": 0.3, "threshold": 0.2}
        fields = SMALL | {"schedule": "torch.optim.lr_scheduler:ReduceLROnPlateau", "schedule_options": plateau}
        assert_same(tenfold.resume(interrupted(**fields)), tenfold.train(**fields))

    @pytest.mark.parametrize(
        "changes",
        [
            {"schedule": "one-cycle", "warmup": 0.5},
            {"schedule": "cosine", "warmup": 2.0, "clip": 0.5},
            {"precision": "bf16"},
            {"validation_fraction": 0.2},
            {"momentum": 0.0},
            {"optimizer": "adam", "optimizer_options": {"amsgrad": True}},
        ],
        ids=str,
    )
    def test_whatever_the_training_is_like(self, changes: dict[str, Any]) -> None:
        run = interrupted(**SMALL, **changes)
        assert_same(tenfold.resume(run), tenfold.train(**SMALL, **changes))

    @pytest.mark.parametrize("epoch", [1, 4])
    def test_wherever_it_was_interrupted(self, epoch: int, whole: tenfold.Run) -> None:
        assert_same(tenfold.resume(interrupted(epoch, **SMALL)), whole)

    def test_after_several_interruptions(self, run: tenfold.Run, whole: tenfold.Run) -> None:
        for epoch in (4, 5):
            with pytest.raises(KeyboardInterrupt):
                tenfold.resume(run, listen=CtrlC(epoch))
            assert tenfold.open_run().status == "interrupted"
        assert_same(tenfold.resume(run), whole)

    def test_with_patience_the_best_weights_outlive_the_interruption(self) -> None:
        noise = torch.randn(60, 8, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 2
        fields = {"model": "mlp", "lr": 0.2, "batch_size": 8, "epochs": 40, "patience": 3, "threads": 1}
        fields |= {"data": noise, "validation_fraction": 0.3}
        whole = tenfold.train(**fields)
        assert whole.result["stopped_early"]
        for epoch in (1, 3, 5, 6):
            resumed = tenfold.resume(interrupted(min(epoch, whole.result["epochs"]), **fields), data=noise)
            assert_same(resumed, whole)
            assert resumed.result["best_epoch"] == whole.result["best_epoch"]

    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_with_noise_drawn_while_reading(self, workers: int) -> None:
        fields = {"model": "mlp", "data": Noisy(), "epochs": 4, "loader_workers": workers, "threads": 1}
        whole = tenfold.train(**fields)
        assert_same(tenfold.resume(interrupted(**fields), data=Noisy()), whole)


class TestTheRecord:
    def test_one_row_an_epoch_and_a_clock_that_goes_on(self, run: tenfold.Run) -> None:
        run = tenfold.resume(run)
        assert (run.status, run.error) == ("finished", "")
        seconds = [row["seconds"] for row in run.history]
        assert seconds == sorted(seconds)
        assert run.seconds == pytest.approx(seconds[-1])
        at = [event.at for event in run.lifecycle()]
        assert at == sorted(at)
        assert [event.stage for event in run.lifecycle() if event.stage != "epoch"][-2:] == ["resumed", "finished"]
        assert {path.name for path in run.path.iterdir()} == {"experiment.toml", "model.pt", "predictions.npz"}

    def test_what_is_known_of_an_interrupted_run_is_kept(self, run: tenfold.Run) -> None:
        assert (run.result["epochs"], run.result["part"]) == (3, "test")
        assert run.metrics == {name: run.history[-1][f"test_{name}"] for name in ("loss", "accuracy")}
        assert run.seconds == run.history[-1]["seconds"]

    def test_spans_of_a_repeated_epoch_are_counted_once_and_times_still_tell_of_the_start(
        self, run: tenfold.Run
    ) -> None:
        run = tenfold.resume(run)
        computed = sum(span.seconds for span in run.spans() if span.kind == "compute")
        assert computed == pytest.approx(run.times["compute"])
        assert "start" in run.times


class TestRefusals:
    def test_a_finished_run(self, whole: tenfold.Run) -> None:
        with pytest.raises(StoreError, match="finished"):
            tenfold.resume(whole)
        assert tenfold.open_run(runs=whole.store.folder).status == "finished"

    def test_a_running_run(self) -> None:
        refusals: list[str] = []

        def listen(event: Event) -> None:
            if isinstance(event, EpochEnded):
                assert tenfold.open_run().status == "running"
                with pytest.raises(StoreError) as caught:
                    tenfold.resume()
                refusals.append(str(caught.value))

        run = tenfold.train(**SMALL | {"epochs": 1}, listen=listen)
        assert len(refusals) == 1
        assert refusals[0].startswith("run 1 is still running, in process ")
        assert run.status == "finished"

    def test_a_run_that_another_finished_meanwhile(self, run: tenfold.Run) -> None:
        tenfold.resume(run)
        with pytest.raises(StoreError, match="finished"):
            run.store.claim_and_restart(run.id, epoch=0)
        assert tenfold.open_run().status == "finished"

    def test_an_unknown_run_and_an_empty_folder(self) -> None:
        with pytest.raises(StoreError, match=r"tenfold train"):
            tenfold.resume()
        tenfold.train(**SMALL | {"epochs": 1})
        with pytest.raises(StoreError, match="from 1 to 1"):
            tenfold.resume(7)

    def test_a_failed_run_may_be_tried_again(self) -> None:
        with pytest.raises(tenfold.TenfoldError):
            tenfold.train(**SMALL | {"limit": 200}, lr=1e30)  # within the first epoch
        with pytest.raises(tenfold.TenfoldError, match="the loss became"):
            tenfold.resume()
        assert [event.stage for event in tenfold.open_run().lifecycle()].count("failed") == 1

    def test_data_that_changed(self, tmp_path: Path) -> None:
        (tmp_path / "my_changing_data.py").write_text(
            "import numpy\ndef load():\n    return numpy.load('x.npy'), numpy.arange(100) % 2\n"
        )
        x = np.random.default_rng(0).normal(size=(100, 4))
        np.save(tmp_path / "x.npy", x)
        fields = {"model": "mlp", "data": "my_changing_data:load", "epochs": 3, "threads": 1}
        run = interrupted(2, **fields)
        np.save(tmp_path / "x.npy", x + 1)
        with pytest.raises(StoreError, match="changed"):
            tenfold.resume(run)
        assert tenfold.open_run().status == "interrupted"
        np.save(tmp_path / "x.npy", x)
        assert_same(tenfold.resume(run), tenfold.train(**fields))

    def test_a_damaged_checkpoint(self, run: tenfold.Run, whole: tenfold.Run) -> None:
        (run.path / "checkpoint" / "manifest.json").write_text('{"epoch": ')
        with pytest.warns(UserWarning, match=r"manifest\.json"):
            assert_same(tenfold.resume(run), whole)

    def test_a_truncated_checkpoint(self, run: tenfold.Run, whole: tenfold.Run) -> None:
        first, second = sorted((run.path / "checkpoint").glob("epoch-*.pt"))
        content = second.read_bytes()
        second.write_bytes(content[:100])
        first.write_bytes(first.read_bytes()[:100])
        with pytest.raises(StoreError, match=r"epoch-2-worker-0\.pt"):
            tenfold.resume(run)
        assert tenfold.open_run().status == "interrupted"
        second.write_bytes(content)
        assert_same(tenfold.resume(run), whole)

    def test_a_flipped_bit_in_a_checkpoint(self, run: tenfold.Run, whole: tenfold.Run) -> None:
        flip_a_bit(run.path / "checkpoint" / "epoch-2-worker-0.pt")
        with pytest.warns(UserWarning, match=r"epoch-2-worker-0\.pt"):
            assert_same(tenfold.resume(run), whole)

    def test_a_flipped_bit_in_the_weights(self) -> None:
        run = tenfold.train(**SMALL)
        flip_a_bit(run.path / "model.pt")
        with pytest.raises(StoreError, match=r"model\.pt"):
            _ = tenfold.open_run().weights


class TestPythonObjects:
    FIELDS: dict[str, Any] = {"epochs": 4, "batch_size": 16, "threads": 1}  # noqa: RUF012

    def objects(self) -> dict[str, Any]:
        return {
            "model": lambda: small_network(),
            "data": points(),
            "loss": lambda outputs, targets: nn.functional.cross_entropy(outputs, targets),
            "metrics": {"mean": lambda outputs, targets: outputs.mean()},
        }

    def test_they_are_asked_for_by_name_and_then_it_goes_on(self) -> None:
        run = interrupted(**self.FIELDS, **self.objects())
        with pytest.raises(StoreError) as caught:
            tenfold.resume(run.id)
        assert str(caught.value).endswith("tenfold.resume(1, model=..., data=..., loss=..., metrics=...)")
        assert tenfold.open_run().status == "interrupted"
        assert_same(tenfold.resume(run.id, **self.objects()), tenfold.train(**self.FIELDS, **self.objects()))

    def test_other_data_are_refused(self) -> None:
        run = interrupted(**self.FIELDS, model=small_network, data=points())
        with pytest.raises(StoreError, match="have changed"):
            tenfold.resume(run, data=points(seed=1))

    def test_another_network_is_refused_with_a_sentence(self) -> None:
        run = interrupted(**self.FIELDS, model=lambda: small_network(), data=points())
        with pytest.raises((StoreError, ModelError)):
            tenfold.resume(run, model=lambda: wide_network(), data=points())

    @looped("field", ["epochs", "lr", "workers", "batch_size"])
    def test_nothing_else_is_taken(self, field: str, run: tenfold.Run) -> None:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{field}'"):
            tenfold.resume(run, **{field: 7})
        assert tenfold.open_run().status == "interrupted"
