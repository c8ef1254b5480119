"""A record whose values have wrong types is treated as a damaged one, whatever its checksum says."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from looped import looped
from made_store import new_run

import tenfold
from tenfold.common.files import sealed_json
from tenfold.errors import StoreError
from tenfold.prediction.whatif import replay_changed
from tenfold.reports.run_tables import show_tables
from tenfold.runs.record_fields import wrong_field

RESULT: dict[str, Any] = {"seconds": 1.5, "epochs": 2, "metrics": {"loss": float("nan"), "mine": None}, "anything": "x"}
METADATA: dict[str, Any] = {"lr": {"base": 0.1, "scale": 1}, "cores": {"policy": "none", "workers": [[0], [1]]}}


def test_what_is_recorded_passes() -> None:
    assert wrong_field("result", {}) == wrong_field("metadata", {}) == ""
    assert wrong_field("result", RESULT) == wrong_field("metadata", METADATA) == ""


@looped(
    ("column", "field", "value"),
    [
        ("result", "metrics", [1.0]),
        ("result", "metrics", {"loss": "low"}),
        ("result", "epochs", True),
        ("result", "times", {"compute": {}}),
        ("result", "interval", [1.0]),
        ("result", "speedup", float("nan")),
        ("result", "spread", {"test": {"loss": {}}}),
        ("result", "folds", [{}]),
        ("metadata", "lr", {"base": 0.1}),
        ("metadata", "data", {"train": 10}),
        ("metadata", "shards", {"kind": "iid", "samples": 4, "classes": None, "once": True}),
        ("metadata", "cores", {"workers": [3]}),
    ],
)
def test_a_value_of_another_type_is_named(column: str, field: str, value: Any) -> None:
    assert wrong_field(column, {field: value}).startswith(field)


@pytest.mark.parametrize(("column", "values"), [("result", {"metrics": "high"}), ("metadata", {"lr": "fast"})])
def test_a_rewritten_record_is_shown_as_damaged(tmp_path: Path, column: str, values: dict[str, Any]) -> None:
    store, number = new_run(tmp_path)
    with sqlite3.connect(store.file) as connection:
        connection.execute(f"UPDATE runs SET {column} = ?", (sealed_json(values),))
    run = tenfold.open_run(number, runs=tmp_path)
    assert "damaged" in run.problem
    assert run.metrics == {}
    assert "damaged" in run.summary()["problem"]
    assert show_tables(run).renderables
    assert repr(run)


def test_a_run_without_metadata_is_not_replayed(tmp_path: Path) -> None:
    store, number = new_run(tmp_path)
    store.update(number, result={"seconds": 1.0, "steps": 3, "epochs": 1}, status="finished")
    with sqlite3.connect(store.file) as connection:
        connection.execute("UPDATE runs SET metadata = ''")
    with pytest.raises(StoreError, match="damaged"):
        replay_changed(tenfold.open_run(number, runs=tmp_path))
