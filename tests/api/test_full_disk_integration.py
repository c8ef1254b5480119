"""A full disk, or a folder that cannot be: training continues, warns once, and leaves nothing half-written."""

import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import full_disk
import pytest
import torch
from forked import start_program
from full_disk import LARGE

import tenfold
from tenfold.errors import StoreError

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(sys.platform == "win32", reason="limits on files are a thing of Unix"),
]
ROOM_FOR_EVENTS = 300_000
"""Bytes: the weights of the network, 600 kB, do not fit; the store does."""
ROOM_FOR_A_BEGINNING = None
"""The disk is full as soon as the run is recorded."""
TRAIN = ("train", "--model", "mlp", "--data", "digits", "--set", "hidden=[2048]", "--epochs", "3", "--threads", "1")


class Said:
    """What a command wrote, and its exit code."""

    def __init__(self, folder: Path, limit: int | None, *arguments: str) -> None:
        process = start_program(full_disk.command, limit, str(folder), *arguments, "--runs", str(folder / "runs"))
        process.join(60)
        process.kill()
        self.code = process.exitcode
        self.out = (folder / "out").read_text()
        self.err = (folder / "err").read_text()


def seen_by_a_program(runs: Path, limit: int | None) -> dict[str, Any]:
    here, there = multiprocessing.Pipe()
    process = start_program(full_disk.python, limit, str(runs), there)
    there.close()
    try:
        seen: dict[str, Any] = here.recv()
    finally:
        process.join(100)
    return seen


def assert_nothing_is_half_written(runs: Path) -> None:
    assert not list(runs.rglob("*.part"))
    for path in runs.rglob("*.pt"):
        torch.load(path, weights_only=True)


class TestNoRoomForTheWeights:
    def test_the_command_line_warns_once_shows_the_result_and_exits_with_2(self, tmp_path: Path) -> None:
        said = Said(tmp_path, ROOM_FOR_EVENTS, *TRAIN)
        assert said.code == 2
        assert "test accuracy" in said.out
        assert "epoch 3/3" in said.err
        assert said.err.count("warning:") == 1
        assert "Traceback" not in said.err
        assert said.err.strip().splitlines()[-1].startswith("error: not everything was saved: ")
        assert said.err.strip().endswith("model.pt cannot be written: File too large")
        assert_nothing_is_half_written(tmp_path / "runs")
        run = tenfold.open_run(runs=tmp_path / "runs")
        assert run.status == "interrupted", "what it has to leave behind is not all there"
        assert len(run.history) == 3
        with pytest.raises(StoreError, match="resume"):
            _ = run.model
        resumed = tenfold.resume(1, runs=tmp_path / "runs")
        assert resumed.status == "finished"
        assert tenfold.open_run(runs=tmp_path / "runs").weights

    def test_a_program_gets_its_run_its_model_and_one_warning(self, tmp_path: Path) -> None:
        seen = seen_by_a_program(tmp_path / "runs", ROOM_FOR_EVENTS)
        assert seen["status"] == "interrupted"
        assert seen["accuracy"] > 0.5
        assert len(seen["warnings"]) == 1
        assert seen["warnings"][0].endswith("cannot be written: File too large; training continues")
        assert "model.pt cannot be written" in seen["problem"]
        assert seen["model"] == "Sequential"


class TestNoRoomForTheStore:
    def test_training_goes_on_to_the_last_epoch_and_the_exit_code_is_2(self, tmp_path: Path) -> None:
        said = Said(tmp_path, ROOM_FOR_A_BEGINNING, *TRAIN)
        assert said.code == 2
        assert "epoch 3/3" in said.err
        assert "Traceback" not in said.err
        assert "test accuracy" in said.out
        assert "still running" not in said.out
        assert_nothing_is_half_written(tmp_path / "runs")
        assert tenfold.open_run(runs=tmp_path / "runs").status == "interrupted"

    def test_a_program_gets_its_result(self, tmp_path: Path) -> None:
        seen = seen_by_a_program(tmp_path / "runs", ROOM_FOR_A_BEGINNING)
        assert seen["accuracy"] is not None
        assert seen["status"] == "interrupted"

    def test_no_room_at_all_is_said_before_training(self, tmp_path: Path) -> None:
        said = Said(tmp_path, 8000, *TRAIN)
        assert (said.code, said.out) == (2, "")
        assert said.err.startswith("error: the run store ")
        assert len(said.err.strip().splitlines()) == 1


class TestAFolderThatCannotBe:
    @pytest.fixture(params=["a file in the way", "a file above it", "a folder of the kernel"])
    def impossible(self, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
        (tmp_path / "file").write_text("in the way")
        return {
            "a file in the way": tmp_path / "file",
            "a file above it": tmp_path / "file" / "runs",
            "a folder of the kernel": Path("/proc/tenfold-runs"),
        }[request.param]

    def test_it_is_a_sentence(self, impossible: Path) -> None:
        with pytest.raises(StoreError, match=f"the run store {impossible} cannot be opened") as caught:
            tenfold.train(**LARGE, runs=impossible)
        assert "\n" not in str(caught.value)

    def test_reading_from_it_is_one_too(self, impossible: Path) -> None:
        with pytest.raises(StoreError, match=f"there are no runs in {impossible}"):
            tenfold.list_runs(runs=impossible)


class TestASmallDisk:
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Iterator[Path]:
        folder = tmp_path / "disk"
        folder.mkdir()
        mounted = False
        if sys.platform == "linux" and os.geteuid() == 0:
            command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
            mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        if not mounted:
            pytest.skip("mounting a small disk takes root's rights")
        yield folder
        subprocess.run(["umount", str(folder)], check=True)

    def test_training_goes_on(self, disk: Path) -> None:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run = tenfold.train(**LARGE, runs=disk / "runs")
        assert run.status == "interrupted"
        assert [
            str(item.message) for item in warned if "No space left on device; training continues" in str(item.message)
        ]
        assert run.result["problem"].endswith("model.pt cannot be written: No space left on device")
        assert_nothing_is_half_written(disk)
        assert len(tenfold.open_run(runs=disk / "runs").history) == 3
