"""Training that is killed at any moment: the store can be read at once, and resuming ends with the same weights."""

import os
import random
import signal
import sqlite3
import time
from functools import partial
from pathlib import Path

import killed_training
import pytest
import torch
from forked import run_command, start_program
from killed_training import SMALL, WHERE_FILES_ARE_WRITTEN, WHILE_TRAINING
from waiting import wait_until

import tenfold
from tenfold.errors import StoreError

pytestmark = pytest.mark.timeout(120)
DELAYS = [random.Random(seed).uniform(0.0, 0.1) for seed in range(3)]
MOMENTS = [(number + random.Random(number).random()) / 6 for number in range(6)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tenfold.Run:
    return tenfold.train(**SMALL, runs=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def lines(whole: tenfold.Run, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], int]:
    """Return how many lines of these modules a whole run executes."""
    return {
        modules: killed_training.count_lines(str(tmp_path_factory.mktemp("lines")), modules)
        for modules in (WHILE_TRAINING, WHERE_FILES_ARE_WRITTEN)
    }


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
    whole: tenfold.Run, lines: dict[tuple[str, ...], int], tmp_path: Path, modules: tuple[str, ...]
) -> None:
    interrupted = 0
    for number, moment in enumerate(MOMENTS):
        runs = tmp_path / str(number)
        child = start_program(
            killed_training.train_until_line, str(runs), 1 + int(moment * (lines[modules] - 20)), modules
        )
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        for run in assert_sound(runs):
            interrupted += run.status == "interrupted"
            assert_resumes_to(whole, run)
    assert interrupted >= len(MOMENTS) // 2


def test_killed_from_outside(whole: tenfold.Run, tmp_path: Path) -> None:
    for number, delay in enumerate(DELAYS):
        runs = tmp_path / str(number)
        child = start_program(killed_training.train, str(runs))
        wait_until(lambda runs=runs: recorded(runs), pause=0.001)
        time.sleep(delay)
        child.kill()
        child.join(60)
        (run,) = assert_sound(runs)
        assert_resumes_to(whole, run)


def test_killed_again_and_again(whole: tenfold.Run, lines: dict[tuple[str, ...], int], tmp_path: Path) -> None:
    runs = tmp_path / "again"
    start_program(killed_training.train_until_line, str(runs), lines[WHILE_TRAINING] // 2).join(60)
    for _ in range(3):
        child = start_program(killed_training.resume_until_line, str(runs), lines[WHILE_TRAINING] // 8)
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        (run,) = assert_sound(runs)
        assert run.status == "interrupted"
    assert_resumes_to(whole, run)


def test_half_written_files_are_swept_when_the_run_goes_on(
    whole: tenfold.Run, lines: dict[tuple[str, ...], int], tmp_path: Path
) -> None:
    start_program(killed_training.train_until_line, str(tmp_path / "runs"), lines[WHILE_TRAINING] // 2).join(60)
    (run,) = assert_sound(tmp_path / "runs")
    (run.path / ".model.pt.abc123.part").write_bytes(b"half")
    assert_resumes_to(whole, run)
    assert not list(run.path.glob(".*"))


def test_several_may_begin_at_once_in_a_new_folder(tmp_path: Path) -> None:
    for number in range(2):
        train = partial(killed_training.train, str(tmp_path / str(number)), epochs=1)
        children = [start_program(train) for _ in range(3)]
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0, 0]
        assert [run.status for run in tenfold.list_runs(runs=tmp_path / str(number))] == ["finished"] * 3


def test_a_run_in_another_process_is_left_alone(tmp_path: Path) -> None:
    child = start_program(partial(killed_training.train, str(tmp_path), epochs=1_000_000))
    try:
        wait_until(lambda: recorded(tmp_path))
        assert tenfold.open_run(runs=tmp_path).status == "running"
        with pytest.raises(StoreError, match=f"process {child.pid}"):
            tenfold.resume(runs=tmp_path)
    finally:
        child.kill()
        child.join(60)
    assert tenfold.open_run(runs=tmp_path).status == "interrupted"


def test_ctrl_c_is_recorded_and_says_how_to_go_on(tmp_path: Path) -> None:
    arguments = ["train", "--model", "mlp", "--data", "digits", "--epochs", "1000000", "--threads", "1"]
    command = start_program(run_command, str(tmp_path), *arguments, "--runs", str(tmp_path / "runs"))
    try:
        wait_until(lambda: recorded(tmp_path / "runs") and len(tenfold.open_run(runs=tmp_path / "runs").history) >= 3)
        os.kill(command.pid, signal.SIGINT)
        command.join(60)
        assert command.exitcode == 130
    finally:
        command.kill()
        command.join()
    assert (tmp_path / "out").read_text() == ""
    said = (tmp_path / "err").read_text()
    assert "epoch 3/" in said
    assert "Traceback" not in said
    assert said.strip().splitlines()[-1].startswith("interrupted; `tenfold resume ")
    run = tenfold.open_run(runs=tmp_path / "runs")
    assert run.status == "interrupted"
    assert len(run.history) >= 3
    assert (run.path / "checkpoint" / "manifest.json").exists()


def recorded(runs: Path) -> bool:
    try:
        return len(tenfold.list_runs(runs=runs)) == 1
    except StoreError:
        return False
