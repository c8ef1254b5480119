"""What is damaged in a store is found, and what can be saved is said."""

import json
import sqlite3

import pytest
import torch
from made_store import DIGITS, new_run, some_events

from tenfold.common.files import sealed_json
from tenfold.errors import StoreError
from tenfold.runs import Store, checkpoint
from tenfold.runs import maintenance as removal
from tenfold.runs.maintenance import empty_trash, find_damage, remove_run, to_remove


@pytest.fixture
def store(tmp_path):
    runs, number = new_run(tmp_path, events=some_events())
    checkpoint.save_tensors({"w": torch.ones(1000)}, runs.path(number, "mlp-digits") / "model.pt")
    runs.update(number, result={"seconds": 1.0}, status="finished")
    other = runs.create(DIGITS, kind="train", metadata={"cores": 2})
    folder = runs.path(other, "mlp-digits") / "checkpoint"
    for epoch in (1, 2):
        checkpoint.save_tensors({"epoch": epoch}, folder / checkpoint.file_name(epoch, 0))
        checkpoint.commit(folder, {"epoch": epoch, "workers": 1})
    runs.update(other, result={}, status="interrupted")
    return runs


def change(store, statement, *values):
    connection = sqlite3.connect(store.file)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_a_sound_store(store):
    assert find_damage(store.folder) == (2, [])


def test_a_column_an_event_and_another_version(store):
    change(store, "UPDATE runs SET result = 'x' WHERE id = 1")
    change(store, "UPDATE events SET body = 'x' WHERE id = 1")
    fields = DIGITS.model_dump(mode="json")
    fields["training"]["optimizer"] = "lion3"
    change(store, "UPDATE runs SET experiment = ? WHERE id = 2", sealed_json(fields))
    count, (first, second) = find_damage(store.folder)
    assert count == 2
    assert (first.where, first.found) == ("run 1", "its result is damaged; 1 of its 3 events cannot be read")
    assert "model.pt are undamaged; `tenfold train" in first.advice
    assert second.where == "run 2"
    assert "cannot be read by this version" in second.found
    assert "lion3" in second.found


def test_weights_and_checkpoints(store):
    path = store.path(1, "mlp-digits") / "model.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))
    (store.path(2, "mlp-digits") / "checkpoint" / checkpoint.file_name(2, 0)).write_bytes(b"")
    assert find_damage(store.folder, files=False) == (2, [])
    _, (weights, saved) = find_damage(store.folder)
    assert "model.pt is damaged" in weights.found
    assert "trains it again" in weights.advice
    assert "continuing from epoch 1 instead" in saved.found
    assert saved.advice == "`tenfold resume 2` continues from the checkpoint before it"


def test_a_file_that_is_no_database(store):
    store.file.write_bytes(b"x" * 9000)
    for name in ("tenfold.db-wal", "tenfold.db-shm"):
        (store.folder / name).unlink(missing_ok=True)
    count, (damage,) = find_damage(store.folder)
    assert count == 0
    assert "cannot be opened: file is not a database" in damage.found
    assert "each run's folder still has its experiment.toml and model.pt" in damage.advice


def finished(folder):
    store, run = new_run(folder, events=some_events())
    store.update(run, result={"seconds": 1.0}, status="finished")
    store.tag(run, "gone")
    return store, run


def test_a_removed_run_leaves_the_store_and_its_folder_goes_to_the_trash(tmp_path):
    store, run = finished(tmp_path)
    place = remove_run(store, store.find(run))
    assert place == tmp_path / "trash" / "1-mlp-digits"
    assert sorted(path.name for path in place.iterdir()) == ["experiment.toml", "record.json"]
    kept = json.loads((place / "record.json").read_text())
    assert (kept["result"], len(kept["events"]), kept["tags"]) == ({"seconds": 1.0}, 3, ["gone"])
    assert store.runs() == list(store.events(run)) == []
    assert store.create(DIGITS, kind="train", metadata={}) == 2, "a number is not used again"
    assert store.find(2)["tags"] == ()


def test_a_running_one_is_refused(tmp_path):
    store, run = new_run(tmp_path)
    with pytest.raises(StoreError, match="running"):
        remove_run(Store(tmp_path), store.find(run))
    assert [row["status"] for row in store.runs()] == ["running"]


def test_a_cross_validation_goes_with_its_folds_and_no_fold_goes_alone(tmp_path):
    store, parent = new_run(tmp_path)
    parent = store.create(DIGITS, kind="crossval", metadata={})
    fold = store.create(
        DIGITS, kind="fold", metadata={"crossval": {"parent": parent, "fold": 0, "repeat": 0, "node": 0}}
    )
    assert [row["id"] for row in to_remove(store, store.find(parent))] == [fold, parent]
    with pytest.raises(StoreError, match=f"tenfold remove {parent}"):
        to_remove(store, store.find(fold))


def test_a_run_stays_whole_when_it_cannot_be_removed(tmp_path, monkeypatch):
    store, run = finished(tmp_path)

    def full(*_):
        raise StoreError("database is locked")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "delete", full)
        with pytest.raises(StoreError, match="locked"):
            remove_run(store, store.find(run))
    assert (tmp_path / "1-mlp-digits" / "experiment.toml").exists()
    assert store.find(run)["status"] == "finished"
    with monkeypatch.context() as patched:
        patched.setattr(removal.shutil, "move", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
        with pytest.raises(StoreError, match="Read-only"):
            remove_run(store, store.find(run))
    remove_run(store, store.find(run))


def test_the_trash_is_emptied_only_when_asked(tmp_path):
    store, run = finished(tmp_path)
    assert empty_trash(store) == (0, 0)
    remove_run(store, store.find(run))
    count, freed = empty_trash(store)
    assert count == 1
    assert freed > 100
    assert not (tmp_path / "trash").exists()
