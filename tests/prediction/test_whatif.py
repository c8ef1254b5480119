"""A recorded run, replayed with one thing changed."""

from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run

import tenfold
from tenfold.errors import ExperimentError

pytestmark = pytest.mark.timeout(90)
FIELDS: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [8], "epochs": 2, "batch_size": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("whatif") / "runs"


@pytest.fixture(scope="module")
def several(runs: Any) -> tenfold.Run:
    return tenfold.train(**FIELDS, workers=2, oversubscribe=True, runs=runs)


def test_what_costs_less_takes_less(several: tenfold.Run) -> None:
    replayed = tenfold.whatif(several, links=["infiniband", "lte"])
    seconds = {change.what: change.seconds for change in replayed.changes}
    assert seconds["free communication"] <= replayed.seconds
    assert seconds["one worker per node, infiniband"] < seconds["one worker per node, lte"]
    assert seconds["twice the workers on twice the cores"] < replayed.seconds
    assert all(change.basis for change in replayed.changes)


def test_another_precision_is_measured_not_guessed(several: tenfold.Run, runs: Any) -> None:
    other = tenfold.train(**FIELDS, workers=2, oversubscribe=True, precision="bf16", runs=runs)
    changes = {change.what: change for change in tenfold.whatif(several).changes}
    assert changes["precision bf16"].seconds == other.seconds


def test_one_worker_has_nothing_to_communicate(runs: Any) -> None:
    changes = tenfold.whatif(tenfold.train(**FIELDS, runs=runs)).changes
    assert [change.what for change in changes] == ["twice the workers on twice the cores"]


def test_weights_in_float64_take_longer_over_a_link(several: tenfold.Run, tmp_path: Path) -> None:
    assert several.metadata["weight_bytes"] >= 4 * several.metadata["parameters"]
    single, double = (
        next(change.seconds for change in tenfold.whatif(run, links=["lte"]).changes if "lte" in change.what)
        for run in (
            make_run(tmp_path, steps_per_epoch=50, workers=2, precision=precision) for precision in ("fp32", "fp64")
        )
    )
    assert double > 1.5 * single


@pytest.mark.parametrize(
    "fields", [{"divide": "layers"}, {"divide": "neurons"}, {"optimizer": "sandblaster-lbfgs", "batch_size": None}]
)
def test_workers_that_divide_something_else_than_data_are_not_replayed(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="not the data"):
        tenfold.whatif(make_run(tmp_path, steps_per_epoch=50, workers=2, **fields))


@pytest.mark.parametrize("fields", [{"strategy": "easgd"}, {"engine": "virtual"}, {"limit": 32, "epochs": 1}])
def test_what_cannot_be_replayed_is_a_sentence(runs: Any, fields: dict[str, Any]) -> None:
    run = tenfold.train(**FIELDS | fields, workers=2, oversubscribe=True, runs=runs)
    with pytest.raises(ExperimentError, match=f"run {run.id}"):
        tenfold.whatif(run)
