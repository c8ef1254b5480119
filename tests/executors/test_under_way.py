"""The jobs that are under way, as the folders of a run store say it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tenfold
from tenfold.cli import app
from tenfold.executors import slurm
from tenfold.executors.jobs import Job
from tenfold.executors.submitting import ABOUT, forget_job, jobs_under_way, note_job
from tenfold.runs import Store


def begin(store: Path, name: str, label: str, scope: str, executor: str = "ray") -> Path:
    folder = store / "jobs" / name
    folder.parent.mkdir(exist_ok=True)
    job = Job.of(tenfold.Experiment(model="mlp", data="digits"), "trial", label=label, scope=scope)
    note_job(Job(**vars(job) | {"kept_in": str(folder)}), executor)
    return folder


def advance(folder: Path, step: int) -> None:
    (folder / "store").mkdir()
    progress = {"host": "node7", "step": step, "steps": 100}
    (folder / "store" / "progress.json").write_text(json.dumps(progress))


def test_jobs_are_listed_with_their_state_node_and_progress(tmp_path: Path) -> None:
    advance(begin(tmp_path, "a", "trial 10", "run 5, trial 10"), 25)
    second = begin(tmp_path, "b", "trial 9", "run 5, trial 9")
    lost = begin(tmp_path, "c", "trial 8", "run 5, trial 8")
    about = json.loads((lost / ABOUT).read_text()) | {"began": 0.0}  # whose process id is another's by now
    (lost / ABOUT).write_text(json.dumps(about))
    jobs = jobs_under_way(tmp_path)
    assert [(job.label, job.run, job.state, job.node, job.done) for job in jobs] == [
        ("trial 9", 5, "waiting", "", 0.0),
        ("trial 10", 5, "running", "node7", 0.25),
    ]
    Store(tmp_path)
    printed = CliRunner().invoke(app, ["runs", "--runs", str(tmp_path)]).output
    assert all(word in printed for word in ("trial 10", "ray", "node7", "25%"))
    forget_job(str(second))
    assert [job.label for job in jobs_under_way(tmp_path)] == ["trial 10"]


def test_slurm_says_the_states_of_its_jobs_also_without_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("a", "12_0"), ("b", "12_1"), ("c", "12_2")):
        folder = begin(tmp_path, name, f"lr {name}", "{}", "slurm")
        (folder / slurm.ID).write_text(json.dumps({"id": number}))
        (folder / ABOUT).write_text((folder / ABOUT).read_text().replace('"pid"', '"was"'))
    (tmp_path / "jobs" / "c" / slurm.END).write_text("{}")
    statuses = {"12_0": slurm.Status("PENDING", "PartitionConfig"), "12_1": slurm.Status("CANCELLED")}
    monkeypatch.setattr(slurm, "states_of_jobs", lambda: statuses)
    assert [(job.label, job.state.partition(" (")[0]) for job in jobs_under_way(tmp_path)] == [
        ("lr a", "pending, PartitionConfig"),
        ("lr c", "done"),
    ]
