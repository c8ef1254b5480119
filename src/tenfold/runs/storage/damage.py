"""What is damaged in a run store, and what of it can be saved."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tenfold.errors import StoreError, TenfoldError
from tenfold.experiment import Experiment
from tenfold.runs import checkpoint, tensor_file
from tenfold.runs.storage import store_tables
from tenfold.runs.storage.store_tables import RunRecord
from tenfold.runs.store import Store

MOST_MESSAGES = 3


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that cannot be read, and what to do about it."""

    where: str
    found: str
    advice: str


def find_damage(folder: Path, *, files: bool = True) -> tuple[int, list[Damage]]:
    """Return how many runs a store has, and what is damaged; `files` reads all weights and checkpoints, too."""
    try:
        store = Store(folder, create=False)
        listed = store.runs()
    except StoreError as error:
        copies = ", ".join(sorted(path.name for path in folder.glob("tenfold.db.version-*")))
        kept = f"an older copy is there: {copies}; " if copies else ""
        advice = f"{kept}each run's folder still has its experiment.toml and model.pt"
        return 0, [Damage("store", str(error), advice)]
    found = list(_of_file(store))
    for row in listed:
        try:
            record = store.find(row["id"])
        except StoreError as error:
            found.append(Damage(_name(row), str(error), _advice(store, row)))
            continue
        found += _of_record(store, record)
        if files:
            found += _of_files(store, record)
    return len(listed), found


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


def _of_record(store: Store, record: RunRecord) -> Iterator[Damage]:
    problems = list(record["problems"])
    if record["experiment"]:
        try:
            Experiment(**record["experiment"])
        except TenfoldError as error:
            problem = str(error).replace("\n", "; ")
            problems.append(f"its experiment cannot be read by this version: {problem}")
    with closing(store.connect()) as connection:
        try:
            bodies = connection.execute("SELECT body FROM events WHERE run = ?", (record["id"],)).fetchall()
            unread = sum(store_tables.event_of(body) is None for (body,) in bodies)
        except sqlite3.DatabaseError as error:
            bodies, unread = [], 0
            problems.append(f"its events cannot be read: {error}")
    if unread:
        problems.append(f"{unread} of its {len(bodies)} events cannot be read")
    if problems:
        yield Damage(_name(record), "; ".join(problems), _advice(store, record))


def _of_files(store: Store, record: RunRecord) -> Iterator[Damage]:
    folder, name = store.path(record["id"], record["title"]), _name(record)
    again = f"`tenfold train {folder / 'experiment.toml'}` trains it again"
    if record["status"] == "finished":
        try:
            tensor_file.verify(folder / "model.pt")
        except StoreError as error:
            yield Damage(name, str(error), again)
    elif record["status"] != "running":
        try:
            _, problem = checkpoint.find_undamaged(folder / "checkpoint")
        except StoreError as error:
            yield Damage(name, str(error), again)
        else:
            if problem:
                yield Damage(name, problem, f"`tenfold resume {record['id']}` continues from the checkpoint before it")


def _advice(store: Store, record: RunRecord) -> str:
    folder = store.path(record["id"], record["title"])
    saved = []
    try:
        tensor_file.verify(folder / "model.pt")
        saved.append(f"the weights in {folder / 'model.pt'} are undamaged")
    except StoreError:
        pass
    try:
        Experiment.load(folder / "experiment.toml")
        saved.append(f"`tenfold train {folder / 'experiment.toml'}` trains it again")
    except TenfoldError:
        saved.append("another version of Tenfold may read it")
    return "; ".join(saved)


def _name(record: RunRecord) -> str:
    return f"run {record['id']}"
