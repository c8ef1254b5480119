"""Runs and folds as jobs of a real Slurm of one node."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import forked_python
from slurm_cluster import slurm_cluster, why_not

import tenfold
from tenfold.errors import ExperimentError
from tenfold.executors import slurm
from tenfold.runs.events import JobsChanged

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "a Slurm can be started"),
]
SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 200, "epochs": 1, "threads": 1}
LONG = SMALL | {"epochs": 200}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with slurm_cluster(cpus=4) as configuration, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(configuration))
        patch.setattr(slurm, "POLL_SECONDS", 0.2)
        yield


@pytest.fixture
def _forked_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jobs be forked from a server that has torch, which do not get signals of Slurm."""
    monkeypatch.setattr(slurm, "python_command", forked_python)


def slurm_command(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def when_training(runs: Path, act: Callable[[str], None]) -> threading.Thread:
    """Call a function with the number of a job when the job has completed two epochs."""

    def wait() -> None:
        found: list[Path] = []
        while not found:
            time.sleep(0.05)
            manifests = runs.glob("jobs/*/store/*/checkpoint/manifest.json")
            found = [manifest for manifest in manifests if slurm.read_file(manifest).get("epoch", 0) > 1]
        act(slurm.read_file(found[0].parents[3] / slurm.ID)["id"])

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("_forked_jobs")
def test_runs_and_folds_are_those_of_this_machine(tmp_path: Path) -> None:
    grid = SMALL | {"together": [{"lr": 0.01}, {"workers": 4, "oversubscribe": True}]}
    here = tenfold.compare(**grid, runs=tmp_path / "here")
    there = tenfold.compare(**grid, runs=tmp_path / "there", on="slurm")
    assert [run.metrics for run in there.runs] == [run.metrics for run in here.runs]
    for item, other in zip(here.runs, there.runs, strict=True):
        assert all(torch.equal(other.weights[name], value) for name, value in item.weights.items())
    assert [path.name for path in (tmp_path / "there" / "jobs").iterdir()] == ["token"], "nothing is left of jobs"
    on = slurm.Slurm(partition="cpu", time="5", mem="100")
    folds_here = tenfold.cross_validate(**SMALL, folds=2, runs=tmp_path / "here")
    folds_there = tenfold.cross_validate(**SMALL, folds=2, runs=tmp_path / "there", on=on)
    on.shutdown()
    assert [fold["metrics"] for fold in folds_there.folds] == [fold["metrics"] for fold in folds_here.folds]


def test_a_job_that_is_cancelled_is_one_row_which_the_same_command_fills(tmp_path: Path) -> None:
    when_training(tmp_path, lambda number: (slurm_command("scancel", number), None)[1])
    together = [{"lr": 0.1}, {"lr": 0.01, "epochs": 1}]
    grid = LONG | {"epochs": 400, "together": together, "runs": tmp_path, "on": "slurm"}
    done = tenfold.compare(**grid)
    assert len(done.runs) == 1
    assert ["CANCELLED" in error for error in done.failed.values()] == [True]
    again = tenfold.compare(**grid)
    assert (len(again.runs), again.failed) == (2, {})
    assert done.runs[0].id in [run.id for run in again.runs]
    assert any(getattr(event, "resumed", False) for run in again.runs for event in run.events())


@pytest.mark.skipif(
    "TENFOLD_SLURM_REQUEUE" not in os.environ, reason="set TENFOLD_SLURM_REQUEUE: Slurm may take minutes"
)
@pytest.mark.parametrize("reason", ["time limit", "node fails"])
def test_a_job_that_slurm_queues_again_continues(reason: str, tmp_path: Path) -> None:
    def requeue(number: str) -> None:
        if reason == "time limit":
            slurm_command("scancel", "--batch", "--signal=USR1", number)
        else:
            slurm_command("scontrol", "update", "nodename=ALL", "state=down", "reason=test")
        while "BeginTime" not in slurm_command("squeue", "--noheader", "--format=%r"):
            time.sleep(0.1)
        slurm_command("scontrol", "update", f"jobid={number}", "starttime=now+3")  # Slurm would wait for 2 minutes

    thread = when_training(tmp_path, requeue)
    [run] = tenfold.compare(**LONG, runs=tmp_path, on="slurm").runs
    thread.join()
    assert any(getattr(event, "resumed", False) for event in run.events())
    assert run.metrics == tenfold.compare(**LONG, runs=tmp_path / "here").runs[0].metrics


@pytest.mark.usefixtures("_forked_jobs")
def test_jobs_continue_without_the_command_which_attaches_again(tmp_path: Path) -> None:
    numbers: list[str] = []
    when_training(tmp_path, numbers.append)

    def interrupt(event: Any) -> None:
        if isinstance(event, JobsChanged) and any(job.state == "running" for job in event.jobs) and numbers:
            raise KeyboardInterrupt

    fields = LONG | {"folds": 2}
    with pytest.raises(KeyboardInterrupt):
        tenfold.cross_validate(**fields, runs=tmp_path, on="slurm", listen=interrupt)
    resumed = tenfold.resume(1, runs=tmp_path)
    assert resumed.status == "finished"
    folds = [tenfold.open_run(number, runs=tmp_path) for number in (2, 3)]
    assert not any(getattr(event, "resumed", False) for run in folds for event in run.events()), (
        "none was started again"
    )


@pytest.mark.usefixtures("_forked_jobs")
def test_trials_continue_without_the_sweep_which_attaches_again(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is not installed")
    fields = LONG | {"lr": "1e-3:1e-1:log", "sampler": "random", "trials": 3, "runs": tmp_path, "on": "slurm"}

    def interrupt(event: Any) -> None:
        if isinstance(event, JobsChanged) and any(job.state == "running" for job in event.jobs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tenfold.sweep(**fields, at_once=2, listen=interrupt)
    submitted = {slurm.read_file(path)["id"] for path in tmp_path.glob(f"jobs/*/{slurm.ID}")}
    assert len(submitted) == 2
    done = tenfold.sweep(**fields, at_once=2)
    assert [trial.number for trial in done.trials] == [1, 2, 3]
    left = slurm_command("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T").split()
    assert not [line for line in left if line.partition("|")[0] in submitted and "COMPLETED" not in line]
    runs = [done.run.other(trial.run) for trial in done.trials]
    assert not any(getattr(event, "resumed", False) for run in runs for event in run.events())


def test_what_slurm_refuses_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="partition"):
        tenfold.compare(**SMALL, runs=tmp_path, on=slurm.Slurm(partition="nowhere"))
