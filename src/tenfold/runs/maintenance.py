"""Maintenance of a run store: damaged runs, the trash of removed ones, and renaming."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from tenfold.common.files import make_own_folder, write_atomically
from tenfold.common.imports import Origin
from tenfold.errors import StoreError, TenfoldError
from tenfold.experiment import Experiment
from tenfold.runs import checkpoint
from tenfold.runs.events import as_row
from tenfold.runs.store import CROSSVAL, MEMBERS, SWEEP, Store
from tenfold.runs.tables import RunRecord, event_of

MOST_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged part of a store, with advice."""

    where: str
    found: str
    advice: str


def find_damage(folder: Path, *, files: bool = True) -> tuple[int, list[Damage]]:
    """Return the number of runs in a store, and its damage; with `files`, also read all weights and checkpoints."""
    try:
        store = Store(folder, create=False)
        listed = store.runs()
    except StoreError as error:
        advice = "each run's folder still has its experiment.toml and model.pt"
        return 0, [Damage("store", str(error), advice)]
    damages = list(_of_file(store))
    for row in listed:
        if problems := "; ".join(_of_record(store, row)):
            damages.append(Damage(_name(row), problems, _advice(store, row)))
        elif files:
            damages += _of_files(store, row)
    return len(listed), damages


def _of_file(store: Store) -> Iterator[Damage]:
    with closing(store.connect()) as connection:
        try:
            messages = [str(message) for (message,) in connection.execute("PRAGMA quick_check")]
        except sqlite3.DatabaseError as error:
            messages = [str(error)]
    if messages != ["ok"]:
        problem = "; ".join(messages[:MOST_MESSAGES]).replace("\n", "; ")
        advice = "runs outside the damaged places are still listed; `sqlite3 tenfold.db .recover` saves what is left"
        yield Damage("store", f"{store.file.name} is damaged: {problem}", advice)


def _of_record(store: Store, row: RunRecord) -> Iterator[str]:
    """Yield the parts of a run that cannot be read: its record, experiment or events."""
    try:
        record = store.find(row["id"])
    except StoreError as error:
        yield str(error)
        return
    yield from record["problems"]
    if record["experiment"]:
        try:
            Experiment.recorded(record["experiment"], Origin(_name(record)))
        except TenfoldError as error:
            problem = str(error).replace("\n", "; ")
            yield f"its experiment cannot be read by this version: {problem}"
    with closing(store.connect()) as connection:
        try:
            bodies = connection.execute("SELECT body FROM events WHERE run = ?", (record["id"],)).fetchall()
        except sqlite3.DatabaseError as error:
            yield f"its events cannot be read: {error}"
            return
    if unread := sum(event_of(body) is None for (body,) in bodies):
        yield f"{unread} of its {len(bodies)} events cannot be read"


def _of_files(store: Store, row: RunRecord) -> Iterator[Damage]:
    folder, name = store.path(row["id"], row["title"]), _name(row)
    advice, problem = f"`tenfold train {folder / 'experiment.toml'}` trains it again", ""
    try:
        if row["status"] == "finished":
            checkpoint.verify_tensors(folder / "model.pt")
        elif row["status"] != "running":
            _, problem = checkpoint.find_undamaged(folder / "checkpoint")
            advice = f"`tenfold resume {row['id']}` continues from the checkpoint before it" if problem else advice
    except StoreError as error:
        problem = str(error)
    if problem:
        yield Damage(name, problem, advice)


def _advice(store: Store, row: RunRecord) -> str:
    folder = store.path(row["id"], row["title"])
    saved = []
    with suppress(StoreError):
        checkpoint.verify_tensors(folder / "model.pt")
        saved.append(f"the weights in {folder / 'model.pt'} are undamaged")
    try:
        Experiment.load(folder / "experiment.toml")
        saved.append(f"`tenfold train {folder / 'experiment.toml'}` trains it again")
    except TenfoldError:
        saved.append("another version of Tenfold may read it")
    return "; ".join(saved)


def _name(record: RunRecord) -> str:
    return f"run {record['id']}"


TRASH = "trash"
RECORD = "record.json"


def trash_folder(store: Store) -> Path:
    """Return the folder to which removed runs are moved."""
    return store.folder / TRASH


def to_remove(store: Store, record: RunRecord) -> list[RunRecord]:
    """Return a run and its folds or trials; StoreError for a single fold or trial."""
    metadata, kind = record["metadata"], record["kind"]
    if kind in MEMBERS and (parent := metadata.get("crossval", metadata.get("trial", {})).get("parent")):
        raise StoreError(
            f"run {record['id']} is a {kind} of run {parent} and can only be removed with it: `tenfold remove {parent}`"
        )
    members = {CROSSVAL: store.folds, SWEEP: store.trials}.get(kind)
    return [*(members(record["id"]) if members else ()), record]


def remove_run(store: Store, record: RunRecord) -> Path:
    """Move a run's folder to the trash with a copy of its record, delete the run from the store, and return its path.

    Raise StoreError while the run is running.
    """
    run = record["id"]
    store.claim(run)
    try:
        folder, place = store.path(run, record["title"]), _free_place(store, record)
        try:
            kept = record | {"events": [as_row(event) for event in store.events(run)]}
            write_atomically(folder / RECORD, json.dumps(kept, indent=1, default=str).encode())
            make_own_folder(place.parent)
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
    """Return the numbers of folders and bytes in the trash."""
    folder = trash_folder(store)
    count = sum(1 for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else 0
    return count, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def empty_trash(store: Store) -> tuple[int, int]:
    """Empty the trash, and return the numbers of folders and bytes deleted."""
    folder, held = trash_folder(store), trash_size(store)
    try:
        if folder.is_dir():
            shutil.rmtree(folder)
    except OSError as error:
        raise StoreError(f"the trash {folder} cannot be deleted: {error.strerror or error}") from None
    return held


def _free_place(store: Store, record: RunRecord) -> Path:
    """Return a free path for the run in the trash; a name can already exist only if the store was created anew."""
    place = trash_folder(store) / store.path(record["id"], record["title"]).name
    at = 1
    while (free := place if at == 1 else place.with_name(f"{place.name}.{at}")).exists():
        at += 1
    return free


LONGEST = 200


def rename_run(store: Store, run: int, title: str) -> None:
    """Change the title of a run and the name of its folder; StoreError while it is running."""
    title = " ".join(title.split())
    if not title or len(title) > LONGEST or not title.isprintable():
        raise StoreError(f"'{title[:40]}' is not a title; it should be one line of 1 to {LONGEST} characters")
    record = store.find(run)
    if record["status"] == "running":
        raise StoreError(f"run {run} is still running; rename it when it has finished")
    before, after = store.path(run, record["title"]), store.path(run, title)
    moved = before != after and before.exists()
    try:
        if moved:
            before.rename(after)
    except OSError as error:
        raise StoreError(f"run {run} cannot be renamed: {before}: {error.strerror or error}") from None
    try:
        store.set_title(run, title)
    except StoreError:
        if moved:
            after.rename(before)
        raise
