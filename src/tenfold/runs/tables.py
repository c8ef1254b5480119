"""The SQLite file of the run store: how it is opened, its tables, and their rows as dictionaries.

The way to open it depends on its file system and this user's permissions. SQLite's write-ahead log needs file locks and
shared memory mapped from a file, and works on one machine only. On a file system that several machines share, or
without such memory, a store has a rollback journal instead. Without locks nothing is written. A store that cannot be
written to can still be read, directly or, if a log or a journal was left beside it, from a copy. Damage in one column
affects neither the rest of its row nor other rows.
"""

import fcntl
import json
import math
import mmap
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from tenfold.common.files import file_system_of, nearest_folder, read_sealed, short_path
from tenfold.errors import StoreError
from tenfold.runs.claim import is_claimed
from tenfold.runs.events import Event, from_row

LOCK_SECONDS = 30.0
"""How long to wait for another process that writes to the store."""
SHARED = {"9p", "afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"}
SHARED |= {"fuse.ceph", "fuse.glusterfs", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "virtiofs"}
"""File systems that other machines may write to at the same time."""
Access = Literal["write", "read", "immutable", "copy"]
COPY_ATTEMPTS = 3


@dataclass(frozen=True)
class Abilities:
    """The abilities of a store's file system."""

    name: str
    """Its type, such as ext4; "" where the system does not say."""
    write_ahead: bool = True
    """Whether a write-ahead log works."""
    locks: bool = True


def find_abilities(folder: Path) -> Abilities:
    """Return the abilities of a folder's file system, by its type and by trying."""
    name = file_system_of(folder)
    maps, locks = _try_out(nearest_folder(folder))
    return Abilities(name, write_ahead=maps and locks and name not in SHARED, locks=locks)


def _try_out(folder: Path) -> tuple[bool, bool]:
    """Return whether a file of this folder can be mapped, and locked; True where no file can be made to try it."""
    maps = locks = True
    with suppress(OSError), tempfile.TemporaryFile(dir=folder, prefix=".tenfold-") as file:
        file.truncate(mmap.PAGESIZE)
        try:
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
        except OSError:
            maps = False
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            locks = False
    return maps, locks


class StoreFile:
    """The file of a store, and its mode of access."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.abilities = find_abilities(path.parent)
        self.access: Access = "write"
        self.problem = ""
        """Why it cannot be written to."""

    def choose_access(self) -> None:
        """Find out how the file can be opened; it exists."""
        folder = self.path.parent
        if not os.access(self.path, os.W_OK) or not os.access(folder, os.W_OK):
            self.problem = "it is read-only for you"
            self._choose_reading()
        elif not self.abilities.locks:
            self.problem = describe_no_locks(self.abilities.name)
            self._choose_reading()
        elif not self.abilities.write_ahead:
            self._leave_write_ahead()

    def _choose_reading(self) -> None:
        """Choose the first way to read the file that works; if none does, its error is raised when it is read."""
        ways: tuple[Access, ...] = ("read", "immutable", "copy") if self.abilities.locks else ("immutable", "copy")
        for way in ways:
            self.access = way
            if way == "immutable" and self._has_log():  # it would be read without the last writes
                continue
            with suppress(sqlite3.OperationalError), closing(self.connect(1.0)) as connection:
                connection.execute("SELECT 1 FROM sqlite_master").fetchone()
                return

    def _leave_write_ahead(self) -> None:
        """Give a store that was made elsewhere a rollback journal; with all of the file locked, no memory is shared."""
        with closing(self.connect(LOCK_SECONDS)) as connection:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            if connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
                connection.execute("PRAGMA journal_mode = DELETE")

    def connect(self, lock_seconds: float = LOCK_SECONDS, *, check_same_thread: bool = True) -> sqlite3.Connection:
        if self.access == "immutable" and self._has_log():  # somebody writes to it again
            self._choose_reading()
        if self.access == "copy":
            return self._open_copy(check_same_thread)
        if self.access == "write":
            return sqlite3.connect(self.path, timeout=lock_seconds, check_same_thread=check_same_thread)
        how = "mode=ro" if self.access == "read" else "immutable=1"
        address = f"file:{quote(str(self.path))}?{how}"
        return sqlite3.connect(address, timeout=lock_seconds, check_same_thread=check_same_thread, uri=True)

    def _open_copy(self, check_same_thread: bool) -> sqlite3.Connection:
        """Return a copy in memory that includes the log or journal beside the file."""
        for attempt in range(COPY_ATTEMPTS):
            with tempfile.TemporaryDirectory(prefix="tenfold-") as folder:
                copy = Path(folder) / self.path.name
                for suffix in ("", "-wal", "-journal"):
                    with suppress(FileNotFoundError):
                        shutil.copyfile(self._beside(suffix), f"{copy}{suffix}")
                try:
                    with closing(sqlite3.connect(copy)) as merged:
                        merged.execute("PRAGMA journal_mode = DELETE").fetchone()
                        connection = sqlite3.connect(":memory:", check_same_thread=check_same_thread)
                        merged.backup(connection)
                        return connection
                except sqlite3.DatabaseError:  # it was written to while it was copied
                    if attempt == COPY_ATTEMPTS - 1:
                        raise
        raise AssertionError

    def _has_log(self) -> bool:
        return any(self._beside(suffix).exists() for suffix in ("-wal", "-journal"))

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}{suffix}")


def describe_no_locks(file_system: str) -> str:
    """Return why nothing is written where there are no locks."""
    kind = f" ({file_system})" if file_system else ""
    return f"its file system{kind} has no file locks; choose a folder on another one with --runs (runs=)"


PARENT = "CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.crossval.parent') END"
"""The cross-validation that a fold belongs to."""
SWEEP_OF = "CASE WHEN json_valid(metadata) THEN json_extract(metadata, '$.trial.parent') END"
"""The sweep that a trial belongs to."""
TABLES = f"""
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL,
    created REAL NOT NULL, ended REAL, experiment TEXT NOT NULL, metadata TEXT NOT NULL, result TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '', host TEXT NOT NULL, pid INTEGER NOT NULL, pid_started REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, type TEXT NOT NULL,
    epoch INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_run ON events(run, type, superseded);
CREATE INDEX IF NOT EXISTS runs_by_title ON runs(title);
CREATE INDEX IF NOT EXISTS runs_by_kind ON runs(kind);
CREATE INDEX IF NOT EXISTS runs_by_parent ON runs({PARENT}) WHERE kind = 'fold';
CREATE TABLE IF NOT EXISTS tags (
    run INTEGER NOT NULL REFERENCES runs(id), name TEXT NOT NULL, PRIMARY KEY (run, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (run INTEGER PRIMARY KEY REFERENCES runs(id), text TEXT NOT NULL);
"""
VERSION = 4
"""The version of these tables, by which a store of a newer one is recognized."""
RunRecord = dict[str, Any]
"""A run: id, title, kind, status, created, ended, tags, note; where it was read whole, experiment, metadata, result,
error and problems as well."""
LISTED = "id, title, kind, status, created, ended"
COLUMNS = f"{LISTED}, error, experiment, metadata, result, host, pid"
SEALED = ("experiment", "metadata", "result")
"""Columns of JSON with a checksum of their own."""
MOST_TAGS = 50
TAG = re.compile(r"[\w][\w.+:/-]{0,59}")

Labels = tuple[tuple[str, ...], str]
"""The tags of a run, sorted, and its note."""


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a store's tables."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def prepare_tables(connection: sqlite3.Connection, *, write_ahead: bool = True) -> None:
    """Make the tables of a new store.

    A store of another version is left as it is; of a newer one, the columns that this version knows can be used.
    """
    if write_ahead:
        _write_ahead(connection)
    if version_of(connection):
        return
    connection.execute("BEGIN IMMEDIATE")  # one process does it, others wait here
    if not version_of(connection):
        _execute(connection, TABLES)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Execute statements within the transaction that is open, which `executescript` would end."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead mode; when several processes make a store at once, SQLite does not wait here by itself."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def make_record(folder: Path, row: tuple[Any, ...]) -> RunRecord:
    """Return a run as a dictionary; one whose process is gone without having said how it ended is interrupted."""
    record: RunRecord = dict(zip(COLUMNS.split(", "), row, strict=False))
    if type(record["id"]) is not int:  # its folder is named after it
        raise StoreError(f"{folder / 'tenfold.db'} is not a run store of Tenfold: its runs have no numbers")
    for name in ("title", "kind", "status", "error", "host"):
        if name in record:
            record[name] = str(record[name])
    record["created"] = date(record["created"]) or 0.0
    record["ended"] = date(record["ended"])
    if "result" in record:
        record["problems"] = []
        for name in SEALED:
            content = read_sealed(record[name])
            if content is None:
                record["problems"].append(f"its {name} {'are' if name == 'metadata' else 'is'} damaged")
            record[name] = content or {}
    if record["status"] == "running" and not is_claimed(path_of(folder, record["id"], record["title"])):
        record["status"] = "interrupted"
    return record


def path_of(folder: Path, run: int, title: str) -> Path:
    """Return the folder of a run's artifacts."""
    return folder / f"{run}-{re.sub(r'[^A-Za-z0-9._-]+', '_', title)[:60]}"


def decoded(text: Any) -> dict[str, Any]:
    """Return the values of an event; none where it is damaged."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """Return the value if it is a number, else None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def date(value: Any) -> float | None:
    """Return seconds since 1970 that a calendar can show; None for any other value."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds < 1e11 else None


def event_of(body: Any) -> Event | None:
    """Return the event that a row holds; None where it is damaged or only a newer version knows it."""
    with suppress(ValueError):
        return from_row(decoded(body))
    return None


def time_of(body: Any) -> float:
    """Return when an event happened; 0 where that cannot be read."""
    return number(decoded(body).get("at")) or 0.0


def as_text(content: bytes) -> str:
    """Return text of the store, with a mark in the place of bytes that are not UTF-8."""
    return content.decode(errors="replace")


def salvaged(connection: sqlite3.Connection, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the rows of a query by their ids; around a damaged place in the file, those from both of its sides."""
    ends: list[list[tuple[Any, ...]]] = []
    for order in ("ASC", "DESC"):
        rows: list[tuple[Any, ...]] = []
        try:
            for row in connection.execute(f"{query} ORDER BY id {order}", values):
                rows.append(row)  # noqa: PERF402 - what came before an error is kept
        except sqlite3.DatabaseError:
            ends.append(rows)
            if order == "DESC" and not any(ends):
                raise
        else:
            return rows if order == "ASC" else rows[::-1]
    return [*ends[0], *reversed(ends[1])]


def checked_tags(names: Sequence[str], present: Iterable[str] = ()) -> Sequence[str]:
    """Return tags; StoreError if a filter could not name one, and if they are too many beside the known ones."""
    for name in names:
        if not TAG.fullmatch(name):
            raise StoreError(f"{name[:80]!r} is not a tag; use up to 60 letters, digits and . - _ + : / without spaces")
    if names and (count := len({*names, *present})) > MOST_TAGS:
        raise StoreError(f"a run has at most {MOST_TAGS} tags, not {count:,}")
    return names


def read_labels(connection: sqlite3.Connection) -> dict[int, Labels]:
    """Return the labels of all runs that have any; in a damaged store, those that can be read."""
    tags: dict[int, list[str]] = {}
    notes: dict[int, str] = {}
    with suppress(sqlite3.DatabaseError):
        for run, name in connection.execute("SELECT run, name FROM tags ORDER BY run, name"):
            tags.setdefault(run, []).append(str(name))
        notes.update(connection.execute("SELECT run, text FROM notes"))
    return {run: (tuple(tags.get(run, ())), str(notes.get(run, ""))) for run in {*tags, *notes}}


MOST_NAMED = 8
"""An error names at most this many of the runs that share a title."""


def find_row(connection: sqlite3.Connection, folder: Path, text: str) -> tuple[Any, ...]:
    """Return the row of the run that `text` refers to; raise StoreError if there is none, or more than one."""
    ids = _matching_ids(connection, folder, text)
    if len(ids) == 1:
        query = f"SELECT {COLUMNS} FROM runs WHERE id = ?"
        row: tuple[Any, ...] = connection.execute(query, ids).fetchone()
        return row
    if ids:
        numbers = ", ".join(map(str, ids[-MOST_NAMED:]))
        raise StoreError(f"{len(ids)} runs are called '{text}'; choose one by its number: {numbers}")
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
        return ids("kind NOT IN ('fold', 'trial') ORDER BY id DESC LIMIT 1") or ids("1 ORDER BY id DESC LIMIT 1")
    if text.isascii() and text.isdigit() and (matching := ids("id = ?", min(int(text), 2**63 - 1))):
        return matching
    named = ids("title = ? ORDER BY id", text)
    number = re.match(r"\d{1,18}(?=-)", text, re.ASCII)
    if number is not None:
        for run, title in connection.execute("SELECT id, title FROM runs WHERE id = ?", (int(number[0]),)):
            if path_of(folder, run, str(title)).name == text and run not in named:
                named.append(run)
    return sorted(named)
