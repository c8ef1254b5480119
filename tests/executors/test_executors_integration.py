"""Runs and folds as jobs of executors: the same results as here, whatever happens to single jobs."""

import itertools
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import psutil
import pytest
import torch
from forked import start_program
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from torch import nn
from typer.testing import CliRunner
from waiting import wait_until

import tenfold
import tenfold.sklearn
from tenfold.cli import app
from tenfold.errors import ExperimentError
from tenfold.executors.jobs import Job, run_job
from tenfold.executors.submitting import Submitter
from tenfold.runs import Store
from tenfold.runs.bundle import unpack
from tenfold.runs.callbacks import StopBehind
from tenfold.runs.events import EpochEnded, FoldChanged, JobsChanged, Metric, Note, Started

pytestmark = [pytest.mark.timeout(240), pytest.mark.usefixtures("_workers_with_imports")]
CLUSTER: list[Any] = []
"""The Ray cluster of the fixture."""
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 200, "epochs": 1, "threads": 1}


@pytest.fixture(scope="module")
def pool(_workers_with_imports: None) -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")) as made:
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
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    module.init(cluster.address, log_to_driver=False, logging_level="error")
    CLUSTER.append(cluster)
    yield "ray"
    module.shutdown()
    cluster.shutdown()


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
    assert {run.metadata["crossval"]["parent"] for run in there.runs} == {there.run.id}


@pytest.mark.parametrize("mode", ["folds-over-workers", "data-and-folds"])
def test_a_fold_needs_the_cores_of_one_worker_if_folds_are_spread_over_several(
    pool: Executor, tmp_path: Path, mode: str
) -> None:
    fields = SMALL | {"folds": 2, "workers": 2, "fold_mode": mode}
    here = tenfold.cross_validate(**fields, oversubscribe=True, runs=tmp_path / "here")
    there = tenfold.cross_validate(**fields, runs=tmp_path / "there", on=pool)
    assert [fold["metrics"] for fold in there.folds] == [fold["metrics"] for fold in here.folds]
    assert not there.runs[0].experiment.machine.oversubscribe


def test_the_time_of_folds_is_that_of_the_cores_that_they_shared(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as one_process:
        done = tenfold.cross_validate(**SMALL, folds=3, runs=tmp_path, on=one_process)
    assert done.seconds == pytest.approx(sum(fold["seconds"] for fold in done.folds))
    assert {tuple(fold["cores"]) for fold in done.folds} == {(0,)}
    assert done.run.result["threads"] == 1
    spans = sorted((fold["began"], fold["ended"]) for fold in done.folds)
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(spans))
    assert "ProcessPoolExecutor" in CliRunner().invoke(app, ["show", "1", "--runs", str(tmp_path)]).output


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
    assert all("jobs" in row.doubts for row in done.rows), "how long they took depends on the executor"


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


@pytest.mark.parametrize("wrong", ["rai", 3, ThreadPoolExecutor(1), ThreadPoolExecutor])
def test_what_is_no_executor_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="local"):
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
    assert "executor" in tenfold.open_run(2, runs=tmp_path).metadata, "it was not trained again"


@pytest.mark.parametrize("kind", ["runs", "folds", "trials"])
def test_an_interruption_after_a_run_was_recorded_leaves_nothing_of_its_job(
    pool: Executor, tmp_path: Path, kind: str
) -> None:
    def interrupt(event: Any) -> None:
        if isinstance(event, EpochEnded):
            raise KeyboardInterrupt

    begin: Any = {"runs": tenfold.compare, "folds": tenfold.cross_validate, "trials": tenfold.sweep}[kind]
    fields: dict[str, Any] = {
        "runs": {},
        "folds": {"folds": 2},
        "trials": {"lr": [0.1, 0.01], "sampler": "grid", "at_once": 1},
    }[kind]
    with pytest.raises(KeyboardInterrupt):
        begin(**SMALL, **fields, runs=tmp_path, on=pool, listen=interrupt)
    assert [record["status"] for record in Store(tmp_path).records()].count("finished") == 1
    left = [path.name for path in (tmp_path / "jobs").iterdir() if path.name != "token"]
    assert len(left) == (kind == "folds"), "the other fold's job may be under way"


def test_a_job_may_depend_on_how_others_ended(pool: Executor) -> None:
    ended: list[int] = []
    ended_before: list[int] = []

    def jobs() -> Iterator[Job]:
        for lr in (0.1, 0.01, 0.001):
            ended_before.append(len(ended))
            yield Job.of(tenfold.Experiment(**SMALL, lr=lr), "compare")

    for place, _ in Submitter("pool", None, pool).run(jobs(), at_once=1):
        ended.append(place)
    assert (ended, ended_before) == ([0, 1, 2], [0, 1, 2])


def test_a_job_stops_when_it_has_fallen_behind() -> None:
    job = Job.of(tenfold.Experiment(**SMALL | {"epochs": 5}), "compare")
    bundle, error = run_job(replace(job, stop_behind=StopBehind("test_accuracy", False, {1: 0.0, 2: 2.0})))
    assert not error
    assert unpack(bundle).record.result["epochs"] == 2


def test_the_trials_of_a_sweep_are_those_of_this_machine(on: Any, tmp_path: Path) -> None:
    fields = SMALL | {"epochs": 2, "lr": [0.1, 0.01, 1e-5], "momentum": [0, 0.9], "sampler": "grid"}
    here = tenfold.sweep(**fields, runs=tmp_path / "here")
    there = tenfold.sweep(**fields, runs=tmp_path / "there", on=on, at_once=2)
    assert {str(trial.values): trial.curve for trial in there.trials} == {
        str(trial.values): trial.curve for trial in here.trials
    }
    assert all(there.run.other(trial.run).metadata["executor"] for trial in there.trials)
    again = tenfold.sweep(**fields, runs=tmp_path / "there", on=on, at_once=2)
    assert [trial.run for trial in again.trials] == [trial.run for trial in there.trials]


def sweep_on_processes(runs: Path, epochs: int, trials: int) -> tenfold.Sweep:
    fields = SMALL | {"epochs": epochs, "lr": "1e-3:1e-1:log", "sampler": "random", "progress": False}
    return tenfold.sweep(**fields, runs=runs, trials=trials, on="processes", at_once=2)


def test_a_sweep_that_was_killed_continues_the_trials_that_it_had_begun(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    killed = start_program(sweep_on_processes, tmp_path, 60, 3)
    wait_until(lambda: len(list(tmp_path.glob("jobs/*/store/*/checkpoint/manifest.json"))) == 2)
    pids = [Store(folder).records()[0]["pid"] for folder in tmp_path.glob("jobs/*/store")]
    killed.kill()
    killed.join()
    asked = tenfold.open_run(1, runs=tmp_path).result["sweep"]["asked"]
    assert len(asked) == 2
    done = sweep_on_processes(tmp_path, 60, 3)
    assert done.run.id == 1
    assert [trial.number for trial in done.trials] == [1, 2, 3]
    assert {str(trial.number): trial.values for trial in done.trials[:2]} == asked
    resumed = [
        any(getattr(event, "resumed", 0) for event in done.run.other(trial.run).events()) for trial in done.trials
    ]
    assert resumed == [True, True, False]
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["token"]
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_a_training_on_ray_has_the_weights_of_processes_even_if_a_rank_is_lost(ray: str, tmp_path: Path) -> None:
    fields = SMALL | {"workers": 2, "oversubscribe": True, "epochs": 20}
    heard: list[Any] = []

    def kill_once(event: Any) -> None:
        heard.append(event)
        if isinstance(event, EpochEnded) and sum(isinstance(other, EpochEnded) for other in heard) == 2:
            ranks = [
                item for item in psutil.Process().children(recursive=True) if "ray::Rank" in " ".join(item.cmdline())
            ]
            ranks[-1].kill()

    there = tenfold.train(**fields, runs=tmp_path / "there", on=ray, listen=kill_once)
    here = tenfold.train(**fields, runs=tmp_path / "here")
    assert same_weights(there, here)
    assert [run.status for run in tenfold.list_runs(runs=tmp_path / "there")] == ["finished"]
    assert any(isinstance(event, Started) and event.resumed for event in heard)


def test_a_training_on_ray_is_resumed_there(ray: str, tmp_path: Path) -> None:
    fields = SMALL | {"workers": 2, "oversubscribe": True, "epochs": 20}

    def interrupt(event: Any) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 1:  # the checkpoint of the epoch before is complete
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.train(**fields, runs=tmp_path / "there", on=ray, listen=interrupt)
    heard: list[Any] = []
    wait_until(lambda: tenfold.open_run(runs=tmp_path / "there").status == "interrupted")
    there = tenfold.resume(runs=tmp_path / "there", listen=heard.append)
    here = tenfold.train(**fields, runs=tmp_path / "here")
    assert same_weights(there, here)
    assert [run.status for run in tenfold.list_runs(runs=tmp_path / "there")] == ["finished"]
    assert there.metadata["executor"] == "ray"
    assert any(isinstance(event, Started) and event.resumed for event in heard)


def test_each_rank_has_a_gpu_of_ray_where_there_are_any(ray: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    def net() -> Net:
        with mark.open("a") as file:
            file.write(f"{os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
        return Net()

    node = CLUSTER[0].add_node(num_cpus=2, num_gpus=2)  # as Ray is told
    fields = SMALL | {"model": net, "workers": 2, "oversubscribe": True, "device": "auto"}
    tenfold.train(**fields, runs=tmp_path / "runs", on=ray)
    CLUSTER[0].remove_node(node)
    assert {"0", "1"} <= set(mark.read_text().split())


def test_a_job_that_no_node_has_the_cores_for_is_said(ray: str, tmp_path: Path) -> None:
    nodes: list[Any] = []

    def add_one(event: Any) -> None:
        if isinstance(event, Note) and "3 cores" in event.text:
            nodes.append(CLUSTER[0].add_node(num_cpus=3))

    done = tenfold.compare(**SMALL | {"threads": 3, "oversubscribe": True}, runs=tmp_path, on=ray, listen=add_one)
    assert (len(nodes), len(done.runs)) == (1, 1)
    CLUSTER[0].remove_node(nodes[0])


def test_jobs_of_a_node_that_dies_run_elsewhere(ray: str, tmp_path: Path) -> None:
    node = CLUSTER[0].add_node(num_cpus=2)
    killed: list[Any] = []

    def kill(event: Any) -> None:
        if isinstance(event, JobsChanged) and not killed and any(job.done > 0 for job in event.jobs):
            killed.append(CLUSTER[0].remove_node(node, allow_graceful=False))

    grid = SMALL | {"epochs": 300, "lr": [0.1, 0.05, 0.02, 0.01]}
    done = tenfold.compare(**grid, runs=tmp_path, on=ray, listen=kill)
    assert killed
    assert (len(done.runs), done.failed) == (4, {})
    assert len(tenfold.list_runs(runs=tmp_path)) == 4, "none is recorded twice"


@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_a_grid_search_on_joblib_backends(backend: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(backend)
    if backend == "ray":
        from ray.util.joblib import register_ray

        register_ray()
    inputs, labels = load_digits(return_X_y=True)
    classifier = tenfold.sklearn.Classifier(epochs=1, threads=1)
    search = GridSearchCV(classifier, {"lr": [0.1, 0.01]}, cv=2, n_jobs=2)
    with joblib.parallel_config(backend):
        search.fit(inputs[:200], labels[:200])
    assert len(search.cv_results_["mean_test_score"]) == 2
    assert search.best_score_ > 0.1
