"""Workers are killed and the others go on: as processes of this machine, and as ranks that are started anew."""

import multiprocessing.forkserver
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_models import numbered, recorded, train
from failing_ranks import failing
from launching import start_ranks

import tenfold
from tenfold.errors import UserCodeError
from tenfold.reports import summary
from tenfold.reports.pages.run_pages import render_report
from tenfold.runs.events import Event, Lifecycle, Metric, WorkerDropped, WorkerJoined

pytestmark = pytest.mark.timeout(90)
SAMPLES, EPOCHS = 48, 5
FIELDS: dict[str, Any] = {
    "model": "engine_models:Patient",
    "data": {"train": numbered(SAMPLES), "test": numbered(6)},
    "batch_size": 4,
    "epochs": EPOCHS,
    "lr": 0.01,
    "schedule": "constant",
    "warmup": 0,
    "lr_scaling": "linear",
    "on_failure": "continue",
}


class Strike:
    """A listener that kills the worker in this place in the second epoch, and tells the models of it by files."""

    def __init__(self, place: int, signals: Path) -> None:
        self.place, self.signals = place, signals
        self.victim = 0
        self.heard: list[Lifecycle] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, WorkerDropped | WorkerJoined):
            (self.signals / event.stage).touch()
            self.heard.append(event)
        if isinstance(event, Metric) and event.epoch == 1 and not self.victim:
            self.victim = workers()[self.place]
            os.kill(self.victim, signal.SIGKILL)


def workers() -> list[int]:
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return [child.pid for child in psutil.Process(server).children() if child.status() != psutil.STATUS_ZOMBIE]


class TestProcesses:
    @pytest.mark.parametrize(
        ("place", "more"),
        [(1, {}), (0, {"average": "weights", "strategy": "ring", "patience": 9})],
        ids=["gradients", "weights, without the first worker"],
    )
    def test_a_killed_worker_is_replaced(self, place: int, more: dict[str, Any], tmp_path: Path) -> None:
        folders = [tmp_path / "seen", tmp_path / "signals"]
        for folder in folders:
            folder.mkdir()
        strike = Strike(place, folders[1])
        options = {"folder": str(folders[0]), "signals": str(folders[1])}
        run = train(**FIELDS | more, workers=3, model_options=options, listen=strike)
        assert (run.status, run.result["workers"], run.result["epochs"]) == ("finished", 3, EPOCHS)
        assert [row["epoch"] for row in run.history] == list(range(1, EPOCHS + 1))
        (lost,) = run.result["lost"]
        assert (lost["worker"], lost["left"]) == (place, 2)
        assert 0 < lost["step"] <= lost["joined"] <= run.result["steps"]
        assert [event.stage for event in strike.heard] == ["lost", "joined"]
        assert strike.heard == [stage for stage in run.lifecycle() if stage.stage in ("lost", "joined")]
        assert strike.heard[0].text.startswith(f"worker {place} (process {strike.victim}) was killed by SIGKILL; ")
        seen = recorded(folders[0])
        assert len(seen) == 4, "the new one trained, too"
        visits = Counter(number for batches in seen.values() for batch in batches for number in batch)
        assert max(visits.values()) <= EPOCHS, "no sample twice in an epoch"
        assert run.result["samples"] <= sum(visits.values()) < EPOCHS * SAMPLES, "nothing is counted that was skipped"
        shown = "".join(f"{name}: {text}\n" for name, text in summary.result_rows(run))
        assert f"2 workers continued after step {lost['step']}, replaced after step {lost['joined']}" in shown
        page = render_report([run])
        assert f"Vertical line: worker {place} (process" in page
        assert f"worker {place} was replaced by process" in page

    def test_an_error_in_the_model_still_ends_the_run(self) -> None:
        fields = FIELDS | {"model": "engine_models:Failing", "model_options": {"number": 20, "epoch": 1}}
        with pytest.raises(UserCodeError, match=r"worker \d: ZeroDivisionError: the model gave up"):
            train(**fields, workers=2)


def test_ranks_that_are_started_anew_in_smaller_number_go_on(tmp_path: Path) -> None:
    once = failing("SIGKILL", 1, 1, ranks=3, model="launched_program:FailingOnce")
    fields = once | {"strategy": "butterfly", "on_failure": "continue"}
    codes = start_ranks(3, tmp_path, [fields])
    assert codes[1] == -signal.SIGKILL
    assert tenfold.open_run(runs=tmp_path / "runs").status == "interrupted"
    assert start_ranks(2, tmp_path, [fields], restarts=1) == [0, 0]
    (run,) = tenfold.list_runs(runs=tmp_path / "runs")
    assert (run.status, run.result["workers"]) == ("finished", 2)
    (lost,) = run.result["lost"]
    assert (lost["worker"], lost["left"], lost["epoch"]) == (1, 2, 2)
    assert [row["epoch"] for row in run.history] == [1, 2, 3]
    assert next(stage for stage in run.lifecycle() if stage.stage == "lost").text.startswith("worker 1 (")
