"""Tags and notes: what people write on runs, as rows of the store."""

import re
import sqlite3
from collections.abc import Iterable
from contextlib import suppress

from tenfold.errors import StoreError

TAG = re.compile(r"[\w][\w.+:/-]{0,59}")

Labels = tuple[tuple[str, ...], str]
"""The tags of a run, sorted, and its note."""


def checked_tag(name: str) -> str:
    """Return a tag; StoreError where it holds something that a filter could not name."""
    if not TAG.fullmatch(name):
        raise StoreError(f"{name!r} is not a tag; write up to 60 letters, digits and . - _ + : / without spaces")
    return name


def read_labels(connection: sqlite3.Connection) -> dict[int, Labels]:
    """Return the labels of all runs that have any; in a damaged store, those that can be read."""
    tags: dict[int, list[str]] = {}
    notes: dict[int, str] = {}
    with suppress(sqlite3.DatabaseError):
        for run, name in connection.execute("SELECT run, name FROM tags ORDER BY run, name"):
            tags.setdefault(run, []).append(str(name))
        notes.update(connection.execute("SELECT run, text FROM notes"))
    return {run: (tuple(tags.get(run, ())), str(notes.get(run, ""))) for run in {*tags, *notes}}


def write_tags(connection: sqlite3.Connection, run: int, add: Iterable[str], remove: Iterable[str]) -> None:
    """Give a run tags, and take others from it."""
    connection.executemany("INSERT OR IGNORE INTO tags (run, name) VALUES (?, ?)", [(run, name) for name in add])
    connection.executemany("DELETE FROM tags WHERE run = ? AND name = ?", [(run, name) for name in remove])


def write_note(connection: sqlite3.Connection, run: int, text: str) -> None:
    """Replace the note of a run; "" removes it."""
    connection.execute("DELETE FROM notes WHERE run = ?", (run,))
    if text:
        connection.execute("INSERT INTO notes (run, text) VALUES (?, ?)", (run, text))
