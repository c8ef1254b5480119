"""Runs and folds as jobs of executors: the same results as here, whatever happens to single jobs."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tenfold
from tenfold.errors import ExperimentError
from tenfold.executors.jobs import Job, run_job
from tenfold.runs import FoldChanged, Metric
from tenfold.runs.bundle import unpack

pytestmark = pytest.mark.timeout(240)
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 200, "epochs": 1, "threads": 1}


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as made:
        yield made


@pytest.fixture(scope="module")
def dask() -> Iterator[Executor]:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    import dask

    with (
        dask.config.set({"distributed.worker.daemon": False}),
        distributed.Client(n_workers=2, threads_per_worker=2, dashboard_address=None) as client,
    ):
        yield client.get_executor()


@pytest.fixture(scope="module")
def ray() -> Iterator[str]:
    module = pytest.importorskip("ray", reason="Ray is not installed")
    module.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="error")
    yield "ray"
    module.shutdown()


@pytest.fixture(params=["pool", "dask", "ray"])
def on(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def same_weights(one: tenfold.Run, other: tenfold.Run) -> bool:
    return all(torch.equal(one.weights[name], value) for name, value in other.weights.items())


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def test_the_rows_of_a_comparison_are_those_of_this_machine(on: Any, tmp_path: Path) -> None:
    grid: dict[str, Any] = SMALL | {"lr": [0.1, 0.01], "model": [Net, "mlp"], "repeats": 2}
    here = tenfold.compare(**grid, runs=tmp_path / "here")
    heard: list[Any] = []
    there = tenfold.compare(**grid, runs=tmp_path / "there", on=on, listen=heard.append)
    assert [run.experiment for run in there.runs] == [run.experiment for run in here.runs]
    assert [run.metrics for run in there.runs] == [run.metrics for run in here.runs]
    assert all(map(same_weights, there.runs, here.runs))
    assert sum(isinstance(event, Metric) and event.name == "accuracy" and event.part == "test" for event in heard) == 8


def test_folds_are_those_of_this_machine(on: Any, tmp_path: Path) -> None:
    fields = SMALL | {"folds": 3, "fold_repeats": 2}
    here = tenfold.cross_validate(**fields, runs=tmp_path / "here")
    there = tenfold.cross_validate(**fields, runs=tmp_path / "there", on=on)
    assert there.run.status == "finished"
    assert [fold["metrics"] for fold in there.folds] == [fold["metrics"] for fold in here.folds]
    assert there.run.result["models"] == here.run.result["models"]
    assert all(map(same_weights, there.runs, here.runs))
    assert same_weights(there.run, here.run)
    assert {run.facts["crossval"]["parent"] for run in there.runs} == {there.run.id}


def test_jobs_with_several_workers(on: Any, tmp_path: Path) -> None:
    fields = SMALL | {"workers": 2, "oversubscribe": True}
    here = tenfold.compare(**fields, runs=tmp_path / "here")
    there = tenfold.compare(**fields, runs=tmp_path / "there", on=on)
    assert same_weights(there.runs[0], here.runs[0])


def test_what_is_recorded_is_not_run_again(pool: Executor, tmp_path: Path) -> None:
    first = tenfold.compare(**SMALL, lr=[0.1, 0.01], runs=tmp_path, on=pool)
    again = tenfold.compare(**SMALL, lr=[0.1, 0.01, 0.001], runs=tmp_path, on=pool)
    assert [run.id for run in again.runs[:2]] == [run.id for run in first.runs]
    assert len(again.runs) == 3


def test_settings_with_folds_are_spread_too(pool: Executor, tmp_path: Path) -> None:
    done = tenfold.compare(**SMALL, lr=[0.1, 0.01], folds=2, runs=tmp_path, on=pool)
    assert [len(run.result["folds"]) for run in done.runs] == [2, 2]


class Broken(Net):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise ValueError("this network is broken")


class Deadly(Net):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return inputs


class DeadlyOnce(Net):
    """Kills the process in which it is used first."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        mark = Path(os.environ["TENFOLD_TEST_MARK"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(inputs)


def test_one_failure_is_one_row(on: Any, tmp_path: Path) -> None:
    done = tenfold.compare(**SMALL | {"model": [Net, Broken]}, runs=tmp_path, on=on)
    assert len(done.runs) == 1
    assert ["broken" in error for error in done.failed.values()] == [True]


def test_a_job_whose_process_dies_is_submitted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENFOLD_TEST_MARK", str(tmp_path / "mark"))
    done = tenfold.compare(**SMALL | {"model": [Net, DeadlyOnce]}, runs=tmp_path / "runs", on="processes")
    assert (len(done.runs), done.failed) == (2, {})


def test_a_job_that_always_kills_its_process_is_one_row(tmp_path: Path) -> None:
    done = tenfold.compare(**SMALL | {"model": [Net, Deadly]}, runs=tmp_path, on="processes")
    assert len(done.runs) == 1
    assert ["lost 3 times" in error for error in done.failed.values()] == [True]


@pytest.mark.parametrize("wrong", ["rai", 3, ThreadPoolExecutor(1)])
def test_what_is_no_executor_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"executor|Executor"):
        tenfold.compare(**SMALL, runs=tmp_path, on=wrong)


def test_folds_that_train_together_are_refused(pool: Executor, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="fold-by-fold"):
        tenfold.cross_validate(**SMALL, folds=2, fold_mode="stacked", runs=tmp_path, on=pool)


def test_a_daemonic_process_says_what_to_set(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    import dask

    with (
        dask.config.set({"distributed.worker.daemon": True}),
        distributed.Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client,
        pytest.raises(ExperimentError, match=r"distributed\.worker\.daemon"),
    ):
        tenfold.compare(**SMALL, workers=2, oversubscribe=True, runs=tmp_path, on=client.get_executor())


def test_a_job_of_a_launched_worker_is_no_rank(tmp_path: Path) -> None:
    job = replace(Job.of(tenfold.Experiment(**SMALL), "train"), folder=str(tmp_path))
    before = Path.cwd(), {"RANK": "1", "WORLD_SIZE": "4"}
    os.environ.update(before[1])
    try:
        bundle, error = run_job(job)
        assert os.environ["RANK"] == "1"
    finally:
        for name in before[1]:
            del os.environ[name]
    assert error == ""
    assert unpack(bundle).record.status == "finished"
    assert Path.cwd() == before[0]


def test_an_interrupted_cross_validation_keeps_its_folds(pool: Executor, tmp_path: Path) -> None:
    def interrupt(event: Any) -> None:
        if isinstance(event, FoldChanged) and event.status == "finished":
            raise KeyboardInterrupt

    fields = SMALL | {"folds": 3}
    with pytest.raises(KeyboardInterrupt):
        tenfold.cross_validate(**fields, runs=tmp_path, on=pool, listen=interrupt)
    interrupted = tenfold.open_run(1, runs=tmp_path)
    assert interrupted.status == "interrupted"
    resumed = tenfold.resume(1, runs=tmp_path)
    whole = tenfold.cross_validate(**fields, runs=tmp_path / "whole")
    assert [fold["metrics"] for fold in resumed.result["folds"]] == [fold["metrics"] for fold in whole.folds]
    assert "executor" in tenfold.open_run(2, runs=tmp_path).facts, "it was not trained again"
