"""Sandblaster: the iterates of torch's L-BFGS, whoever computes what, and whoever is slow or killed."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tenfold
from tenfold.engines.prepare import resolve
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.machine.cores import using_threads
from tenfold.runs.events import EpochEnded, Event
from tenfold.workers.task import make_network

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("_in_a_folder_of_its_own")]
ITERATIONS = 8


def samples(count: int = 240) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 6, generator=generator)
    return x, (x @ torch.randn(6, 3, generator=generator)).argmax(1)


FIELDS: dict[str, Any] = {
    "model": "mlp",
    "hidden": [16],
    "data": samples(),
    "optimizer": "sandblaster-lbfgs",
    "epochs": ITERATIONS,
    "threads": 1,
    "oversubscribe": True,
    "optimizer_options": {"portions": 12, "history_size": 5},
}


def train(**fields: Any) -> tenfold.Run:
    return tenfold.train(**FIELDS | fields)


def same_weights(one: tenfold.Run, other: tenfold.Run) -> bool:
    weights = other.weights
    return all(torch.equal(tensor, weights[name]) for name, tensor in one.weights.items())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tenfold.Run:
    return train(runs=tmp_path_factory.mktemp("alone"))


def test_it_takes_the_steps_of_torchs_lbfgs() -> None:
    losses: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, EpochEnded):
            losses.append(event.metrics["train_loss"])

    run = train(precision="fp64", workers=2, listen=listen)
    resolved = resolve(Experiment(**FIELDS | {"precision": "fp64"}))
    task = resolved.engine.prepare(resolved)
    network, part = make_network(task), task.splits.train
    [(x, y)] = part.batches([torch.arange(len(part))])
    lbfgs = torch.optim.LBFGS(
        network.parameters(), 1.0, max_iter=1, max_eval=26, history_size=5, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        lbfgs.zero_grad()
        loss = nn.functional.cross_entropy(network(x.double()), y)
        loss.backward()
        return loss

    with using_threads(1):
        expected = [lbfgs.step(closure).item() for _ in range(ITERATIONS)]
    assert losses == pytest.approx(expected, rel=1e-6)
    for name, tensor in network.state_dict().items():
        torch.testing.assert_close(run.weights[name], tensor, rtol=1e-5, atol=1e-6)


VIRTUAL: dict[str, Any] = {"engine": "virtual", "cluster": {"groups": [{"count": 8, "step_seconds": 0.01}]}}


@pytest.mark.parametrize("fields", [{"workers": 2}, {"workers": 3}, VIRTUAL | {"workers": 5}])
def test_any_number_of_workers_real_or_virtual_finds_the_same_bits(alone: tenfold.Run, fields: dict[str, Any]) -> None:
    assert same_weights(train(**fields), alone)


BATCHES: dict[str, Any] = {"batch_size": 30, "epochs": 2}
GROWING: dict[str, Any] = {"optimizer_options": {"growth": 0.5, "first_samples": 24, "portions": 6}}


@pytest.mark.parametrize("fields", [BATCHES, GROWING, BATCHES | GROWING], ids=["batches", "growing", "both"])
def test_processes_and_virtual_workers_are_twins_with_batches_and_growing_ones(fields: dict[str, Any]) -> None:
    real, virtual = train(workers=3, engine="processes", **fields), train(workers=3, **fields, **VIRTUAL)
    assert same_weights(real, virtual)
    assert len({epoch["train_loss"] for epoch in real.history}) == len(real.history)


class Faulty(nn.Module):
    """A network whose first worker to find the file that `folder` holds removes it, and stops or sleeps."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.folder = folder

    def forward(self, x: Tensor) -> Tensor:
        for order in ("kill", "sleep"):
            try:
                (Path(self.folder) / order).unlink()
            except FileNotFoundError:
                continue
            if order == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1.0)
        return self.layers(x)


@pytest.mark.parametrize("order", ["sleep", "kill"])
def test_a_slow_or_killed_worker_changes_nothing_but_the_time(tmp_path: Path, order: str) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 1:
            (tmp_path / order).touch()

    fields = {"model": Faulty(str(tmp_path)), "hidden": None, "workers": 2, "on_failure": "continue"}
    undisturbed = train(**fields)
    disturbed = train(**fields, listen=listen)
    assert not (tmp_path / order).exists()
    assert same_weights(disturbed, undisturbed)
    assert [lost["worker"] for lost in disturbed.result["lost"]] in ([[0], [1]] if order == "kill" else [[]])


def test_a_resumed_run_ends_as_if_it_had_not_been_interrupted(alone: tenfold.Run) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(workers=2, listen=interrupt)
    assert same_weights(tenfold.resume(data=FIELDS["data"]), alone)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"clip": 1.0}, "training.clip"),
        ({"batchnorm": True}, "model.batchnorm"),
        (
            {"hidden": None, "model": nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))},
            "batch normalization",
        ),
        ({"workers": 2, "strategy": "butterfly"}, "parallel.strategy"),
        ({"optimizer_options": {"portions": 0}}, "portions is 0"),
        ({"optimizer_options": {"partitions": 3}}, "no option 'partitions'"),
    ],
)
def test_what_it_cannot_do_is_said_before_anything_starts(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=said):
        train(**fields, runs=tmp_path)
    assert not list(tmp_path.iterdir())


def test_growing_batches_have_the_same_samples_with_any_number_of_workers() -> None:
    assert same_weights(train(workers=1, **GROWING), train(workers=3, **GROWING))
