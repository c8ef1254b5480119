"""The tables of a store: newer versions are read; tags and notes."""

import shutil
import sqlite3
from contextlib import closing

import pytest
from made_store import DIGITS, new_run, refused, some_events

from tenfold.errors import StoreError
from tenfold.runs import Run, Store
from tenfold.runs import tables as store_tables


def version(path):
    with sqlite3.connect(path) as connection:
        return connection.execute("PRAGMA user_version").fetchone()[0]


def test_a_new_store_has_a_version(tmp_path):
    Store(tmp_path)
    assert version(tmp_path / "tenfold.db") == store_tables.VERSION


def test_a_newer_store_is_read_but_not_written(tmp_path):
    runs, number = new_run(tmp_path, events=some_events())
    runs.update(number, result={"seconds": 1.0}, status="interrupted")
    with sqlite3.connect(tmp_path / "tenfold.db") as connection:
        connection.execute("ALTER TABLE runs ADD COLUMN later TEXT")
        connection.execute(f"PRAGMA user_version = {store_tables.VERSION + 6}")
    newer = Store(tmp_path, create=False)
    assert newer.find("last")["result"] == {"seconds": 1.0}
    assert list(newer.events(number)) == some_events()
    assert version(tmp_path / "tenfold.db") == store_tables.VERSION + 6
    for write in (
        lambda: newer.create(DIGITS, kind="train", metadata={}),
        lambda: newer.claim_and_restart(number, epoch=0),
    ):
        with pytest.raises(StoreError, match="version"):
            write()


def test_what_a_newer_store_no_longer_has_is_explained(tmp_path):
    runs, _ = new_run(tmp_path)
    with sqlite3.connect(tmp_path / "tenfold.db") as connection:
        connection.execute("ALTER TABLE runs RENAME COLUMN metadata TO circumstances")
        connection.execute(f"PRAGMA user_version = {store_tables.VERSION + 1}")
    newer = Store(tmp_path, create=False)
    assert [row["title"] for row in newer.runs()] == ["mlp-digits"], "a list does not need it"
    with pytest.raises(StoreError, match="version"):
        newer.find("last")
    del runs


def test_a_damaged_page_hides_only_the_runs_on_it(tmp_path):
    runs, _ = new_run(tmp_path)
    for _ in range(60):
        runs.create(DIGITS.replace(name="x" * 500), kind="train", metadata={"filler": "y" * 3000})
        runs._claims.clear()
    del runs
    with sqlite3.connect(tmp_path / "tenfold.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = connection.execute("PRAGMA page_size").fetchone()[0]
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'runs'").fetchone()
    shutil.rmtree(tmp_path / "1-mlp-digits")
    file = tmp_path / "tenfold.db"
    content = bytearray(file.read_bytes())
    leaves = [
        at
        for at in range(0, len(content), page)
        if content[at] == 13 and at // page + 1 != root and b"xxxx" in content[at : at + page]
    ]
    middle = leaves[len(leaves) // 2]
    content[middle : middle + page] = b"\xff" * page
    file.write_bytes(bytes(content))
    numbers = [row["id"] for row in Store(tmp_path, create=False).runs()]
    assert 20 < len(numbers) < 61
    assert numbers == sorted(set(numbers))
    assert {1, 61} <= set(numbers)


def test_tags_and_a_note_are_kept_with_the_run(tmp_path):
    store, number = new_run(tmp_path)
    run = Run(store, store.find(number))
    run.tag("paper", "baseline", "paper")
    run.set_note("with the fan on")
    run.untag("baseline", "never had")
    assert run.tags == ("paper",)
    again = Run(Store(tmp_path), Store(tmp_path).runs()[0])
    assert (again.tags, again.note) == (("paper",), "with the fan on")
    assert (again.summary()["tags"], again.summary()["note"]) == (["paper"], "with the fan on")
    run.set_note("")
    assert Store(tmp_path).find(number)["note"] == ""


@pytest.mark.parametrize("name", ["", "two words", "a,b", "a=b", "-x", "x" * 61])
def test_a_tag_that_no_filter_could_name_is_refused(tmp_path, name):
    store, number = new_run(tmp_path)
    with pytest.raises(StoreError, match="letters"):
        store.tag(number, name)


def test_a_run_whose_number_is_a_path_is_refused(tmp_path):
    """Somebody else's file may have tables of its own; the folder of a run is named after its number."""
    store, _ = new_run(tmp_path / "runs")
    (tmp_path / "mine-x").mkdir()
    with closing(sqlite3.connect(store.file)) as connection, connection:
        connection.execute("PRAGMA legacy_alter_table = ON")
        connection.execute("ALTER TABLE runs RENAME TO before")
        columns = "kind, status, created, ended, experiment, metadata, result, error, host, pid, pid_started"
        connection.execute(
            f"CREATE TABLE runs AS SELECT '{tmp_path / 'mine'}' AS id, 'x' AS title, {columns} FROM before"
        )
    for use in (
        store.runs,
        lambda: store.find("last"),
        lambda: store.find("x"),
        lambda: store.newest(3, members=False),
    ):
        assert "have no numbers" in refused(use)
