import os
import pickle
import sqlite3
import time

import pytest
from made_store import DIGITS, new_run, refused, some_events

from tenfold.experiment import Experiment
from tenfold.runs import Store, store


def test_a_new_run_is_running_and_has_a_folder_with_its_experiment(tmp_path):
    runs, number = new_run(tmp_path)
    record = runs.find(number)
    assert (record["id"], record["title"], record["kind"], record["status"]) == (1, "mlp-digits", "train", "running")
    assert record["metadata"] == {"cores": 2}
    assert record["result"] == {}
    assert record["ended"] is None
    assert abs(record["created"] - time.time()) < 60
    assert Experiment(**record["experiment"]) == DIGITS
    assert Experiment.load(runs.path(number, record["title"]) / "experiment.toml") == DIGITS


@pytest.mark.parametrize(
    ("experiment", "title"),
    [
        (Experiment(name="My run"), "My run"),
        (Experiment(), "lenet5-mnist"),
        (Experiment(model="package.module:Net", data="digits"), "Net-digits"),
        (Experiment(model=lambda: None, data=([0], [1])), "lambda-tuple"),
    ],
)
def test_a_run_is_called_by_its_name_or_by_its_model_and_data(tmp_path, experiment, title):
    runs, number = new_run(tmp_path, experiment)
    assert runs.find(number)["title"] == title


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "/", "..", "\0", "x" * 500, "ünï çödé", "a\nb", "CON: *?"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    runs, number = new_run(tmp_path / "runs", Experiment(name=name))
    folder = runs.path(number, runs.find(number)["title"])
    assert folder.parent == tmp_path / "runs"
    assert (folder / "experiment.toml").exists()
    assert runs.find(number)["title"] == name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_events_come_back_in_order_and_by_type(tmp_path):
    runs, number = new_run(tmp_path, events=some_events(0) + some_events(1))
    assert list(runs.events(number)) == some_events(0) + some_events(1)
    assert list(runs.events(number, "metric")) == [some_events(0)[1], some_events(1)[1]]
    assert list(runs.events(number + 1)) == []


def test_events_are_recorded_all_or_none(tmp_path):
    runs, number = new_run(tmp_path)

    def spoilt():
        yield from some_events()
        raise RuntimeError("halfway")

    with pytest.raises(RuntimeError):
        runs.append(number, spoilt())
    assert list(runs.events(number)) == []


def test_a_run_is_found_by_number_title_folder_or_as_the_last(tmp_path):
    runs, first = new_run(tmp_path, Experiment(name="one"))
    second = runs.create(Experiment(name="two"), kind="train", metadata={})
    for reference in (first, "1", "one", "1-one"):
        assert runs.find(reference)["id"] == first
    for reference in (second, "last", "two", "2-two"):
        assert runs.find(reference)["id"] == second


def test_a_fold_is_never_meant_by_last(tmp_path):
    runs, whole = new_run(tmp_path)
    fold = runs.create(DIGITS, kind=store.FOLD, metadata={})
    assert runs.find("last")["id"] == whole
    assert runs.find(fold)["kind"] == "fold"


def test_the_newest_runs_are_the_end_of_the_list(tmp_path):
    runs = store.Store(tmp_path)
    for kind in ("train", store.FOLD, "train", store.FOLD):
        runs.create(DIGITS, kind=kind, metadata={})
    listed = runs.runs()
    assert runs.newest(3, members=True) == (listed[-3:], 4)
    assert runs.newest(1, members=False) == ([listed[2]], 2)


def test_a_number_is_no_title(tmp_path):
    runs, _ = new_run(tmp_path, Experiment(name="2"))
    second = runs.create(DIGITS, kind="train", metadata={})
    assert runs.find("2")["id"] == second


def test_what_cannot_be_found_is_explained(tmp_path):
    assert f"there are no runs in {tmp_path / 'none'}" in refused(Store, tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    empty = Store(tmp_path / "empty")
    assert "there are no runs in" in refused(empty.find, "last")
    runs, _ = new_run(tmp_path / "runs")
    runs.create(DIGITS, kind="train", metadata={})
    assert "there is no run '9'" in refused(runs.find, 9)
    assert "use a number from 1 to 2, or last" in refused(runs.find, "nine")
    assert refused(runs.find, "mlp-digits") == "2 runs are called 'mlp-digits'; choose one by its number: 1, 2"
    assert "there is no run '9'" in refused(runs.claim_and_restart, 9, epoch=0)
    runs.create(DIGITS, kind="train", metadata={})
    with sqlite3.connect(runs.folder / "tenfold.db") as connection:
        connection.execute("DELETE FROM runs WHERE id = 2")
    assert "there is no run '2'" in (said := refused(runs.find, 2))
    assert said.endswith("`tenfold runs` lists all")


def test_a_file_in_the_way_of_the_folder_is_explained(tmp_path):
    (tmp_path / "runs").write_text("")
    assert "cannot be opened because it is a file" in refused(Store, tmp_path / "runs")
    assert "cannot be opened: Not a directory" in refused(Store, tmp_path / "runs" / "deeper")
    assert "cannot be opened: File name too long" in refused(Store, tmp_path / ("r" * 300))


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_explained(tmp_path, content):
    (tmp_path / "tenfold.db").write_bytes(content)
    message = refused(Store, tmp_path, create=False)
    assert "tenfold.db cannot be opened" in message


def test_a_file_that_is_damaged_later_is_explained(tmp_path):
    runs, number = new_run(tmp_path, events=some_events())
    for name in ("tenfold.db-wal", "tenfold.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    size = (tmp_path / "tenfold.db").stat().st_size
    (tmp_path / "tenfold.db").write_bytes(b"\xff" * size)
    assert "cannot be read" in refused(runs.runs)
    assert "cannot be written to" in refused(runs.append, number, some_events())


@pytest.mark.parametrize("damage", ["'{half of'", "'[1]'", "'null'", "x'ff00'", "NULL"])
@pytest.mark.parametrize("column", ["experiment", "metadata", "result"])
def test_a_record_that_is_damaged_is_read_as_far_as_possible_and_blocks_no_other(tmp_path, column, damage):
    runs, damaged = new_run(tmp_path)
    sound = runs.create(DIGITS, kind="train", metadata={"cores": 2})
    with sqlite3.connect(runs.file) as connection:
        if damage == "NULL":
            connection.execute("PRAGMA ignore_check_constraints = 1")
            damage = "''"
        connection.execute(f"UPDATE runs SET {column} = {damage} WHERE id = 1")
    assert [record["id"] for record in runs.runs()] == [damaged, sound]
    record = runs.find(damaged)
    assert record["problems"] == [f"its {column} {'are' if column == 'metadata' else 'is'} damaged"]
    assert record[column] == {}
    assert record["title"] == "mlp-digits"
    assert runs.find(sound)["problems"] == []


@pytest.mark.parametrize("values", ["title = x'ff41', created = 'soon', ended = x'00', status = 7, error = x'fe'"])
def test_damaged_columns_of_a_list_are_shown_as_something(tmp_path, values):
    runs, number = new_run(tmp_path)
    with sqlite3.connect(runs.file) as connection:
        connection.execute(f"UPDATE runs SET {values}")
        connection.execute("UPDATE runs SET title = CAST(x'ff41' AS TEXT)")
    (row,) = runs.runs()
    assert (row["title"], row["created"], row["ended"], row["status"]) == ("\ufffdA", 0.0, None, "7")
    assert runs.find(number)["title"] == "\ufffdA"


@pytest.mark.parametrize(
    "body", ['{"type": "omen", "at": 1}', "", "[]", "{half", '{"type": "metric"}', "\x00", "[" * 9999]
)
def test_events_that_are_damaged_or_of_another_version_hide_no_others(tmp_path, body):
    runs, number = new_run(tmp_path, events=some_events())
    with sqlite3.connect(runs.file) as connection:
        for kind in ("metric", "lifecycle"):
            connection.execute("INSERT INTO events (run, type, epoch, body) VALUES (?, ?, 0, ?)", (number, kind, body))
    assert list(runs.events(number)) == some_events()
    runs.release(number)
    assert runs.claim_and_restart(number, epoch=5) == 1.0


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENFOLD_RUNS", raising=False)
    assert store.absolute() == tmp_path / "runs"
    runs = Store("else")
    monkeypatch.chdir("/")
    assert runs.folder == tmp_path / "else", "the current folder is asked once"
    monkeypatch.setenv("TENFOLD_RUNS", str(tmp_path / "else"))
    assert Store().folder == tmp_path / "else"


def test_restarting_keeps_the_events_of_whole_epochs_and_supersedes_the_rest(tmp_path):
    runs, number = new_run(tmp_path, events=some_events(0, at=1.0) + some_events(1, at=2.0) + some_events(2, at=3.5))
    runs.update(number, result={}, status="failed", error="oh")
    assert runs.claim_and_restart(number, epoch=1) == 3.5
    assert list(runs.events(number)) == some_events(0, at=1.0)
    record = runs.find(number)
    assert (record["status"], record["error"], record["ended"]) == ("running", "", None)
    runs.append(number, some_events(1, at=4.0))
    assert [event.at for event in runs.events(number, "span")] == [1.0, 4.0]
    with sqlite3.connect(runs.file) as connection:
        assert connection.execute("SELECT COUNT(*) FROM events").fetchone() == (12,)


def test_restarting_touches_no_other_run(tmp_path):
    runs, first = new_run(tmp_path, events=some_events())
    second = runs.create(DIGITS, kind="train", metadata={})
    runs.update(second, result={}, status="interrupted")
    runs.claim_and_restart(second, epoch=0)
    assert list(runs.events(first)) == some_events()


def test_a_run_that_is_running_is_not_restarted(tmp_path):
    runs, number = new_run(tmp_path, events=some_events())
    for item in (runs, Store(tmp_path)):
        message = refused(item.claim_and_restart, number, epoch=0)
        assert f"is still running, in process {os.getpid()} on " in message
        assert "resume with --force" in message
    assert list(runs.events(number)) == some_events()
    assert Store(tmp_path).claim_and_restart(number, epoch=0, force=True) == 1.0


def claim_as(runs, number, **columns):
    with sqlite3.connect(runs.file) as connection:
        for column, value in columns.items():
            connection.execute(f"UPDATE runs SET {column} = ? WHERE id = ?", (value, number))


@pytest.mark.parametrize("columns", [{"host": "elsewhere"}, {"pid": 1}, {"pid_started": 1.0}, {"created": 4e9}])
def test_names_numbers_and_times_say_nothing_about_life(tmp_path, columns):
    runs, number = new_run(tmp_path)
    claim_as(runs, number, **columns)
    assert runs.find(number)["status"] == "running"
    runs.release(number)
    assert runs.find(number)["status"] == "interrupted"
    runs.claim_and_restart(number, epoch=0)
    assert runs.find(number)["status"] == "running"


def test_a_run_ends_with_the_store_that_claimed_it(tmp_path):
    number = new_run(tmp_path)[1]
    assert Store(tmp_path).find(number)["status"] == "interrupted"


def test_a_copy_of_a_store_in_another_process_claims_nothing(tmp_path):
    runs, number = new_run(tmp_path)
    copy = pickle.loads(pickle.dumps(runs))
    copy.release(number)
    assert runs.find(number)["status"] == "running"


def test_folds_are_found_by_their_cross_validation(tmp_path):
    runs, parent = new_run(tmp_path)
    metadata = {"crossval": {"parent": parent, "fold": 1}}
    folds = [runs.create(DIGITS, kind=store.FOLD, metadata=metadata) for _ in range(2)]
    runs.create(DIGITS, kind=store.FOLD, metadata={"crossval": {"parent": 99}})
    with sqlite3.connect(runs.file) as connection:
        connection.execute("UPDATE runs SET metadata = 'x' WHERE id = ?", (folds[1],))
    assert [record["id"] for record in runs.folds(parent)] == folds[:1]
    assert [record["id"] for record in runs.records("train")] == [parent]
