"""Stores on file systems that lack something, and stores that can only be read."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from forked import start_forked
from fuse_folder import mounted_or_skipped
from made_store import DIGITS, new_run, refused, some_events
from unprivileged import make_read_only, make_writable, obey_permissions, run_verbs

import tenfold
from tenfold.common.files import file_system_of
from tenfold.runs import Store, tables
from tenfold.runs.tables import Abilities, find_abilities


@pytest.fixture
def without_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_abilities", lambda _: Abilities("fuse", write_ahead=False))


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_abilities", lambda _: Abilities("nfs", write_ahead=False, locks=False))


def interrupted_store(folder: Path) -> Path:
    """Make a store as a process leaves it that was killed: the log holds what is not yet in the file."""
    store, number = new_run(folder / "made")
    kept = store.keep_open()
    store.append(number, some_events())
    shutil.copytree(folder / "made", folder / "runs")
    (folder / "runs" / "tenfold.db-shm").unlink()
    kept.close()
    store.release(number)
    assert (folder / "runs" / "tenfold.db-wal").stat().st_size > 0
    return folder / "runs"


@pytest.mark.usefixtures("without_maps")
def test_without_shared_maps_a_store_has_no_log(tmp_path: Path) -> None:
    store, number = new_run(tmp_path, events=some_events())
    kept = store.keep_open()
    assert not list(tmp_path.glob("*-wal"))
    assert not list(tmp_path.glob("*-shm"))
    kept.close()
    assert list(Store(tmp_path).events(number)) == some_events()


@pytest.mark.usefixtures("without_maps")
def test_without_shared_maps_a_store_that_was_made_elsewhere_loses_its_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(tables, "find_abilities", find_abilities)
        runs = interrupted_store(tmp_path)
    store = Store(runs)
    assert list(store.events(1)) == some_events()
    store.tag(1, "moved")
    assert Store(runs).find(1)["tags"] == ("moved",)
    assert [path.name for path in runs.glob("tenfold.db*")] == ["tenfold.db"]


@pytest.mark.usefixtures("without_locks")
def test_without_locks_nothing_is_made(tmp_path: Path) -> None:
    assert "nfs" in refused(Store, tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("without_locks")
def test_without_locks_a_store_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(tables, "find_abilities", find_abilities)
        new_run(tmp_path / "whole", events=some_events())
        interrupted_store(tmp_path)
    for runs in (tmp_path / "whole", tmp_path / "runs"):
        before = sorted(path.name for path in runs.iterdir())
        store = Store(runs, create=False)
        assert list(store.events(1)) == some_events()
        assert "no file locks" in refused(store.tag, 1, "x")
        assert sorted(path.name for path in runs.iterdir()) == before


@pytest.mark.timeout(60)
def test_a_file_system_without_shared_maps_or_locks(tmp_path: Path) -> None:
    behind, place = tmp_path / "behind", tmp_path / "place"
    behind.mkdir()
    place.mkdir()
    with mounted_or_skipped(behind, place):
        assert find_abilities(place) == Abilities("fuse", write_ahead=False)
        _, number = new_run(place / "runs", events=some_events())
        Store(place / "runs").tag(number, "kept")
        assert [path.name for path in (place / "runs").glob("tenfold.db*")] == ["tenfold.db"]
    before = sorted(behind.rglob("*"))
    with mounted_or_skipped(behind, place, "no-locks"):
        store = Store(place / "runs", create=False)
        assert store.find(number)["tags"] == ("kept",)
        assert list(store.events(number)) == some_events()
        assert "no file locks" in refused(store.tag, number, "x")
        assert "no file locks" in refused(Store, place / "others")
    assert [path for path in sorted(behind.rglob("*")) if "fuse_hidden" not in path.name] == before


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    inner = str(tmp_path / "a folder").replace(" ", "\\040")
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {inner} nfs4 rw 0 0\n/dev/b {tmp_path} xfs rw 0 0\n")
    (tmp_path / "a folder").mkdir()
    assert file_system_of(tmp_path / "a folder" / "new" / "runs", mounts) == "nfs4"
    assert file_system_of(tmp_path / "other", mounts) == "xfs"
    assert file_system_of(Path("/"), mounts) == "ext4"
    assert file_system_of(Path("/"), tmp_path / "missing") == ""


def read_events(runs: str, answer: str) -> None:
    """In a process of its own: read what may only be read."""
    obey_permissions()
    store = Store(runs, create=False)
    read = [type(event).__name__ for event in store.events(1)]
    Path(answer).write_text(" ".join(read) + "\n" + refused(store.tag, 1, "x"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("left", ["nothing", "a log", "a journal"])
def test_a_store_that_may_only_be_read_is_read_whole(tmp_path: Path, left: str) -> None:
    runs = interrupted_store(tmp_path)
    if left != "a log":
        with closing(sqlite3.connect(runs / "tenfold.db")) as connection:
            mode = "DELETE" if left == "a journal" else "WAL"
            connection.execute(f"PRAGMA journal_mode = {mode}")
    if left == "a journal":
        journal = runs / "tenfold.db-journal"
        with closing(sqlite3.connect(runs / "tenfold.db")) as connection:  # killed while it writes
            connection.execute("PRAGMA cache_size = 1")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM events")
            connection.execute("UPDATE runs SET title = hex(zeroblob(20000))")
            shutil.copytree(runs, tmp_path / "killed")
        assert (tmp_path / "killed" / journal.name).stat().st_size > 0
        runs = tmp_path / "killed"
    make_read_only(runs)
    try:
        reader = start_forked(read_events, str(runs), str(tmp_path / "answer"))
        reader.join(50)
        assert reader.exitcode == 0
    finally:
        make_writable(runs)
    read, problem = (tmp_path / "answer").read_text().split("\n")
    assert read.split() == [type(event).__name__ for event in some_events()]
    assert "cannot be written to" in problem


@pytest.mark.timeout(60)
def test_commands_that_read_work_on_a_store_that_may_only_be_read(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    tenfold.train(DIGITS.replace(epochs=1, threads=1), runs=runs)
    np.save(tmp_path / "x.npy", np.zeros((3, 8, 8), dtype=np.float32))
    verbs = [["runs"], ["show", "1"], ["report", "1", "-o", "r.html"], ["predict", "1", "x.npy"], ["tag", "1", "x"]]
    make_read_only(runs)
    try:
        reader = start_forked(run_verbs, str(tmp_path), [[*verb, "--runs", str(runs)] for verb in verbs])
        reader.join(50)
        assert reader.exitcode == 0
    finally:
        make_writable(runs)
    said = [(tmp_path / f"said-{number}").read_text() for number in range(len(verbs))]
    assert [text.partition("\n")[0] for text in said] == ["0", "0", "0", "0", "2"], said
    assert "read-only" in said[-1]
