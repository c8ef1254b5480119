"""Workers are killed and the others go on: as processes of this machine, and as ranks that are started anew."""

import json
import multiprocessing.forkserver
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_models import numbered, recorded, train
from launching import HERE, environment

import tenfold
from tenfold.errors import WorkerLost
from tenfold.report import summary
from tenfold.report.pages.write_report import render_report
from tenfold.runs import Event, Lifecycle, Metric

pytestmark = pytest.mark.timeout(90)
SAMPLES = 48
FIELDS: dict[str, Any] = {
    "model": "engine_models:Recording",
    "data": {"train": numbered(SAMPLES), "test": numbered(6)},
    "batch_size": 4,
    "epochs": 3,
    "lr": 0.01,
    "schedule": "constant",
    "warmup": 0,
    "lr_scaling": "linear",
    "on_failure": "continue",
}


class Strikes:
    """A listener that kills the worker in this place, once in each of these epochs."""

    def __init__(self, place: int, *epochs: int) -> None:
        self.place, self.epochs = place, list(epochs)
        self.crews: list[list[int]] = []
        self.heard: list[Lifecycle] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Lifecycle):
            self.heard.append(event)
        if isinstance(event, Metric) and self.epochs and event.epoch == self.epochs[0]:
            crew = workers()
            if self.crews and set(crew) & set(self.crews[-1]):
                return  # it is dying of the last strike
            self.epochs.pop(0)
            self.crews.append(crew)
            os.kill(self.crews[-1][self.place], signal.SIGKILL)


def workers() -> list[int]:
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return [child.pid for child in psutil.Process(server).children() if child.status() != psutil.STATUS_ZOMBIE]


def visits(folder: Path, but: list[list[int]]) -> Counter[int]:
    """Count how often each sample was seen by processes that are in none of these crews."""
    gone = {pid for crew in but for pid in crew}
    others = [batches for pid, batches in recorded(folder).items() if pid not in gone]
    return Counter(number for batches in others for batch in batches for number in batch)


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """A folder for what the models see."""
    folder = tmp_path / "seen"
    folder.mkdir()
    return folder


class TestProcesses:
    @pytest.mark.parametrize("strategy", ["ring", "allreduce"])
    def test_the_others_go_on_with_all_the_data(self, strategy: str, seen: Path) -> None:
        strikes = Strikes(1, 1)
        run = train(**FIELDS, strategy=strategy, workers=3, model_options={"folder": str(seen)}, listen=strikes)
        assert (run.status, run.result["workers"], run.result["epochs"]) == ("finished", 2, 3)
        (lost,) = run.result["lost"]
        assert (lost["worker"], lost["left"], lost["epoch"]) == (1, 2, 2)
        assert visits(seen, strikes.crews) == dict.fromkeys(range(SAMPLES), 2), "each sample once an epoch"
        assert [row["epoch"] for row in run.history] == [1, 2, 3]
        told = [stage for stage in run.lifecycle() if stage.stage == "lost"]
        assert told == [stage for stage in strikes.heard if stage.stage == "lost"]
        assert told[0].text.startswith(f"worker 1 (process {strikes.crews[0][1]}) was killed by SIGKILL")
        assert told[0].text.endswith("; 2 workers continue from epoch 2")
        shown = "".join(f"{name}: {text}\n" for name, text in summary.result_rows(run))
        assert "workers: 2 workers" in shown
        assert "was killed by SIGKILL; 2 workers continued from epoch 2" in shown
        page = render_report([run])
        assert "Dotted line: worker 1 (process" in page
        assert page.count("2 workers continue from epoch 2") == 1, "the moment is told among what happened"
        rates = {metric.epoch: metric.value for metric in run.measurements() if metric.name == "lr"}
        assert rates == pytest.approx({0: 0.03, 1: 0.02, 2: 0.02})

    def test_down_to_the_last_one_even_without_the_first(self, seen: Path) -> None:
        strikes = Strikes(0, 1, 1)
        run = train(
            **FIELDS, strategy="ring", patience=9, workers=3, model_options={"folder": str(seen)}, listen=strikes
        )
        assert (run.status, run.result["workers"]) == ("finished", 1)
        assert [lost["left"] for lost in run.result["lost"]] == [2, 1]
        assert [stage.stage for stage in run.lifecycle()].count("lost") == 2, "a repeated epoch does not hide a loss"
        assert visits(seen, strikes.crews) == dict.fromkeys(range(SAMPLES), 2)

    def test_who_is_alone_and_lost_ends_the_run_which_then_is_resumed_alone(self, seen: Path) -> None:
        options = {"folder": str(seen)}
        with pytest.raises(WorkerLost, match=r"worker 0 .* was killed"):
            train(**FIELDS, workers=2, model_options=options, listen=Strikes(0, 1, 2))
        resumed = tenfold.resume(data=FIELDS["data"])
        assert (resumed.result["workers"], [lost["left"] for lost in resumed.result["lost"]]) == (1, [1])
        assert [stage.stage for stage in resumed.lifecycle()].count("lost") == 1

    def test_before_the_first_checkpoint_they_begin_anew(self, seen: Path) -> None:
        strikes = Strikes(1, 0)
        run = train(**FIELDS, workers=2, model_options={"folder": str(seen)}, listen=strikes)
        assert (run.result["workers"], run.result["lost"][0]["epoch"]) == (1, 1)
        assert visits(seen, strikes.crews) == dict.fromkeys(range(SAMPLES), 3)


RANKED: dict[str, Any] = {
    "data": "engine_models:numbered",
    "data_options": {"samples": 60},
    "test_fraction": 0.2,
    "stratify": False,
    "shards": "contiguous",
    "batch_size": 4,
    "epochs": 3,
    "lr": 0.01,
    "threads": 1,
    "oversubscribe": True,
    "model": "launched_program:FailingOnce",
    "strategy": "butterfly",
    "on_failure": "continue",
}


def start_ranks(size: int, folder: Path, fields: dict[str, Any], restarts: int) -> list[int]:
    """Start ranks as torchrun would, and return their exit codes; this process is the launcher."""
    (folder / "experiments.json").write_text(json.dumps([fields]))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    shared |= {"TORCHELASTIC_RUN_ID": "survival", "TORCHELASTIC_RESTART_COUNT": restarts}
    ranks = []
    for rank in range(size):
        own = {key: str(value) for key, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        command = [sys.executable, str(HERE / "launched_program.py"), str(folder)]
        ranks.append(subprocess.Popen(command, env=environment(**own), stderr=subprocess.DEVNULL))
    try:
        return [rank.wait(60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


def test_ranks_that_are_started_anew_in_smaller_number_go_on(tmp_path: Path) -> None:
    from tenfold.engines.prepare import prepare

    task = prepare(tenfold.Experiment(**RANKED | {"model": "mlp"}, workers=3))
    number = int(next(task.splits.train.batches([task.shards[1][:1]]))[0][0, 0])
    fields = RANKED | {"model_options": {"number": number, "epoch": 1, "how": "SIGKILL"}}
    codes = start_ranks(3, tmp_path, fields, restarts=0)
    assert codes[1] == -signal.SIGKILL
    assert tenfold.open_run(runs=tmp_path / "runs").status == "interrupted"
    assert start_ranks(2, tmp_path, fields, restarts=1) == [0, 0]
    (run,) = tenfold.list_runs(runs=tmp_path / "runs")
    assert (run.status, run.result["workers"]) == ("finished", 2)
    (lost,) = run.result["lost"]
    assert (lost["worker"], lost["left"], lost["epoch"]) == (1, 2, 2)
    assert [row["epoch"] for row in run.history] == [1, 2, 3]
    assert next(stage for stage in run.lifecycle() if stage.stage == "lost").text.startswith("worker 1 (")
