"""Training that is killed at any moment: the store can be read at once, and resuming ends with the same weights."""

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import killed_training
import pytest
import torch
from killed_training import SMALL, WHERE_FILES_ARE_WRITTEN, WHILE_TRAINING

import tenfold
from tenfold.errors import StoreError

pytestmark = pytest.mark.timeout(120)
DELAYS = [random.Random(seed).uniform(0.0, 0.1) for seed in range(3)]
MOMENTS = [(number + random.Random(number).random()) / 6 for number in range(6)]


@pytest.fixture(scope="module")
def nursery() -> ForkServerContext:
    """A server that has imported everything and forks each child, so that none has to start from nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tenfold.api.train", "sklearn.datasets", "torch._dynamo"])
    return context


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tenfold.Run:
    return tenfold.train(**SMALL, runs=tmp_path_factory.mktemp("whole"))


def start(nursery: ForkServerContext, target: Any, *args: Any, **fields: Any) -> Any:
    process = nursery.Process(target=target, args=args, kwargs=fields, daemon=True)
    process.start()
    return process


def assert_sound(runs: Path) -> list[tenfold.Run]:
    """Whatever is there can be read, right after the kill."""
    if not (runs / "tenfold.db").exists():
        return []
    with sqlite3.connect(runs / "tenfold.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    recorded = tenfold.list_runs(runs=runs)
    for run in recorded:
        assert run.status in ("interrupted", "finished")
        assert list(run.events()) is not None
        assert tenfold.Experiment.load(run.path / "experiment.toml") == run.experiment
    return recorded


def assert_resumes_to(whole: tenfold.Run, run: tenfold.Run) -> None:
    resumed = run.status == "interrupted"
    if resumed:
        run = tenfold.resume(run.id, runs=run.store.folder)
    assert run.status == "finished"
    expected, found = whole.model.state_dict(), run.model.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert run.metrics == whole.metrics
    assert [row["train_loss"] for row in run.history] == [row["train_loss"] for row in whole.history]
    assert {path.name for path in run.path.iterdir()} >= {"experiment.toml", "model.pt"}
    assert not resumed or not (run.path / "checkpoint").exists()  # one killed right after its end may have it still


@pytest.mark.parametrize("modules", [WHILE_TRAINING, WHERE_FILES_ARE_WRITTEN], ids=["while training", "while writing"])
def test_killed_at_any_line(
    nursery: ForkServerContext, whole: tenfold.Run, tmp_path: Path, modules: tuple[str, ...]
) -> None:
    lines = killed_training.count_lines(str(tmp_path / "whole"), modules)
    interrupted = 0
    for number, moment in enumerate(MOMENTS):
        runs = tmp_path / str(number)
        child = start(nursery, killed_training.train_until_line, str(runs), 1 + int(moment * (lines - 20)), modules)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        for run in assert_sound(runs):
            interrupted += run.status == "interrupted"
            assert_resumes_to(whole, run)
    assert interrupted >= len(MOMENTS) // 2


def test_killed_from_outside(nursery: ForkServerContext, whole: tenfold.Run, tmp_path: Path) -> None:
    for number, delay in enumerate(DELAYS):
        runs = tmp_path / str(number)
        child = start(nursery, killed_training.train, str(runs))
        wait_for(lambda runs=runs: recorded(runs), pause=0.001)
        time.sleep(delay)
        child.kill()
        child.join(60)
        (run,) = assert_sound(runs)
        assert_resumes_to(whole, run)


def test_killed_again_and_again(nursery: ForkServerContext, whole: tenfold.Run, tmp_path: Path) -> None:
    lines = killed_training.count_lines(str(tmp_path / "whole"), WHILE_TRAINING)
    runs = tmp_path / "again"
    start(nursery, killed_training.train_until_line, str(runs), lines // 2).join(60)
    for _ in range(3):
        child = start(nursery, killed_training.resume_until_line, str(runs), lines // 8)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        (run,) = assert_sound(runs)
        assert run.status == "interrupted"
    assert_resumes_to(whole, run)


def test_half_written_files_are_swept_when_the_run_goes_on(
    nursery: ForkServerContext, whole: tenfold.Run, tmp_path: Path
) -> None:
    lines = killed_training.count_lines(str(tmp_path / "whole"), WHILE_TRAINING)
    start(nursery, killed_training.train_until_line, str(tmp_path / "runs"), lines // 2).join(60)
    (run,) = assert_sound(tmp_path / "runs")
    (run.path / ".model.pt.abc123.part").write_bytes(b"half")
    assert_resumes_to(whole, run)
    assert not list(run.path.glob(".*"))


def test_several_may_begin_at_once_in_a_new_folder(nursery: ForkServerContext, tmp_path: Path) -> None:
    for number in range(2):
        children = [start(nursery, killed_training.train, str(tmp_path / str(number)), epochs=1) for _ in range(3)]
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert [run.status for run in tenfold.list_runs(runs=tmp_path / str(number))] == ["finished"] * 3


def test_a_run_in_another_process_is_left_alone(nursery: ForkServerContext, tmp_path: Path) -> None:
    child = start(nursery, killed_training.train, str(tmp_path), epochs=1_000_000)
    try:
        wait_for(lambda: recorded(tmp_path))
        assert tenfold.open_run(runs=tmp_path).status == "running"
        with pytest.raises(StoreError, match=f"run 1 is still running, in process {child.pid} on .*; wait for it"):
            tenfold.resume(runs=tmp_path)
    finally:
        child.kill()
        child.join(60)
    assert tenfold.open_run(runs=tmp_path).status == "interrupted"


class TestCtrlC:
    @pytest.fixture
    def command(self, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
        arguments = ["train", "--model", "mlp", "--data", "digits", "--epochs", "1000000", "--threads", "1"]
        process = subprocess.Popen(
            [sys.executable, "-m", "tenfold", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(Path(tenfold.__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        yield process
        process.kill()
        process.communicate()

    def test_it_is_recorded_and_says_how_to_go_on(self, command: subprocess.Popen[str], tmp_path: Path) -> None:
        assert command.stderr is not None
        read = ""
        while "epoch 3/" not in read:
            read = command.stderr.readline()
            assert read, "it ended by itself"
        command.send_signal(signal.SIGINT)
        out, rest = command.communicate(timeout=60)
        assert command.returncode == 130
        assert out == ""
        assert "Traceback" not in rest
        last = rest.strip().splitlines()[-1]
        assert last.startswith("interrupted; `tenfold resume ")
        run = tenfold.open_run(runs=tmp_path / "runs")
        assert run.status == "interrupted"
        assert len(run.history) >= 3
        assert (run.path / "checkpoint" / "manifest.json").exists()


def recorded(runs: Path) -> bool:
    try:
        return len(tenfold.list_runs(runs=runs)) == 1
    except StoreError:
        return False


def wait_for(condition: Callable[[], bool], *, seconds: float = 60, pause: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(pause)
