"""Looking up a run by what a user calls it: a number, "last", a title, or the name of a folder."""

import re
import sqlite3
from pathlib import Path
from typing import Any

from tenfold.common.files import short_path
from tenfold.errors import StoreError
from tenfold.runs.storage import store_tables

MOST_NAMED = 8
"""An error names at most this many of the runs that share a title."""


def find_row(connection: sqlite3.Connection, folder: Path, text: str) -> tuple[Any, ...]:
    """Return the row of the run that `text` refers to; raise StoreError if there is none, or more than one."""
    found = _matching_ids(connection, folder, text)
    if len(found) == 1:
        query = f"SELECT {store_tables.COLUMNS} FROM runs WHERE id = ?"
        row: tuple[Any, ...] = connection.execute(query, found).fetchone()
        return row
    if found:
        numbers = ", ".join(map(str, found[-MOST_NAMED:]))
        raise StoreError(f"'{text}' names {len(found)} runs; choose one by its number: {numbers}")
    raise _no_run(connection, folder, text)


def _no_run(connection: sqlite3.Connection, folder: Path, text: str) -> StoreError:
    first, last, count = connection.execute("SELECT MIN(id), MAX(id), COUNT(*) FROM runs").fetchone()
    if last is None:
        return StoreError(f"there are no runs in {short_path(folder)} yet; `tenfold train` records one")
    without_gaps = count == last - first + 1
    say = f"use a number from {first} to {last}, or last" if without_gaps else "`tenfold runs` lists all"
    return StoreError(f"there is no run '{text}' in {short_path(folder)}; {say}")


def _matching_ids(connection: sqlite3.Connection, folder: Path, text: str) -> list[int]:
    """Return the numbers of all runs that `text` may refer to, oldest first."""

    def ids(condition: str, *values: object) -> list[int]:
        return [run for (run,) in connection.execute(f"SELECT id FROM runs WHERE {condition}", values)]

    if text == "last":
        return ids("kind != 'fold' ORDER BY id DESC LIMIT 1") or ids("1 ORDER BY id DESC LIMIT 1")
    if text.isascii() and text.isdigit() and (found := ids("id = ?", min(int(text), 2**63 - 1))):
        return found
    named = ids("title = ? ORDER BY id", text)
    number = re.match(r"\d{1,18}(?=-)", text, re.ASCII)
    if number is not None:
        for run, title in connection.execute("SELECT id, title FROM runs WHERE id = ?", (int(number[0]),)):
            if store_tables.path_of(folder, run, str(title)).name == text and run not in named:
                named.append(run)
    return sorted(named)
