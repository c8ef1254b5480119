"""Removing runs: out of the store, and their folders into a trash folder beside the others."""

import json
import shutil
from pathlib import Path

from tenfold.common.files import write_atomically
from tenfold.errors import StoreError
from tenfold.runs.events import as_row
from tenfold.runs.storage.store_tables import RunRecord
from tenfold.runs.store import CROSSVAL, FOLD, Store

TRASH = "trash"
RECORD = "record.json"


def trash_folder(store: Store) -> Path:
    """Return where the folders of removed runs go."""
    return store.folder / TRASH


def to_remove(store: Store, record: RunRecord) -> list[RunRecord]:
    """Return a run with the runs that go with it, the folds of a cross-validation; StoreError for a single fold."""
    if record["kind"] == FOLD and (parent := record["facts"].get("crossval", {}).get("parent")):
        raise StoreError(
            f"run {record['id']} is a fold of run {parent} and is removed with it: `tenfold remove {parent}`"
        )
    folds = store.folds(record["id"]) if record["kind"] == CROSSVAL else []
    return [*folds, record]


def remove_run(store: Store, record: RunRecord) -> Path:
    """Move a run's folder to the trash with a record of all the store knew of it, delete it from the store, and return
    its place in the trash; StoreError while it is running.
    """
    run = record["id"]
    store.claim(run)
    try:
        folder, place = store.path(run, record["title"]), _free_place(store, record)
        try:
            known = record | {"events": [as_row(event) for event in store.events(run)]}
            write_atomically(folder / RECORD, json.dumps(known, indent=1, default=str).encode())
            place.parent.mkdir(exist_ok=True)
            shutil.move(folder, place)
        except OSError as error:
            raise StoreError(f"run {run} cannot be removed: {folder}: {error.strerror or error}") from None
        try:
            store.delete(run)
        except StoreError:
            shutil.move(place, folder)
            raise
    finally:
        store.release(run)
    (place / "lock").unlink(missing_ok=True)
    return place


def trash_size(store: Store) -> tuple[int, int]:
    """Return how many folders and bytes the trash holds."""
    folder = trash_folder(store)
    count = sum(1 for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else 0
    return count, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def empty_trash(store: Store) -> tuple[int, int]:
    """Delete the trash, and return how many folders and bytes it held."""
    folder, held = trash_folder(store), trash_size(store)
    try:
        if folder.is_dir():
            shutil.rmtree(folder)
    except OSError as error:
        raise StoreError(f"the trash {folder} cannot be deleted: {error.strerror or error}") from None
    return held


def _free_place(store: Store, record: RunRecord) -> Path:
    """Return the run's place in the trash; its number is used once, so another run has it only after a new start."""
    place = trash_folder(store) / store.path(record["id"], record["title"]).name
    at = 1
    while (free := place if at == 1 else place.with_name(f"{place.name}.{at}")).exists():
        at += 1
    return free
