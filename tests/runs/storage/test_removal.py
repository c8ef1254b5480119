import json

import pytest
from made_store import DIGITS, new_run, some_events

from tenfold.errors import StoreError
from tenfold.runs import Store
from tenfold.runs.storage import damage as removal
from tenfold.runs.storage.damage import empty_trash, remove_run, to_remove


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
    with pytest.raises(
        StoreError, match=f"is a fold of run {parent} and is removed with it: `tenfold remove {parent}`"
    ):
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
