"""What the programs in examples/ train goes through every verb, with few samples and in this process.

`test_examples.py` runs the programs themselves, most of them with two workers in processes.
"""

import functools
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

import tenfold
from tenfold.engines import resolve
from tenfold.engines.one_device import train_replicas
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError
from tenfold.machine import cores
from tenfold.runs import Run
from tenfold.runs.events import Stopwatch

pytestmark = pytest.mark.usefixtures("_workers_with_imports")
EXAMPLES = Path(__file__).parents[1] / "examples"
TINY: dict[str, Any] = {"limit": 48, "epochs": 1, "batch_size": 16, "workers": 1, "threads": 1}
PROGRAMS = {
    "accumulate_and_average": [
        "",
        "",
        "training.activation_checkpointing",
        "",
    ],
    "different_lengths": ["read sample by sample"],
    "own_model": [""],
    "own_optimizer": ["training.optimizer", "training.optimizer"],
    "several_inputs": [""],
    "several_labels": [""],
    "several_outputs": ["", ""],
    "table_from_file": ["", ""],
}
"""What each program trains, and why that cannot be replicas which step together on one device; "" where it can."""
CASES = [(program, place) for program, kinds in PROGRAMS.items() for place in range(len(kinds))]


@functools.cache
def _experiments(program: str, folder: Path) -> list[tuple[dict[str, Any], Run]]:
    """Run a program with few samples and one worker, and return the fields of each different training, and its run."""
    found: list[tuple[dict[str, Any], Run]] = []
    train, cross_validate = tenfold.train, tenfold.cross_validate

    def train_few(**fields: Any) -> Run:
        run = train(**fields | TINY, runs=folder)
        if not any(fields | TINY == other | TINY for other, _ in found):
            found.append((fields, run))
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(tenfold, "train", train_few)
        patch.setattr(tenfold, "cross_validate", lambda **fields: cross_validate(**fields | FUSED | TINY, runs=folder))
        runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="example")
    return found


FUSED: dict[str, Any] = {"folds": 2, "fold_mode": "stacked"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(params=CASES, ids=[f"{program}-{place + 1}" for program, place in CASES])
def case(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Run, str]:
    """Return the fields of an experiment, its run with one worker, and why it cannot be stacked."""
    program, place = request.param
    monkeypatch.chdir(folder)
    found = _experiments(program, folder)
    assert len(found) == len(PROGRAMS[program])
    return (*found[place], PROGRAMS[program][place])


def test_folds(case: tuple[Any, Run, str], tmp_path: Path) -> None:
    fields, run, unfit = case
    folds = fields | TINY | {"folds": 2, "runs": tmp_path}
    one_by_one = tenfold.cross_validate(**folds, fold_mode="fold-by-fold")
    assert [fold["status"] for fold in one_by_one.folds] == ["finished"] * 2
    assert one_by_one.folds[0]["metrics"]["test"].keys() == run.metrics.keys()
    if unfit:
        with pytest.raises(ExperimentError, match=unfit):
            tenfold.cross_validate(**folds, fold_mode="stacked")
        return
    together = tenfold.cross_validate(**folds, fold_mode="stacked")
    for item, other in zip(one_by_one.runs, together.runs, strict=True):
        for name, tensor in item.weights.items():
            assert torch.allclose(tensor, other.weights[name], rtol=1e-3, atol=1e-4), name


def test_replicas_on_one_device(case: tuple[Any, Run, str]) -> None:
    fields, run, unfit = case
    experiment = tenfold.Experiment(**fields | TINY | {"workers": 2, "engine": "one-device"})
    if unfit:
        with pytest.raises(ExperimentError, match=unfit):
            train_replicas(prepare(resolve(experiment)), Stopwatch(), lambda _: None)
        return
    outcome = train_replicas(prepare(resolve(experiment)), Stopwatch(), lambda _: None)
    assert outcome.result["metrics"].keys() == run.metrics.keys()


def test_comparison(case: tuple[Any, Run, str], tmp_path: Path) -> None:
    fields, run, _ = case
    compared = tenfold.compare(**fields | TINY | {"seed": [0, 1]}, runs=tmp_path)
    assert not compared.failed
    assert [run.experiment.training.seed for run in compared.runs] == [0, 1]
    assert compared.runs[0].metrics == run.metrics
    assert compared.runs[1].metrics != run.metrics


def test_virtual_cluster(case: tuple[Any, Run, str], tmp_path: Path) -> None:
    fields, run, _ = case
    three = {"workers": 3, "cluster": {"groups": [{"count": 3, "step_seconds": 0.01}]}}
    simulated = tenfold.simulate(**fields | TINY | three | {"threads": cores.budget()}, runs=tmp_path)
    assert simulated.metrics.keys() == run.metrics.keys()
    assert simulated.seconds > 0
