"""A damaged store, or a run of another version: a sentence each, no traceback, and the other runs stay usable."""

import json
import random
import sqlite3
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import assert_one_sentence
from made_store import train_interrupted_and_finished
from typer.testing import CliRunner, Result

import tenfold
from tenfold.cli import app
from tenfold.common.files import read_sealed, sealed_json
from tenfold.errors import StoreError

SMALL: dict[str, Any] = {"model": "mlp", "data": "digits", "limit": 60, "epochs": 3, "threads": 1}
COMMANDS = (
    ("runs", "--json"),
    ("show", "1"),
    ("show", "1", "--shards"),
    ("resume", "1"),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with a run that was interrupted and one that finished."""
    return train_interrupted_and_finished(tmp_path_factory.mktemp("made") / "runs", **SMALL)


@pytest.fixture
def store(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy it, to be damaged."""
    import shutil

    shutil.copytree(made, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def change(store: Path, statement: str, *values: Any) -> None:
    connection = sqlite3.connect(store / "tenfold.db")
    with connection:
        connection.execute(statement, values)
    connection.close()


def read(store: Path, column: str, run: int = 1) -> str:
    connection = sqlite3.connect(store / "tenfold.db")
    (text,) = connection.execute(f"SELECT {column} FROM runs WHERE id = ?", (run,)).fetchone()
    connection.close()
    return str(text)


def tenfold_(*arguments: str) -> Result:
    said = CliRunner().invoke(app, arguments)
    assert said.exception is None or isinstance(said.exception, SystemExit | tenfold.TenfoldError), (
        arguments,
        said.exception,
        traceback.format_exception(said.exception),
    )
    assert "Traceback" not in said.output
    return said


def test_a_run_of_another_version_is_listed_shown_and_blocks_no_other(store: Path) -> None:
    fields = read_sealed(read(store, "experiment"))
    fields["training"]["optimizer"] = "lion3"
    change(store, "UPDATE runs SET experiment = ? WHERE id = 1", sealed_json(fields))
    listed = tenfold_("runs").stdout
    assert "cannot be read by this version" in listed
    assert "lion3" in listed
    assert "finished" in listed
    shown = tenfold_("show", "1").stdout
    assert "experiment, as recorded" in shown
    assert 'optimizer = "lion3"' in shown or "optimizer = lion3" in shown
    assert tenfold_("show", "2").exit_code == 0
    (first, second) = tenfold.list_runs()
    assert (first.readable, second.readable) == (False, True)
    with pytest.raises(StoreError, match="lion3"):
        tenfold.resume(1)
    assert json.loads(tenfold_("runs", "--json").stdout)[0]["experiment"]["training"]["optimizer"] == "lion3"


@pytest.mark.parametrize("column", ["experiment", "metadata", "result", "error", "title", "status", "kind", "created"])
def test_a_damaged_column(store: Path, column: str) -> None:
    for value in ("", "{half", "[1, 2]", b"\xff\xfe\x00", 1e300):
        change(store, f"UPDATE runs SET {column} = ? WHERE id = 1", value)
        for command in COMMANDS:
            tenfold_(*command)
        assert tenfold_("show", "2").exit_code == 0
        assert len(tenfold.list_runs()) == 2


def test_values_of_the_wrong_kind_anywhere_in_a_column(store: Path) -> None:
    """Each time one entry, however deep, is replaced or removed, at times with a checksum that is right."""
    chance = random.Random(0)
    for column in ("metadata", "result", "experiment"):
        whole = read(store, column, 2)
        for number in range(13):
            read_, write = (read_sealed, sealed_json) if number % 2 else (json.loads, json.dumps)
            spoilt = read_(whole)
            spoil(spoilt, chance)
            change(store, f"UPDATE runs SET {column} = ? WHERE id = 2", write(spoilt))
            for command in (("show", "2"), ("show", "2", "--json"), ("show", "2", "--shards")):
                assert tenfold_(*command).exit_code in (0, 2)
            assert tenfold_("runs").exit_code == tenfold_("show", "1").exit_code == 0
            if number % 4 == 0 and column != "experiment":  # drawing takes long
                assert tenfold_("report", "2").exit_code in (0, 2)
        change(store, f"UPDATE runs SET {column} = ? WHERE id = 2", whole)


def test_a_model_whose_data_are_not_described_is_not_used(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 64), dtype=np.float32))
    metadata = json.loads(read(store, "metadata", 2))
    metadata["data"]["shape"] = ["x"]
    change(store, "UPDATE runs SET metadata = ? WHERE id = 2", json.dumps(metadata))
    for command in (("predict", "2", str(tmp_path / "x.npy")), ("evaluate", "2"), ("export", "2", "-f", "torch")):
        assert_one_sentence(tenfold_(*command), "run 2")


def spoil(value: Any, chance: random.Random) -> None:
    while True:
        key = chance.choice(list(value) if isinstance(value, dict) else list(range(len(value))))
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.7:
            value = value[key]
            continue
        if chance.random() < 0.3:
            del value[key]
        else:
            value[key] = chance.choice([None, "x", -1, 1e300, [], {}, [None], {"x": None}, True])
        return


@pytest.mark.parametrize("name", ["manifest.json", "epoch-1-worker-0.pt"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"epoch": 1}', b"\0" * 500, b'{"epoch": -3, "workers": "many"}'])
def test_a_damaged_checkpoint(store: Path, name: str, content: bytes) -> None:
    (path,) = (store / "1-mlp-digits" / "checkpoint").glob(name)
    path.write_bytes(content)
    said = tenfold_("resume", "1")
    assert said.exit_code in (0, 1, 2)


def test_the_doctor_says_what_is_damaged(store: Path) -> None:
    assert "none damaged" in tenfold_("doctor", "--runs", str(store)).stdout
    change(store, "UPDATE runs SET result = 'x' WHERE id = 2")
    (found,) = [load for load in json.loads(tenfold_("doctor", "--json").stdout) if load["topic"] == "run 2"]
    assert (found["found"], found["status"]) == ("its result is damaged", "problem")
    assert "are undamaged" in found["advice"]
