"""The tables of the run store, their version, and how a store of an earlier version is brought to it."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL,
    created REAL NOT NULL, ended REAL, experiment TEXT NOT NULL, facts TEXT NOT NULL, result TEXT NOT NULL,
    error TEXT NOT NULL DEFAULT '', host TEXT NOT NULL, pid INTEGER NOT NULL, pid_started REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, type TEXT NOT NULL,
    epoch INTEGER NOT NULL, superseded INTEGER NOT NULL DEFAULT 0, body TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS events_by_run ON events(run, type, superseded);
"""
PARENT = "CASE WHEN json_valid(facts) THEN json_extract(facts, '$.crossval.parent') END"
"""The cross-validation that a fold belongs to."""
MIGRATIONS = {
    1: f"""
    CREATE INDEX IF NOT EXISTS runs_by_title ON runs(title);
    CREATE INDEX IF NOT EXISTS runs_by_kind ON runs(kind);
    CREATE INDEX IF NOT EXISTS runs_by_parent ON runs({PARENT}) WHERE kind = 'fold';
    """,
    2: """
    CREATE TABLE IF NOT EXISTS tags (
        run INTEGER NOT NULL REFERENCES runs(id), name TEXT NOT NULL, PRIMARY KEY (run, name)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS notes (run INTEGER PRIMARY KEY REFERENCES runs(id), text TEXT NOT NULL);
    """,
}
"""What leads to each version from the one before; version 0 is the tables alone."""
VERSION = max(MIGRATIONS)
LOCK_SECONDS = 30


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of a store's tables."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def prepare(connection: sqlite3.Connection, file: Path) -> None:
    """Make the tables of a new store; bring an older store up to date, and keep a copy of it as it was.

    A store of a newer version is left as it is: what this version knows of it can be used.
    """
    _write_ahead(connection)
    if version_of(connection) >= VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")  # one process does it, others wait here
    version = version_of(connection)
    if version >= VERSION:
        return
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone():
        _keep_copy(file, file.with_name(f"{file.name}.version-{version}"))
    _execute(connection, TABLES)
    for number in range(version + 1, VERSION + 1):
        _execute(connection, MIGRATIONS[number])
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Execute statements within the transaction that is open, which `executescript` would end."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


def _keep_copy(file: Path, path: Path) -> None:
    partial = path.with_name(f".{path.name}.part")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(partial)) as target:
        source.backup(target)
    partial.replace(path)


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
