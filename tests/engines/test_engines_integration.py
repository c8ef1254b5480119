"""The engines keep their contract, and the laws hold in real processes."""

import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_contract import EngineContract
from engine_models import LAWFUL, PLAIN, SMALL, Numbered, numbered, recorded, same, train
from torch import Tensor, nn
from torch.nn import functional

import tenfold
from tenfold.data.splitting import SHARD_KINDS
from tenfold.engines.prepare import prepare
from tenfold.errors import ExperimentError, MachineError
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.mixing import COMPRESSIONS, OUTER, STRATEGIES
from tenfold.runs.events import Event, Metric
from tenfold.workers.task import Resolved, make_network

pytestmark = pytest.mark.timeout(60)
ASYNCHRONOUS = [name for name in STRATEGIES if STRATEGIES[name].asynchronous]
DIGITS = PLAIN | {"model": "mlp", "data": "digits", "hidden": [32], "epochs": 2, "batch_size": 16, "lr": 0.1}
BRISK = {"easgd": {"tau": 2, "alpha": 0.3}, "downpour": {"gamma": 0.02}}
"""Options for two short epochs; the usual ones are for longer runs."""


class TestSerial(EngineContract):
    fields: dict[str, Any] = {"engine": "serial"}  # noqa: RUF012


class TestProcesses(EngineContract):
    fields: dict[str, Any] = {  # noqa: RUF012
        "engine": "processes",
        "workers": 3,
        "strategy": "ring",
        "sync_every": 2,
        "optimizer_state": "average",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"average": "gradients", "optimizer": "sgd"},
        {"strategy": "easgd"},
        {"strategy": "downpour", "strategy_options": {"n_push": 3}},
        {"strategy": "ad-psgd"},
        {"outer": "slowmo", "compression": "int8", "optimizer_state": "reset", "patience": 1},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())) or "plain",
)
def test_a_world_of_one_is_no_special_case(fields: dict[str, Any]) -> None:
    """Law 5, bit for bit."""
    serial = train(**LAWFUL | fields, engine="serial")
    process = train(**LAWFUL | fields, engine="processes", workers=1)
    assert same(serial.model.state_dict(), process.model.state_dict())
    assert serial.metrics == process.metrics


@pytest.mark.parametrize("kind", sorted(SHARD_KINDS))
@pytest.mark.parametrize("data", [numbered, Numbered], ids=["tensors", "dataset"])
def test_every_sample_is_learned_from_once_an_epoch(data: Any, kind: str, tmp_path: Path) -> None:
    """Law 1, as the models themselves saw it."""
    seen = tmp_path / "seen"
    seen.mkdir()
    run = train(
        model="engine_models:Recording",
        model_options={"folder": str(seen)},
        data={"train": data(47), "test": data(5)},
        workers=3,
        shards=kind,
        fractions=[0.6, 0.3, 0.1] if kind == "fractions" else None,
        batch_size=4,
        epochs=2,
        lr=1e-6,
    )
    batches = recorded(seen)
    assert len(batches) == 3
    count = Counter(number for of_worker in batches.values() for batch in of_worker for number in batch)
    assert count == Counter(dict.fromkeys(range(47), 2))
    shards = [{number for batch in of_worker for number in batch} for of_worker in batches.values()]
    assert sum(map(len, shards)) == 47, "a sample changed its worker"
    assert run.result["samples"] == 2 * 47


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("average", ["weights", "gradients"])
def test_the_oracle_holds_for_lenet5_in_processes(workers: int, average: str) -> None:
    """Law 3, end to end: batches that are whole shards, against a plain loop over the whole set."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 1, 12, 12, generator=generator), torch.arange(40) % 4
    fields: dict[str, Any] = PLAIN | {
        "model": "lenet5",
        "data": {"train": (x, y), "test": (x, y)},
        "epochs": 4,
        "batch_size": 40,
        "lr": 0.1,
        "workers": workers,
        "average": average,
    }
    run = train(**fields)
    network: nn.Module = make_network(prepare(Resolved.of(Experiment(**fields))))
    start = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    descent = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        descent.zero_grad()
        functional.cross_entropy(network(x), y).backward()
        descent.step()
    found: dict[str, Tensor] = run.model.state_dict()
    for name, tensor in network.state_dict().items():
        assert not torch.allclose(tensor, start[name])
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


class TestEverythingTrains:
    """On 1,438 digits two epochs of three workers are 60 steps each: enough to tell learning from chance, 10 %."""

    def test_what_is_taken_where_nothing_is_said(self) -> None:
        run = train(model="mlp", data="digits", workers=3, epochs=6)
        assert run.accuracy is not None
        assert run.accuracy > 0.75

    @pytest.mark.parametrize("strategy", sorted(STRATEGIES))
    def test_strategies(self, strategy: str) -> None:
        run = train(**DIGITS, workers=3, strategy=strategy, strategy_options=BRISK.get(strategy, {}))
        assert run.accuracy is not None
        assert run.accuracy > 0.75
        assert (run.result["bytes_moved"] > 0) == (strategy != "none")
        stale = [metric for metric in run.measurements() if metric.name == "staleness"]
        assert bool(stale) == (strategy in ASYNCHRONOUS)
        assert all(metric.value >= 0 for metric in stale)

    @pytest.mark.parametrize("outer", [name for name in OUTER if name != "none"])
    def test_outer_optimizers(self, outer: str) -> None:
        run = train(**DIGITS | {"sync_every": 5}, workers=3, outer=outer)
        assert run.accuracy is not None
        assert run.accuracy > 0.75

    @pytest.mark.parametrize("compression", [name for name in COMPRESSIONS if name != "none"])
    def test_compressions(self, compression: str) -> None:
        run = train(**DIGITS, workers=3, compression=compression, average="gradients")
        assert run.accuracy is not None
        assert run.accuracy > 0.75


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_asynchronous_workers_wait_for_nobody_with_unequal_shards(strategy: str) -> None:
    told: list[Any] = []
    run = train(
        **SMALL | {"epochs": 2},
        workers=3,
        strategy=strategy,
        shards="fractions",
        fractions=[0.8, 0.1, 0.1],
        listen=told.append,
        log_every=1,
    )
    assert run.status == "finished"
    assert {event.worker for event in told if isinstance(event, Metric) and event.name == "staleness"} == {0, 1, 2}


def test_gradients_that_are_not_pushed_yet_outlive_an_interruption() -> None:
    """300 samples in batches of 20 are 15 steps an epoch, which pushes every 7 do not divide."""
    fields = SMALL | {"strategy": "downpour", "strategy_options": {"n_push": 7, "n_fetch": 2}}

    def interrupt(event: Event) -> None:
        if isinstance(event, Metric) and event.epoch == 1:
            raise KeyboardInterrupt

    whole = train(**fields)
    with pytest.raises(KeyboardInterrupt):
        train(**fields, listen=interrupt)
    assert same(tenfold.resume().model.state_dict(), whole.model.state_dict())


class TestWhatCannotBeDivided:
    def test_more_workers_than_samples(self) -> None:
        with pytest.raises(ExperimentError, match="replicas"):
            train(**SMALL | {"data": {"train": numbered(2), "test": numbered(2)}, "limit": None}, workers=3)

    def test_it_is_said_before_a_run_is_recorded(self) -> None:
        with pytest.raises(ExperimentError, match="need class labels"):
            train(model="mlp", data=(torch.zeros(9, 2), torch.zeros(9)), workers=2, shards="label-skew")
        assert tenfold.list_runs() == []

    def test_more_threads_than_cores(self) -> None:
        budget = cores.budget()
        with pytest.raises(MachineError, match=f"{2 * budget} cores"):
            tenfold.train(**SMALL, workers=2, threads=budget)

    def test_an_object_that_cannot_be_sent(self) -> None:
        import threading

        lock = threading.Lock()

        def network() -> nn.Module:
            with lock:
                return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

        with pytest.raises(ExperimentError, match="pickle"):
            train(**SMALL | {"model": network, "hidden": None}, workers=2)


class Warner(nn.Module):
    """Warns and prints at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("the inputs look odd", stacklevel=2)
        print(f"{len(x)} inputs")
        return self.linear(x.flatten(1))


def test_a_warning_of_the_users_model_is_shown_once_with_its_worker_and_its_prints_are_kept() -> None:
    with pytest.warns(UserWarning, match="the inputs look odd") as caught:
        run = train(model=Warner, data="digits", limit=60, epochs=1, workers=2)
    shown = [str(item.message) for item in caught if "look odd" in str(item.message)]
    assert len(shown) == 1
    # Whichever process sees it first: the one that evaluates, or a worker.
    assert re.fullmatch(r"(worker [01]: )?UserWarning: the inputs look odd", shown[0])
    assert set(re.findall(r"^\[worker (\d)\] \d+ inputs$", run.console, re.MULTILINE)) == {"0", "1"}
