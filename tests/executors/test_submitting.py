"""Jobs are submitted, counted and cleared away; their executors are made up here, so no job is trained."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from looped import looped
from waiting import wait_until

import tenfold
from tenfold.errors import ExperimentError, MachineError, StoreError, TenfoldError
from tenfold.executors import ray, slurm, submitting
from tenfold.executors.jobs import STORE, Job
from tenfold.executors.submitting import Submitter, executor_named
from tenfold.runs import Store
from tenfold.runs.callbacks import StopBehind

pytestmark = pytest.mark.timeout(30)


class LosesMachines(Executor):
    """Its first jobs soon lose their machine; the others end after more than a second."""

    machine_losses = (MachineError,)

    def __init__(self, loses: int = 1) -> None:
        self.loses, self.under_way, self.most = loses, 0, 0

    def submit(self, _function: Callable[..., Any], /, *_rest: Any, **_named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        lost, self.loses = self.loses > 0, self.loses - 1

        def end() -> None:
            self.under_way -= 1
            if lost:
                future.set_exception(MachineError("the node is gone"))
            else:
                future.set_result((b"", ""))

        threading.Timer(0.05 if lost else 1.3, end).start()
        return future


def jobs(count: int) -> Iterator[Job]:
    return (Job.of(tenfold.Experiment(model="mlp", data="digits", seed=seed), "compare") for seed in range(count))


def test_a_lost_job_that_is_submitted_again_counts_among_those_at_once() -> None:
    executor = LosesMachines()
    ended = [place for place, _ in Submitter("losing", None, executor).run(jobs(3), at_once=2)]
    assert (sorted(ended), executor.most) == ([0, 1, 2], 2)


class HasNoWorkers(Executor):
    """Begins no job."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, _function: Callable[..., Any], /, *_rest: Any, **_named: Any) -> "Future[Any]":
        self.futures.append(Future())
        return self.futures[-1]


def test_jobs_that_do_not_begin_are_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitting, "IDLE_SECONDS", 0.0)
    monkeypatch.setattr(submitting, "WATCH_SECONDS", 0.01)
    executor, said = HasNoWorkers(), []
    submitter = Submitter("idle", None, executor)
    looks = iter(range(5))

    def watch(_: object) -> None:
        if next(looks, None) is None:
            for future in executor.futures:
                future.set_result((b"", ""))

    submitter.watch, submitter.notify = watch, said.append
    assert len(list(submitter.run(jobs(2)))) == 2
    assert len(said) == 1
    assert "free workers" in said[0]


class Odd(HasNoWorkers):
    """Refuses its first job, and returns text for the others."""

    def submit(self, _function: Callable[..., Any], /, *_rest: Any, **_named: Any) -> "Future[Any]":
        future = super().submit(_function)
        if len(self.futures) == 1:
            raise ValueError("not today")
        future.set_result("hello")
        return future


def test_a_job_that_an_odd_executor_spoils_is_one_failure() -> None:
    ends = dict(Submitter("odd", None, Odd()).run(jobs(2)))
    assert "not today" in ends[0][1]
    assert "bundle" in ends[1][1]


def test_an_interruption_leaves_jobs_running_wherever_it_came_from(tmp_path: Path) -> None:
    cancelled: list[bool] = []

    class Survives(Executor):
        survives = True

        def submit(self, _function: Callable[..., Any], /, *_rest: Any, **_named: Any) -> "Future[Any]":
            return Future()

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            cancelled.append(cancel_futures)

    def interrupt() -> bool:
        if list(tmp_path.glob("jobs/*/about.json")):
            raise KeyboardInterrupt
        return False

    submitter = Submitter("surviving", lambda _cores: Survives())
    submitter.keep_in(tmp_path)
    with pytest.raises(KeyboardInterrupt), submitter, submitter:  # a comparison, and its cross-validation
        list(submitter.run(jobs(1), interrupt))
    assert isinstance(submitter.left, Survives)
    assert cancelled == [False]
    assert list(tmp_path.glob("jobs/*/about.json"))


def test_a_job_that_nothing_can_continue_leaves_no_folder(tmp_path: Path) -> None:
    class Fails(Executor):
        def submit(self, _function: Callable[..., Any], /, job: Job, *_rest: Any) -> "Future[Any]":  # type: ignore[override]
            (Path(job.kept_in) / "store").mkdir(parents=True)
            future: Future[Any] = Future()
            future.set_exception(OSError("no route to host"))
            return future

    submitter = Submitter("failing", None, Fails())
    submitter.keep_in(tmp_path)
    assert not (tmp_path / "jobs").stat().st_mode & 0o077, "jobs of Slurm unpickle files of this folder"
    assert [error for _, (_, error) in submitter.run(jobs(1))]
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["token"]


@looped("kind", ["writable", "link", "token", "pipe"])
def test_a_folder_of_jobs_that_others_could_have_filled_is_refused(tmp_path: Path, kind: str) -> None:
    store = tmp_path / kind
    folder, other = store / "jobs", tmp_path / f"{kind}-other"
    other.mkdir(mode=0o700)
    store.mkdir()
    if kind == "link":
        folder.symlink_to(other)
    else:
        folder.mkdir(mode=0o700)
    if kind == "writable":
        folder.chmod(0o770)
    if kind == "token":
        (folder / "token").symlink_to(other / "mine")
    if kind == "pipe":
        os.mkfifo(folder / "token")
    with pytest.raises(StoreError, match="jobs"):
        Submitter("any", None, LosesMachines()).keep_in(store)
    assert not list(other.iterdir())


@looped("name", [slurm.OBJECTS, slurm.OUTPUT, slurm.BUNDLE, slurm.JOB, slurm.ID])
def test_what_is_written_for_slurm_follows_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder, private = tmp_path / name, tmp_path / f"{name}-private"
    private.write_text("{}")
    folder.mkdir(mode=0o700)
    (folder / name).symlink_to(private)
    monkeypatch.setattr(slurm, "command", lambda program, *_rest, **_named: "7" if program == "sbatch" else "")
    executor = slurm.Slurm()
    for job in jobs(1):
        executor.submit(print, Job(**vars(job) | {"kept_in": str(folder), "objects": b"pickle"}))
    wait_until(lambda: "7_0" in (folder / slurm.ID).read_text() if (folder / slurm.ID).exists() else False)
    executor.shutdown(wait=False)
    assert private.read_text() == "{}"
    assert not (folder / name).is_symlink()
    assert slurm.read_job(folder).objects == b"pickle"


@looped("damage", [{slurm.ID: '{"id": ["x"]}'}, {slurm.ID: "[1]"}, {"": "0o777"}])
def test_a_damaged_folder_of_a_job_ends_its_job_or_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, str]
) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir(mode=0o700)
    for name, text in damage.items():
        if name:
            (folder / name).write_text(text)
        else:
            folder.chmod(0o777)
    monkeypatch.setattr(
        slurm, "command", lambda program, *_rest, **_named: "7" if program == "sbatch" else "7_0|FAILED"
    )
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    executor = slurm.Slurm()
    (future,) = (executor.submit(print, Job(**vars(job) | {"kept_in": str(folder)})) for job in jobs(1))
    with pytest.raises(TenfoldError, match="FAILED" if "" not in damage else "nobody else"):
        future.result(timeout=10)
    executor.shutdown(wait=False)


@pytest.mark.parametrize("name", ["ray", "dask"])
def test_a_cluster_that_does_not_answer_is_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip({"dask": "distributed"}.get(name, name))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    dask = pytest.importorskip("dask")

    submitter = executor_named(name)
    assert submitter is not None
    with (
        # as $DASK_SCHEDULER_ADDRESS says, which Dask reads once, when it is imported
        dask.config.set({"scheduler-address": "tcp://127.0.0.1:1", "distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(MachineError, match=r"127\.0\.0\.1:1") as caught,
    ):
        list(submitter.run(jobs(1)))
    assert "\n" not in str(caught.value)


def test_reports_of_ray_are_lines_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    worker = pytest.importorskip("ray._private.worker", reason="Ray is not installed")
    for _ in range(2):
        ray.report_on_stderr()
    worker.print_to_stdstream({"pid": "raylet", "is_err": False, "lines": ["a node died\nits log\n"]}, False)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "a node died" in printed.err
    assert "its log" not in printed.err


def test_slurm_is_watched_on_when_it_refuses_to_cancel_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = iter(("1", "2"))

    def command(program: str, *_arguments: str, script: str = "") -> str:
        if program == "scancel":
            raise MachineError("scancel failed: Invalid job id specified")
        return next(numbers) if program == "sbatch" else "1_0|RUNNING\n2_0|RUNNING\n"

    monkeypatch.setattr(slurm, "command", command)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    executor = slurm.Slurm()
    cancelled, other = (
        executor.submit(print, Job(**vars(job) | {"kept_in": str(tmp_path / str(place)), "cores": place + 1}))
        for place, job in enumerate(jobs(2))
    )
    folder = tmp_path / "1"
    while not (folder / slurm.ID).exists():
        threading.Event().wait(0.05)
    assert cancelled.cancel()
    threading.Event().wait(0.5)
    (folder / slurm.END).write_text('{"error": "", "bundle": false}')
    assert other.result(timeout=10) == (b"", "")
    executor.shutdown(wait=False)


def test_jobs_that_slurm_will_not_start_are_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "command", lambda program, *_, **__: "1" if program == "sbatch" else squeue)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(submitting, "WATCH_SECONDS", 0.1)
    squeue = "1_0|PENDING|PartitionConfig\n1_1|PENDING|Resources\n1_2|PENDING|PartitionConfig\n"
    submitter, said = Submitter("slurm", slurm.Slurm), []
    submitter.notify = said.append
    submitter.keep_in(tmp_path)

    def end_all() -> None:
        wait_until(lambda: said)
        threading.Event().wait(0.5)
        for note in sorted(tmp_path.glob(f"jobs/*/{slurm.ID}"), key=lambda note: note.read_text()):
            (note.parent / slurm.END).write_text('{"error": "", "bundle": false}')
            threading.Event().wait(0.3)

    threading.Thread(target=end_all, daemon=True).start()
    with submitter:
        assert len(list(submitter.run(jobs(3)))) == 3
    assert ["PartitionConfig" in line for line in said] == [True]


def test_a_job_of_slurm_that_was_cancelled_before_it_began_to_train_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"
    Store(folder / STORE)
    [job] = (
        Job.of(tenfold.Experiment(model="mlp", data="digits", limit=100, epochs=1, threads=1), "compare") for _ in "1"
    )
    (folder / slurm.OBJECTS).write_bytes(b"")
    (folder / slurm.JOB).write_text(json.dumps(asdict(job) | {"objects": ""}))
    monkeypatch.setattr(sys, "argv", ["job", str(folder)])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGALRM)}
    slurm.main()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert slurm.read_file(folder / slurm.END) == {"error": "", "bundle": True}


def test_slurm_is_only_told_of_its_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(slurm, "command", lambda *words, **_: commands.append(words) or "")
    monkeypatch.setattr(slurm, "POLL_SECONDS", 60.0)
    (tmp_path / slurm.END).write_text('{"error": "", "bundle": false}')  # whose job's number was lost
    executor = slurm.Slurm()
    executor.submit(print, Job(**vars(next(jobs(1))) | {"kept_in": str(tmp_path)}))
    threading.Event().wait(0.3)
    executor.shutdown(cancel_futures=True)
    assert not any("scancel" in words for words in commands)


def test_a_trial_is_one_job_whatever_has_changed_since_it_began() -> None:
    class Net(torch.nn.Sequential):
        pass

    one, other = (
        Job.of(tenfold.Experiment(model=Net, data="digits"), "trial", scope="run 1, trial 2") for _ in range(2)
    )
    assert one.key == replace(other, stop_behind=StopBehind("accuracy", False, {1: 0.5})).key
    assert one.key != replace(other, scope="run 1, trial 3").key


def test_a_cross_validation_whose_executor_cannot_be_opened_records_nothing(tmp_path: Path) -> None:
    def closed(_job_cores: int) -> Executor:
        raise OSError("nobody answers")

    with pytest.raises(MachineError, match="nobody answers"):
        tenfold.cross_validate(model="mlp", data="digits", limit=40, folds=2, runs=tmp_path / "runs", on=closed)
    assert not (tmp_path / "runs" / "tenfold.db").exists()


def test_a_class_without_a_signature_is_called_and_is_no_executor() -> None:
    submitter = executor_named("builtins:int")
    assert submitter is not None
    with pytest.raises(ExperimentError, match=r"not an? int"):
        submitter.open(1)
