"""Ranks under torchrun and mpirun: the same weights as worker processes, and nobody waits for the dead."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import LAWFUL, same, train
from failing_ranks import failing
from forked import forked_python
from launchers import mpirun
from launching import end_ranks, free_address, launch, start_rank, start_ranks, told, torchrun_experiments
from launching import run as run_command

import tenfold
from tenfold.runs.events import Lifecycle, Span

pytestmark = pytest.mark.timeout(90)
SIZE = 3
BASE = LAWFUL | {"epochs": 2, "sync_every": 2, "threads": 1, "oversubscribe": True}
EXACTLY: list[dict[str, Any]] = [
    {"strategy": "gossip", "distribute": "scatter", "patience": 5},
    {"strategy": "ring", "optimizer_state": "average", "precision": "fp64"},
    {"strategy": "allreduce", "average": "gradients", "evaluate_every": 0.5},
]
"""Ranks of one host share memory, which adds in rank order."""
NEARLY: list[dict[str, Any]] = [
    {"strategy": strategy, "transport": "torch", "optimizer": "sgd", "lr": 0.05} | more
    for strategy, more in [
        ("ring", {}),
        ("allreduce", {"average": "gradients"}),
        ("allreduce", {"outer": "slowmo", "precision": "fp64"}),
    ]
]
"""Means over all are torch's own."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train everything in one launch: starting ranks takes longer than training does."""
    folder = tmp_path_factory.mktemp("launched")
    assert not torchrun_experiments(SIZE, folder, [BASE | item for item in EXACTLY + NEARLY])
    return folder


def the_same_in_processes(fields: dict[str, Any], runs: Path) -> tenfold.Run:
    fields = {key: value for key, value in fields.items() if key not in ("transport", "distribute")}
    return train(**BASE | fields, workers=SIZE, engine="processes", runs=runs)


@pytest.mark.parametrize("number", range(len(EXACTLY)))
def test_sums_in_rank_order_give_the_bits_of_worker_processes(folder: Path, number: int, tmp_path: Path) -> None:
    launched = tenfold.open_run(number + 1, runs=folder / "runs")
    process = the_same_in_processes(EXACTLY[number], tmp_path)
    assert same(launched.weights, process.weights)
    assert launched.metrics == process.metrics
    assert [row["train_loss"] for row in launched.history] == [row["train_loss"] for row in process.history]
    assert launched.result["bytes_moved"] == process.result["bytes_moved"]


@pytest.mark.parametrize("number", range(len(NEARLY)))
def test_sums_of_the_library_give_nearly_the_same(folder: Path, number: int, tmp_path: Path) -> None:
    launched = tenfold.open_run(len(EXACTLY) + number + 1, runs=folder / "runs")
    process = the_same_in_processes(NEARLY[number], tmp_path)
    exact = NEARLY[number].get("precision") == "fp64"
    for name, weights in process.weights.items():
        torch.testing.assert_close(launched.weights[name], weights, rtol=1e-5, atol=1e-13 if exact else 1e-6)


def test_every_rank_returns_the_same(folder: Path) -> None:
    for number in range(len(EXACTLY + NEARLY)):
        reports = told(folder, number)
        assert [report["rank"] for report in reports] == list(range(SIZE))
        assert {report["id"] for report in reports} == {number + 1}
        assert len({(report["accuracy"], report["weights"]) for report in reports}) == 1


def test_rank_0_records_what_all_did(folder: Path) -> None:
    runs = tenfold.list_runs(runs=folder / "runs")
    assert [run.status for run in runs] == ["finished"] * len(EXACTLY + NEARLY)
    for run in runs:
        assert run.result["workers"] == SIZE
        assert run.result["samples"] == 2 * run.metadata["data"]["train"]
        assert [stage.stage for stage in run.lifecycle()] == ["recorded", "started", "epoch", "epoch", "finished"]
        spans = list(run.spans())
        for worker in range(SIZE):
            assert {"start", "data", "compute", "evaluate", "save"} <= {s.kind for s in spans if s.worker == worker}
        assert not list(run.path.glob("checkpoint/*"))
        launch_metadata = run.metadata["launch"]
        assert launch_metadata["launcher"] == "torchrun"
        assert list(launch_metadata["hosts"].values()) == [[0, 1, 2]]
    assert {run.metadata["launch"]["within_hosts"] for run in runs} == {"torch", "shared-memory"}


class TestARankThatIsLost:
    def test_is_named_and_what_was_recorded_stays(self, tmp_path: Path) -> None:
        assert torchrun_experiments(2, tmp_path, [failing("SIGKILL", 1, 1)])
        run = tenfold.open_run(runs=tmp_path / "runs")
        assert run.status == "interrupted"
        assert run.error.startswith("worker 1 (p")
        assert "died" in run.error
        assert [row["epoch"] for row in run.history] == [1]

    @pytest.mark.parametrize("how", ["SIGSTOP", "lock"])
    def test_is_named_if_it_makes_no_progress(self, how: str, tmp_path: Path) -> None:
        codes = start_ranks(2, tmp_path, [failing(how, 1, 1, stall_after=3)], not_waiting_for=[1])
        assert codes[0] not in (0, None)
        self.assert_named(tmp_path)

    def test_is_not_one_whose_call_into_c_lets_no_thread_run(self, tmp_path: Path) -> None:
        assert start_ranks(2, tmp_path, [failing("c call", 1, 2, stall_after=30)]) == [0, 0]
        assert tenfold.open_run(runs=tmp_path / "runs").status == "finished"

    def test_is_named_under_mpirun(self, tmp_path: Path) -> None:
        fields = failing("SIGSTOP", 1, 1, transport="mpi", stall_after=3)
        done = launch([*mpirun(), "-n", "2", *forked_python()], tmp_path, [fields])
        assert done.returncode != 0, "mpirun ends, although a rank is stopped"
        with suppress(ProcessLookupError):  # mpirun may only have ended the process that started the rank
            os.kill(self.assert_named(tmp_path), signal.SIGKILL)

    def assert_named(self, tmp_path: Path) -> int:
        """Return the process of the rank that is named."""
        run = tenfold.open_run(runs=tmp_path / "runs")
        assert run.status == "interrupted"
        named = re.match(r"worker 1 \(process (\d+)", run.error)
        assert named, run.error
        assert [row["epoch"] for row in run.history] == [1]
        return int(named[1])

    def test_comes_back_by_the_launchers_restarts(self, tmp_path: Path) -> None:
        once = failing("SIGKILL", 1, 1, model="launched_program:FailingOnce", strategy="butterfly")
        assert not torchrun_experiments(2, tmp_path, [once | {"transport": "torch"}], max_restarts=1)
        (run,) = tenfold.list_runs(runs=tmp_path / "runs")
        assert run.status == "finished"
        stages = {stage.stage: stage for stage in run.lifecycle()}
        assert stages["interrupted"].error.startswith("worker 1 (process ")
        assert "resumed" in stages
        whole = train(**once | {"model": "engine_models:Failing"} | {"model_options": {"number": -1}}, workers=2)
        assert same(run.weights, whole.weights)


NET = """
import numpy as np
import torch
from torch import nn

class Net(nn.Sequential):
    def __init__(self, shape, outputs):
        super().__init__(nn.Linear(shape[0], {hidden}), nn.{activation}(), nn.Linear({hidden}, outputs))

class Noisy:
    def __len__(self):
        return 40

    def __getitem__(self, number):
        return torch.from_numpy(np.random.default_rng().normal(number, 1, 2)), number % 2

def noisy():
    return {{"train": Noisy(), "test": Noisy()}}
"""


def write_files(
    folder: Path, *, samples: int = 60, labels: str = "ab", hidden: int = 8, activation: str = "Tanh"
) -> None:
    """Write a table and a model, as one host has them."""
    folder.mkdir()
    rows = [f"{number % 7},{number % 5},{labels[number % 2]}" for number in range(samples)]
    (folder / "table.csv").write_text("\n".join(["a,b,label", *rows]))
    (folder / "nets.py").write_text(NET.format(hidden=hidden, activation=activation))


class TestRanksThatDiffer:
    SETTINGS = ("epochs=1", "batch_size=8", "lr=0.01", "threads=1", "oversubscribe=true")

    def codes(
        self,
        folder: Path,
        options: dict[int, tuple[str, ...]],
        files: dict[int, dict[str, Any]],
        data: str = "table.csv",
    ) -> list[Any]:
        """Let two ranks train, with other options or files on some of them; return their exit codes."""
        address = free_address()
        ranks = []
        for rank in range(2):
            write_files(folder / f"{rank}", **files.get(rank, {}))
            fields = [f"--set={setting}" for setting in (*self.SETTINGS, *options.get(rank, ()))]
            command = ["train", "--data", data, "--model", "nets:Net", "--quiet", *fields]
            ranks.append(start_rank(rank, 2, 2, address, folder / f"{rank}", command=command))
        return end_ranks(ranks)

    @pytest.mark.parametrize(
        ("field", "options", "files"),
        [
            ("training.lr is 0.01 on rank 0, 0.02 on rank 1", {1: ("lr=0.02",)}, {}),
            ("training.seed", {1: ("seed=7",)}, {}),
            ("data.distribute", {1: ("distribute=scatter",)}, {}),
            ("model's 0.weight is float32 [8, 2] on rank 0, float32 [9, 2] on rank 1", {}, {1: {"hidden": 9}}),
            ("source code of nets", {}, {1: {"activation": "ReLU"}}),
            ("samples for train", {}, {0: {"samples": 70}}),
            ("fingerprint of the data", {}, {1: {"labels": "ba"}}),
        ],
        ids=lambda value: value.partition(" is")[0] if isinstance(value, str) else "",
    )
    def test_end_with_an_error_that_names_the_difference(
        self, field: str, options: dict[int, tuple[str, ...]], files: dict[int, dict[str, Any]], tmp_path: Path
    ) -> None:
        assert self.codes(tmp_path, options, files) == [2, 2]
        output = (tmp_path / "0" / "output-0").read_text()
        assert field in " ".join(output.split()), output
        assert not (tmp_path / "0" / "runs").exists() or not tenfold.list_runs(runs=tmp_path / "0" / "runs")

    def test_train_if_they_only_compute_elsewhere(self, tmp_path: Path) -> None:
        """Other data on a rank that gets rank 0's, another title, other threads."""
        scatter = "distribute=scatter"
        options = {0: (scatter,), 1: (scatter, "pin=none", "engine=launched", "name=other")}
        assert self.codes(tmp_path, options, {1: {"labels": "ba"}}) == [0, 0]
        (run,) = tenfold.list_runs(runs=tmp_path / "0" / "runs")
        assert run.status == "finished"

    def test_train_on_samples_that_are_drawn_anew_each_time(self, tmp_path: Path) -> None:
        assert self.codes(tmp_path, {}, {}, data="nets:noisy") == [0, 0]


def test_an_error_of_one_rank_is_told_by_rank_0(tmp_path: Path) -> None:
    assert torchrun_experiments(2, tmp_path, [failing("raise", 1, 1, transport="torch")])
    run = tenfold.open_run(runs=tmp_path / "runs")
    assert run.status == "failed"
    assert run.error.startswith("worker 1: ")
    assert "the model gave up" in run.error


def test_the_command_line_speaks_once(tmp_path: Path) -> None:
    tenfold.Experiment(**BASE).save(tmp_path / "small.toml")
    tenfold_train = ["-m", "tenfold", "train", "small.toml", "--strategy", "hopping-ring", "--set", "transport=mpi"]
    done = run_command([*mpirun(), "-n", "2", *forked_python(), *tenfold_train, "--log-ranks", "1"], tmp_path)
    assert done.returncode == 0, done.stderr
    (run,) = tenfold.list_runs(runs=tmp_path / "runs")
    assert run.status == "finished"
    assert run.metadata["launch"]["launcher"] == "open-mpi" or "mpich" in run.metadata["launch"]["launcher"]
    both = done.stdout + done.stderr
    assert both.count("epoch 2/2") == 1
    assert both.count("writes an HTML report") == 1
    assert both.count("[rank 1] ") == 2
    assert same(run.weights, the_same_as(run, tmp_path / "processes").weights)


def the_same_as(run: tenfold.Run, runs: Path) -> tenfold.Run:
    return tenfold.train(run.experiment, engine="processes", transport="auto", workers=2, runs=runs)


def test_events_have_one_clock(folder: Path) -> None:
    run = tenfold.open_run(1, runs=folder / "runs")
    end = max(event.at for event in run.events() if isinstance(event, Lifecycle))
    assert all(-1 < span.at <= end for span in run.events("span") if isinstance(span, Span))
    assert next(e for e in run.lifecycle() if e.stage == "started").workers == SIZE
