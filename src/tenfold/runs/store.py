"""The run store: one SQLite file for all runs and their events, and a folder of artifacts for each run.

A write is one transaction in write-ahead mode, so a process that dies at any instant leaves a store that can be read.
A run whose process is gone without having said how it ended is shown as interrupted.
"""

import json
import os
import re
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.runs.event_rows import as_row, from_row
from tenfold.runs.events import Event

SCHEMA = """
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
SUPERSEDE = """
UPDATE events SET superseded = 1 WHERE run = ? AND epoch >= ?
AND CASE type WHEN 'lifecycle' THEN json_extract(body, '$.what') != 'lost' ELSE 1 END
"""
LOCK_SECONDS = 30
FOLD = "fold"
"""The kind of a run that is part of another; it is never meant by "last"."""
FOLDED = "crossval"
"""The kind of the run that folds are part of."""
COLUMNS = "id, title, kind, status, created, ended, experiment, facts, result, error, host, pid, pid_started"


def default_folder() -> Path:
    """Return $TENFOLD_RUNS, or `runs` in the current folder."""
    return Path(os.environ.get("TENFOLD_RUNS") or "runs")


class Store:
    """All runs of one folder."""

    def __init__(self, folder: str | Path | None = None, *, create: bool = True) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self.file = self.folder / "tenfold.db"
        if not create and not self.file.exists():
            raise StoreError(
                f"there are no runs in {self.folder}; `tenfold train` records one, --runs names another folder"
            )
        if self.folder.is_file():
            raise StoreError(f"the run store {self.folder} cannot be opened: it is a file; --runs names a folder")
        with self._explained("opened"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._connect() as connection:
                _write_ahead(connection)
                connection.executescript(SCHEMA)

    def create(self, experiment: Experiment, *, kind: str, facts: dict[str, Any]) -> int:
        """Record a new run, make its folder, and return its number."""
        title = experiment.title
        pid, started = _this_process()
        values = (title, kind, "running", time.time(), experiment.model_dump_json(), json.dumps(facts), "{}")
        with self._explained("written to"), self._connect() as connection:
            cursor = connection.execute(
                "INSERT INTO runs (title, kind, status, created, experiment, facts, result, host, pid, pid_started)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, socket.gethostname(), pid, started),
            )
            run = int(cursor.lastrowid or 0)
            # before the commit: a run that is in the store has its folder and its experiment
            self.path(run, title).mkdir(parents=True, exist_ok=True)
            experiment.save(self.path(run, title) / "experiment.toml")
        return run

    def path(self, run: int, title: str) -> Path:
        """Return the folder of a run's artifacts."""
        return self.folder / f"{run}-{re.sub(r'[^A-Za-z0-9._-]+', '_', title)[:60]}"

    def append(self, run: int, events: Iterable[Event]) -> None:
        """Record events, all of them or none."""
        rows = [(run, row["type"], row["epoch"], json.dumps(row)) for row in map(as_row, events)]
        with self._explained("written to"), self._connect() as connection:
            connection.executemany("INSERT INTO events (run, type, epoch, body) VALUES (?, ?, ?, ?)", rows)

    def update(self, run: int, *, result: dict[str, Any], status: str | None = None, error: str = "") -> None:
        """Record what is known of a run's result, and how it ended."""
        with self._explained("written to"), self._connect() as connection:
            connection.execute("UPDATE runs SET result = ? WHERE id = ?", (json.dumps(result), run))
            if status is not None:
                connection.execute(
                    "UPDATE runs SET status = ?, error = ?, ended = ? WHERE id = ?", (status, error, time.time(), run)
                )

    def reopen(self, run: int, *, epoch: int, abandoned: bool = False) -> float:
        """Claim a run to go on with it at this epoch, and return how long it had run.

        Events of the epochs that will be repeated are kept, but marked as superseded. `abandoned` says that whoever
        had claimed it on another host is gone, which cannot be seen from here.
        """
        pid, started = _this_process()
        with self._explained("written to"), self._connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            columns = "status, result, host, pid, pid_started"
            row = connection.execute(f"SELECT {columns} FROM runs WHERE id = ?", (run,)).fetchone()
            if row is None:
                raise StoreError(f"there is no run {run} in {self.folder}")
            status, result, *process = row
            if status == "finished" and not json.loads(result).get("failed"):  # folds can be trained again
                raise StoreError(f"run {run} is finished; there is nothing to resume")
            if status == "running" and _alive(*process, elsewhere=not abandoned):
                raise StoreError(f"run {run} is still running, in process {process[1]}; wait for it or stop it first")
            connection.execute(
                "UPDATE runs SET status = 'running', error = '', ended = NULL, host = ?, pid = ?, pid_started = ?"
                " WHERE id = ?",
                (socket.gethostname(), pid, started, run),
            )
            connection.execute(SUPERSEDE, (run, epoch))
            bodies = connection.execute("SELECT body FROM events WHERE run = ?", (run,)).fetchall()
        return max((float(json.loads(body)["at"]) for (body,) in bodies), default=0.0)

    def supersede(self, run: int, epoch: int) -> None:
        """Mark the events from this epoch on as superseded: it will be repeated. That a worker was lost stays true."""
        with self._explained("written to"), self._connect() as connection:
            connection.execute(SUPERSEDE, (run, epoch))

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs, oldest first."""
        with self._explained("read"), self._connect() as connection:
            return [_record(row) for row in connection.execute(f"SELECT {COLUMNS} FROM runs ORDER BY id")]

    def find(self, reference: str | int) -> dict[str, Any]:
        """Return a run by its number, by "last", or by its title or folder when only one has it."""
        runs = self.runs()
        text = str(reference)
        if not runs:
            raise StoreError(f"there are no runs in {self.folder} yet; `tenfold train` records one")
        if text == "last":
            return next((run for run in reversed(runs) if run["kind"] != FOLD), runs[-1])
        found = [run for run in runs if str(run["id"]) == text]
        found = found or [run for run in runs if text in (run["title"], self.path(run["id"], run["title"]).name)]
        if len(found) == 1:
            return found[0]
        if found:
            numbers = ", ".join(str(run["id"]) for run in found[-8:])
            raise StoreError(f"'{text}' names {len(found)} runs; say which: {numbers}")
        raise StoreError(f"there is no run '{text}' in {self.folder}; say a number from 1 to {runs[-1]['id']}, or last")

    def events(self, run: int, kind: str | None = None) -> Iterator[Event]:
        """Return a run's events of one type, or of all, in the order in which they were recorded."""
        with self._explained("read"), self._connect() as connection:
            rows = connection.execute(
                "SELECT body FROM events WHERE run = ? AND superseded = 0 AND type = COALESCE(?, type) ORDER BY id",
                (run, kind),
            ).fetchall()
        with self._explained("read"):
            for (body,) in rows:
                yield _event(body)

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.file, timeout=LOCK_SECONDS)
        # With write-ahead logging a commit that was not forced to the disk yet survives the death of the process; only
        # a power cut may take it, and leaves the store sound. Forcing each costs tens of milliseconds.
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def held_open(self) -> sqlite3.Connection:
        """Return a connection to keep while much is written: closing the last one folds the log into the file."""
        with self._explained("opened"):
            connection = sqlite3.connect(self.file, timeout=LOCK_SECONDS, check_same_thread=False)
            connection.execute("SELECT 1 FROM runs LIMIT 1").fetchone()  # before it has read, it does not count as open
            return connection

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(f"the run store {self.file} cannot be {done}: {error}") from None
        except ValueError as error:  # a row that is damaged, or that another version wrote
            raise StoreError(f"the run store {self.file} cannot be {done}: {error}") from None
        except OSError as error:
            raise StoreError(f"the run store {self.folder} cannot be {done}: {error.strerror or error}") from None


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead mode; when several processes make a store at once, SQLite does not wait here by itself."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _record(row: tuple[Any, ...]) -> dict[str, Any]:
    record = dict(zip(COLUMNS.split(", "), row, strict=True))
    for key in ("experiment", "facts", "result"):
        record[key] = json.loads(record[key])
    process = record.pop("host"), record.pop("pid"), record.pop("pid_started")
    if record["status"] == "running" and not _alive(*process):
        record["status"] = "interrupted"
    return record


def _event(body: str) -> Event:
    row = json.loads(body)
    if not isinstance(row, dict):
        raise ValueError(f"this version of Tenfold cannot read the event {body[:200]}")
    return from_row(row)


def _this_process() -> tuple[int, float]:
    import psutil

    return os.getpid(), psutil.Process().create_time()


def _alive(host: str, pid: int, started: float, *, elsewhere: bool = True) -> bool:
    """Tell whether the process that claimed a run still lives; of one on another host, `elsewhere` is believed."""
    import psutil

    if host != socket.gethostname():
        return elsewhere
    try:
        process = psutil.Process(pid)
        return bool(process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < 1)
    except psutil.Error:
        return False
