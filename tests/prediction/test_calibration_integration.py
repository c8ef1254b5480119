import subprocess
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tenfold.cli import app
from tenfold.cluster.cluster import Cluster
from tenfold.engines.prepare import prepare
from tenfold.errors import MachineError
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.prediction import calibration, library_averaging, probes
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Resolved, Task

pytestmark = pytest.mark.timeout(110)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, and no other transports."""
    monkeypatch.setattr(cores, "budget", lambda: 2)
    monkeypatch.setattr(calibration, "measure_library_averaging", lambda counts, report: [])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this machine's profile is kept."""
    monkeypatch.setenv("TENFOLD_PROFILE", str(tmp_path / "own.toml"))
    return tmp_path / "own.toml"


def small() -> Experiment:
    x, y = torch.randn(96, 6), torch.randint(3, (96,))
    data = {"train": (x, y), "test": (x[:8], y[:8])}
    return Experiment(model="mlp", hidden=[8], data=data, batch_size=8, workers=2, threads=1)


def prepared(experiment: Experiment) -> Task:
    return prepare(Resolved.of(experiment))


@pytest.mark.usefixtures("hasty")
def test_a_calibration_has_everything_that_a_clock_asks_for(place: Path) -> None:
    said: list[str] = []
    profile = calibration.measure_all(small(), report=said.append)
    assert {(step.workers, step.batch_size) for step in profile.steps} == {(1, 2), (1, 8), (2, 2), (2, 8)}
    for step in profile.steps:
        times = step.step_times()
        assert times is not None
        assert times.shape == (step.samples // step.workers, step.workers)
        assert (step.round is None) == (step.workers == 1)
    assert [(entry.workers, entry.kind, entry.fan) for entry in profile.averaging] == [(2, "group", 2)]
    assert set(profile.costs.start) == {1, 2}
    assert set(profile.costs.save) == {4096, 65536}
    assert profile.check(calibration.profile_metadata()) is None
    assert any(line.startswith("rounds of 2 workers") for line in said)
    assert Profile.load(profile.save()).steps[0].work == profile.steps[0].work

    profile.model_copy(update={"steps": ()}).save()
    known = calibration.complete_profile(prepared(small()))
    assert {(step.workers, step.batch_size) for step in known.steps} == {(2, 2), (2, 8)}
    assert Profile.load(place).averaging != ()
    said.clear()
    assert calibration.complete_profile(prepared(small()), said.append) == Profile.load(place)
    assert not said
    compressing = small().replace(compression="int8")
    known = calibration.complete_profile(prepared(compressing), said.append)
    assert set(known.costs.round_overhead) == {"optimizer_state average muon", "compression int8"}
    assert len(known.costs.round_overhead["compression int8"]) == 1
    said.clear()
    calibration.complete_profile(prepared(compressing), said.append)
    assert not said


@pytest.mark.usefixtures("hasty")
def test_nodes_of_a_cluster_need_steps_startup_and_checkpoints_but_no_rounds(place: Path) -> None:
    known = calibration.complete_profile(prepared(small()), cluster=Cluster.of(64))
    assert {(step.threads, step.workers, step.batch_size) for step in known.steps} == {(1, 1, 2), (1, 1, 8)}
    assert known.averaging == ()
    assert known.start_seconds(1) > 0
    assert known.save_seconds(4096) > 0
    assert Profile.load(place).has_step(known.steps[0].work, 8, 1, 1)


@pytest.mark.usefixtures("hasty")
def test_the_command_line_shows_what_was_measured_and_saves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenfold.prediction.calibration.MODELS", ("mlp",))
    place = tmp_path / "profile.toml"
    done = CliRunner().invoke(app, ["calibrate", "-o", str(place)])
    assert done.exit_code == 0, done.output
    assert "mlp, 1x28x28" in done.output
    assert "shared-memory" in done.output
    assert str(place) in done.output.replace("\n", "")
    assert Profile.load(place).steps


def test_a_foreign_profile_is_refused(place: Path) -> None:
    foreign = Profile(made="", machine={"cpu": {"model": "Abacus"}})
    foreign.save()
    with pytest.raises(MachineError, match="its processor is Abacus"):
        calibration.complete_profile(prepared(small()))
    assert Profile.load(place) == foreign


def test_gloo_is_measured_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_averaging, "SIZES", {1024: 2, 4096: 2})
    monkeypatch.setattr(library_averaging, "mpirun", lambda: None)
    entries = library_averaging.measure_library_averaging([2], lambda _: None)
    assert [(entry.transport, set(entry.seconds)) for entry in entries] == [("gloo", set(library_averaging.SIZES))]


def test_a_transport_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(n: int) -> dict[int, float]:
        raise subprocess.SubprocessError("no such network")

    monkeypatch.setattr(library_averaging, "_gloo", fail)
    monkeypatch.setattr(library_averaging, "mpirun", lambda: None)
    said: list[str] = []
    assert library_averaging.measure_library_averaging([2, 4], said.append) == []
    assert said[-1] == "gloo does not work here and is left out: no such network"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        ("echo 'RuntimeError: no fabric' >&2; echo ----- >&2; exit 1", "RuntimeError: no fabric"),
        ("echo 'no slots' >&2", "no slots"),
        ("exit 0", "mpirun printed no result"),
    ],
)
def test_what_mpirun_complains_of_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, sentence: str
) -> None:
    launcher = tmp_path / "mpirun"
    launcher.write_text(f"#!/bin/sh\n{script}\n")
    launcher.chmod(0o755)
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.setattr(library_averaging, "mpirun", lambda: str(launcher))
    said: list[str] = []
    assert library_averaging.measure_library_averaging([2], said.append) == []
    assert said[-1] == f"mpi does not work here and is left out: {sentence}"


def test_what_was_said_before_patience_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(n: int) -> dict[int, float]:
        raise subprocess.TimeoutExpired("mpirun", 30, stderr=b"waiting for node 7\n")

    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.setattr(library_averaging, "mpirun", lambda: "mpirun")
    monkeypatch.setattr(library_averaging, "_mpi", hang)
    said: list[str] = []
    assert library_averaging.measure_library_averaging([2], said.append) == []
    assert said[-1] == "mpi does not work here and is left out: waiting for node 7"


@pytest.mark.usefixtures("place")
def test_other_transports_are_measured_by_a_calibration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "budget", lambda: 4)
    monkeypatch.setattr(probes, "measure_saving", lambda report: ({}, 0.1))
    monkeypatch.setattr(probes, "measure_averaging", lambda *counts, turns: ([], {}))
    monkeypatch.setattr(probes, "steps", lambda *settings: ([], []))
    asked: list[list[int]] = []
    monkeypatch.setattr(calibration, "measure_library_averaging", lambda counts, report: asked.append(counts) or [])
    calibration.complete_profile(prepared(small()))
    assert asked == []
    calibration.measure_all(small())
    assert asked == [[2, 4]]
