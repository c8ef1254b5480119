"""A virtual cluster learns what real processes learn, bit for bit, and its times are those of its clock."""

from functools import reduce
from itertools import zip_longest
from operator import or_
from typing import Any

import pytest
from engine_contract import EngineContract
from engine_models import LAWFUL, SMALL, same, train

from tenfold.errors import ExperimentError, MachineError
from tenfold.mixing import COMPRESSIONS, OUTER, STRATEGIES
from tenfold.runs.events import Lifecycle

pytestmark = pytest.mark.timeout(90)
BY_HAND = {"groups": [{"count": 9, "step_seconds": 0.01, "link": "1gbe"}], "stragglers": {"transient": 0.2}}
VIRTUAL = {"engine": "virtual", "cluster": BY_HAND}
SYNCHRONOUS = [name for name in STRATEGIES if not STRATEGIES[name].asynchronous]
ASYNCHRONOUS = [name for name in STRATEGIES if STRATEGIES[name].asynchronous]


def combined(*choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return experiments with three workers: the first with the first of each list of choices, and so on."""
    return [{"workers": 3} | reduce(or_, row) for row in zip_longest(*choices, fillvalue={})]


TWINS: list[dict[str, Any]] = [
    *({"workers": workers, "strategy": strategy} for workers, strategy in enumerate(SYNCHRONOUS, 1)),
    *combined(
        [{"outer": outer} for outer in OUTER if outer != "none"],
        [{"compression": compression} for compression in COMPRESSIONS if compression != "none"],
        [{"shards": shards, "skew": 0.3} for shards in ("contiguous", "label-skew")],
        [{"optimizer_state": state} for state in ("average", "reset")],
    ),
    {"workers": 2, "shards": "fractions", "fractions": [0.8, 0.2], "sync_every": 3},
    {"workers": 3, "optimizer": "muon", "optimizer_state": "average", "optimizer_options": {"partner": "adamw"}},
    {"workers": 4, "average": "gradients", "optimizer": "sgd", "clip": 1.0},
    {"workers": 2, "average": "gradients", "optimizer": "muon", "precision": "bf16"},
    {"workers": 2, "outer": "diloco", "optimizer": "muon", "model": "lenet5", "hidden": None},
    {"workers": 4, "optimizer": "ng-sgd", "data": "digits", "model": "mlp"},
    {"workers": 2, "optimizer": "ng-sgd", "average": "gradients", "accumulate": 2},
    {"workers": 3, "optimizer": "ng-sgd", "optimizer_state": "average", "clip": 1.0},
    {"workers": 3, "local_after": 4, "sync_every": 3, "patience": 1},
]


class TestVirtual(EngineContract):
    fields: dict[str, Any] = VIRTUAL | {"workers": 3, "strategy": "ring", "sync_every": 2}
    spent_on = frozenset({"compute", "wait", "communicate"})


@pytest.mark.parametrize("fields", TWINS, ids=lambda fields: "-".join(map(str, fields.values())))
def test_twins_have_the_same_weights(fields: dict[str, Any]) -> None:
    shared = LAWFUL | {"epochs": 2, "limit": 150} | fields
    real, virtual = train(**{"engine": "processes"} | shared), train(**shared | VIRTUAL)
    assert same(real.model.state_dict(), virtual.model.state_dict())
    assert real.metrics == virtual.metrics
    assert real.result["bytes_moved"] == virtual.result["bytes_moved"]
    assert [row["train_loss"] for row in real.history] == [row["train_loss"] for row in virtual.history]


@pytest.mark.parametrize("strategy", ASYNCHRONOUS)
def test_without_rounds_the_clock_decides_who_comes_first(strategy: str) -> None:
    fields = SMALL | VIRTUAL | {"workers": 4, "strategy": strategy, "epochs": 2, "batch_size": 5}
    one, again, other = train(**fields), train(**fields), train(**fields, seed=1)
    assert same(one.model.state_dict(), again.model.state_dict())
    assert not same(one.model.state_dict(), other.model.state_dict())
    assert one.seconds == again.seconds
    stale = [metric.value for metric in one.measurements() if metric.name == "staleness"]
    assert max(stale) > 0


def test_times_are_predicted_and_say_so() -> None:
    run = train(**SMALL | VIRTUAL | {"workers": 4, "epochs": 2})
    low, high = run.result["interval"]
    assert run.result["clock"] == "predicted"
    assert not run.result["calibrated"]
    assert low < run.seconds < high
    assert [row["seconds"] for row in run.history][-1] == pytest.approx(run.seconds)
    steps = 2 * 300 / 4 / 20
    assert run.seconds > 0.8 * steps * 0.01
    assert run.result["simulated_in"] > 0
    assert all(span.seconds > 0 for span in run.timeline)
    assert {span.worker for span in run.timeline} == set(range(4))


def test_the_memory_of_all_replicas_is_told_before_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [event.text for event in _stages(workers=8) if event.stage == "note"]
    assert "8 replicas need about 1 MB of memory; " in told[0]
    monkeypatch.setattr("tenfold.prediction.virtual_engine.free_memory", lambda _: 1000)
    with pytest.raises(MachineError, match="replicas"):
        _stages(workers=8)


def test_a_link_beside_a_cluster_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"machine\.cluster"):
        train(**SMALL | VIRTUAL | {"link": "wifi"})


def _stages(**fields: Any) -> list[Any]:
    found: list[Any] = []
    train(**SMALL | VIRTUAL | {"epochs": 1} | fields, listen=found.append)
    return [event for event in found if isinstance(event, Lifecycle)]
