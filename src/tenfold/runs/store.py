"""The run store: one SQLite file for all runs and their events, and a folder of artifacts for each run.

Every write is one transaction in write-ahead mode, so the store remains readable if a process dies at any moment.
A run whose process has died without recording its end is shown as interrupted.
"""

import json
import os
import shutil
import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from tenfold.common.files import (
    make_own_folder,
    read_sealed,
    require_regular,
    sealed_json,
    short_path,
    unsynced,
    write_atomically,
)
from tenfold.common.imports import note_written, remember_named
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject
from tenfold.runs.claim import Claim
from tenfold.runs.events import Event, Recorded, as_row
from tenfold.runs.tables import (
    COLUMNS,
    LISTED,
    LOCK_SECONDS,
    PARENT,
    SWEEP_OF,
    VERSION,
    RunRecord,
    StoreFile,
    as_text,
    checked_tags,
    decoded,
    describe_no_locks,
    event_of,
    find_row,
    make_record,
    path_of,
    prepare_tables,
    read_labels,
    salvaged,
    time_of,
    version_of,
)

if TYPE_CHECKING:
    from tenfold.runs.bundle import Bundle, EndedRun

MARK_REPEATED = """
UPDATE events SET superseded = 1 WHERE run = ? AND epoch >= ?
AND CASE WHEN type = 'lifecycle' AND json_valid(body)
THEN json_extract(body, '$.what') NOT IN ('lost', 'joined') ELSE 1 END
"""
MODEL_PICKLE = "model.pickle"
"""The pickled model of a run that was given a Python object which cannot be imported; read only if trusted."""
FOLD = "fold"
"""The kind of a run that is a fold of a cross-validation."""
CROSSVAL = "crossval"
"""The kind of a run that is a cross-validation."""
SWEEP = "sweep"
"""The kind of a run that is a sweep."""
TRIAL = "trial"
"""The kind of a run that is a trial of a sweep."""
MEMBERS = (FOLD, TRIAL)
"""The kinds of runs that are listed and removed with the run they belong to; "last" never refers to one of them."""
SCRIPT = "script"
"""The kind of a run that simulates a script; the script contains its model and data."""
INVOCATION = "invocation"
"""The metadata key of the id shared by all runs of one call or command."""
_invocation: ContextVar[str | None] = ContextVar(INVOCATION, default=None)
INDEX_BYTES = 1 << 15
"""Bytes of disk space that SQLite needs next to a store to read its log."""


def absolute(folder: str | Path | None = None) -> Path:
    """Return the absolute path of a run store, by default $TENFOLD_RUNS or `runs`."""
    return Path((os.environ.get("TENFOLD_RUNS") or "runs") if folder is None else folder).absolute()


def _keep_model(experiment: Experiment, path: Path) -> None:
    """Save the model with the run if it cannot be imported by name."""
    model = experiment.model.name
    if isinstance(model, PythonObject) and model.import_path is None and (content := model.pickled()):
        write_atomically(path, content)
        note_written(content)


@contextmanager
def one_invocation() -> Iterator[None]:
    """Record the runs of this block as belonging together; a nested block is part of the outer one."""
    token = _invocation.set(_invocation.get() or uuid4().hex)
    try:
        yield
    finally:
        _invocation.reset(token)


Row = tuple[str, int, str]
"""The type, epoch and body of an event."""


def _add_run(
    connection: sqlite3.Connection, experiment: Experiment, metadata: dict[str, Any], **columns: object
) -> int:
    """Insert the row of a run, and return its number."""
    row: dict[str, object] = {"title": experiment.title, "pid_started": 0}
    row |= {"experiment": sealed_json(experiment.model_dump(mode="json"))}
    together = {} if (invocation := _invocation.get()) is None else {INVOCATION: invocation}
    row |= {"metadata": sealed_json(metadata | together)} | columns
    marks = ", ".join("?" * len(row))
    cursor = connection.execute(f"INSERT INTO runs ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
    return int(cursor.lastrowid or 0)


def _add_events(connection: sqlite3.Connection, run: int, rows: Iterable[Row]) -> None:
    values = ((run, *row) for row in rows)
    connection.executemany("INSERT INTO events (run, type, epoch, body) VALUES (?, ?, ?, ?)", values)


def _row_of(event: Event) -> Row:
    row = as_row(event)
    return row["type"], row["epoch"], json.dumps(row)


class Store:
    """All runs of one folder."""

    def __init__(self, folder: str | Path | None = None, *, create: bool = True) -> None:
        self.folder = absolute(folder)
        self.file = self.folder / "tenfold.db"
        self.version = VERSION
        self._claims: dict[int, Claim] = {}
        with self._explained("opened"):
            if not create and not self.file.exists():
                raise StoreError(
                    f"there are no runs in {short_path(self.folder)}; "
                    "`tenfold train` records one, and --runs selects another folder"
                )
            if self.folder.is_file():
                raise StoreError(
                    f"the run store {short_path(self.folder)} cannot be opened because it is a file; --runs should be "
                    "a folder"
                )
            self._check_files()
            self._access = StoreFile(self.file)
            self._open_file()
            with self._connect() as connection:
                if self._access.access == "write":
                    prepare_tables(connection, write_ahead=self._access.abilities.write_ahead)
                self.version = version_of(connection)
            if self.version < VERSION:
                raise StoreError(
                    f"the run store {short_path(self.file)} was created by an older version of Tenfold; use another "
                    "folder"
                )

    def _open_file(self) -> None:
        """Create the folder of a new store, or find out how the file of an existing store can be opened."""
        if self.file.exists():
            self._access.choose_access()
        elif not self._access.abilities.locks:  # before anything is created
            raise StoreError(
                f"a run store cannot be created in {short_path(self.folder)}: "
                f"{describe_no_locks(self._access.abilities.name)}"
            )
        else:
            self.folder.mkdir(parents=True, exist_ok=True)

    def create(self, experiment: Experiment, *, kind: str, metadata: dict[str, Any]) -> int:
        """Record a new run, create its folder, claim it for this process, and return its number."""
        with self._writing() as connection:
            place = {"host": socket.gethostname(), "pid": os.getpid(), "created": time.time()}
            run = _add_run(
                connection, experiment, metadata, kind=kind, status="running", result=sealed_json({}), **place
            )
            # before the commit: every run in the store has its folder and its experiment, and is claimed
            path = self.path(run, experiment.title)
            make_own_folder(path)
            (path / "experiment.toml").unlink(missing_ok=True)
            experiment.save(path / "experiment.toml")
            _keep_model(experiment, path / MODEL_PICKLE)
            claim = Claim.take(path, force=True)
        if claim is not None:
            self._claims[run] = claim
        if kind not in MEMBERS:
            remember_named(experiment.import_paths)
        return run

    def import_run(
        self, ended: "Bundle | EndedRun", *, experiment: Experiment, metadata: Mapping[str, Any] | None = None
    ) -> int:
        """Record a run that has ended elsewhere in one transaction, and return its number in this store.

        `experiment` is the user's experiment, and `metadata` are added to the run's own metadata.
        """
        return self.import_runs([(ended, experiment, metadata or {})])[0]

    def import_runs(self, runs: "Sequence[tuple[Bundle | EndedRun, Experiment, Mapping[str, Any]]]") -> list[int]:
        """Record several runs that have ended elsewhere, in one transaction; see `import_run`."""
        self._check_writable()
        folder = tempfile.TemporaryDirectory(dir=self.folder, prefix=".import-")
        with self._explained("written to"), folder as name, unsynced():
            for at, (ended, experiment, _) in enumerate(runs):
                filled = Path(name) / str(at)
                filled.mkdir()
                ended.write_files(filled)
                experiment.save(filled / "experiment.toml")
                _keep_model(experiment, filled / MODEL_PICKLE)
            rows: dict[int, Row] = {}
            with self._writing() as connection:
                numbers = [self._insert(connection, *run, rows) for run in runs]
                for at, (number, (_, experiment, _)) in enumerate(zip(numbers, runs, strict=True)):
                    path = self.path(number, experiment.title)
                    shutil.rmtree(path, ignore_errors=True)  # left by a deleted run with the same number
                    (Path(name) / str(at)).replace(path)  # before the commit: a run in the store has its folder
        for ended, experiment, _ in runs:
            if ended.record.kind not in MEMBERS:
                remember_named(experiment.import_paths)
        return numbers

    def _insert(
        self,
        connection: sqlite3.Connection,
        ended: "Bundle | EndedRun",
        experiment: Experiment,
        metadata: Mapping[str, Any],
        rows: dict[int, Row],
    ) -> int:
        """Insert an ended run and its events, and return its number.

        `rows` caches the rows of inserted events by their `id`, because runs that trained together share many events.
        """
        record = ended.record
        columns = {name: getattr(record, name) for name in ("kind", "status", "created", "ended", "error", "host")}
        columns |= {"result": sealed_json(record.result), "pid": 0}
        run = _add_run(connection, experiment, record.metadata | dict(metadata), **columns)
        for event in ended.events:
            if isinstance(event, Recorded):
                rows[id(event)] = _row_of(replace(event, run=run))
            elif id(event) not in rows:
                rows[id(event)] = _row_of(event)
        _add_events(connection, run, (rows[id(event)] for event in ended.events))
        return run

    def path(self, run: int, title: str) -> Path:
        return path_of(self.folder, run, title)

    def folder_of(self, run: int) -> Path:
        """Return the folder of a run's artifacts; for a run claimed by this process, nothing is read."""
        claim = self._claims.get(run)
        return claim.path.parent if claim is not None else self.path(run, self.find(run)["title"])

    def append(self, run: int, events: Iterable[Event], *, lock_seconds: float = LOCK_SECONDS) -> None:
        """Record events in one transaction; wait up to `lock_seconds` while another process writes to the store."""
        self._check_claim(run)
        with self._writing(lock_seconds) as connection:
            _add_events(connection, run, map(_row_of, events))

    def update(self, run: int, *, result: dict[str, Any], status: str | None = None, error: str = "") -> None:
        """Record a run's result so far and, if it has ended, its status; an ended run is released."""
        self._check_claim(run)
        with self._writing() as connection:
            connection.execute("UPDATE runs SET result = ? WHERE id = ?", (sealed_json(result), run))
            if status is not None:
                connection.execute(
                    "UPDATE runs SET status = ?, error = ?, ended = ? WHERE id = ?", (status, error, time.time(), run)
                )
        if status is not None:
            self.release(run)

    def claim(self, run: int, *, force: bool = False) -> None:
        """Claim a run; raise StoreError while this process or another works on it, unless `force` is set."""
        self._check_writable()
        record = self.find(run)
        with self._explained("written to"):
            path = self.path(run, record["title"])
            make_own_folder(path)
            claim = Claim.take(path, force=force)
        if claim is None:
            raise StoreError(
                f"run {run} is still running, in process {record['pid']} on {record['host']}; wait for it or stop it. "
                "If that process has certainly ended, resume with --force (force=True); two processes writing to a "
                "run damage it"
            )
        self._claims[run] = claim

    def _check_claim(self, run: int) -> None:
        if (claim := self._claims.get(run)) is not None and claim.is_lost:
            raise claim.loss()

    def release(self, run: int) -> None:
        """Release the claim on a run so other processes can claim it."""
        claim = self._claims.pop(run, None)
        if claim is not None:
            claim.release()

    def claim_and_restart(self, run: int, *, epoch: int, force: bool = False) -> float:
        """Claim a run to continue it at this epoch, and return the seconds that it has run so far."""
        self.claim(run, force=force)
        try:
            return self.restart(run, epoch=epoch)
        except BaseException:
            self.release(run)
            raise

    def restart(self, run: int, *, epoch: int) -> float:
        """Continue a run that this process has claimed, at this epoch, and return the seconds that it has run so far.

        Events of the epochs that will be repeated are kept, but marked.
        """
        with self._writing() as connection:
            connection.execute("BEGIN IMMEDIATE")
            query = "SELECT kind, status, result FROM runs WHERE id = ?"
            kind, status, result = connection.execute(query, (run,)).fetchone()
            goes_on = kind == SWEEP or (read_sealed(result) or {}).get("failed")  # with more trials, or failed folds
            if status == "finished" and not goes_on:
                raise StoreError(f"run {run} is finished; there is nothing to resume")
            connection.execute(
                "UPDATE runs SET status = 'running', error = '', ended = NULL, host = ?, pid = ? WHERE id = ?",
                (socket.gethostname(), os.getpid(), run),
            )
            connection.execute(MARK_REPEATED, (run, epoch))
            return _elapsed(connection, run)

    def elapsed(self, run: int) -> float:
        """Return the seconds that a run has run so far."""
        with self._reading() as connection:
            return _elapsed(connection, run)

    def runs(self) -> list[RunRecord]:
        """Return the list entries of all runs, oldest first, without reading the runs themselves.

        If the file is partly damaged, return all runs that can be read.
        """
        with self._reading() as connection:
            return self._as_records(connection, salvaged(connection, f"SELECT {LISTED} FROM runs"))

    def listed(self, run: int) -> RunRecord:
        """Return the list entry of one run."""
        with self._reading() as connection:
            query = f"SELECT {LISTED} FROM runs WHERE id = ?"
            return self._as_records(connection, connection.execute(query, (run,)).fetchall())[0]

    def newest(self, count: int, *, members: bool) -> tuple[list[RunRecord], int]:
        """Return the list entries of the newest runs, oldest first, and the number of all runs."""
        chosen = "" if members else f" WHERE kind NOT IN {MEMBERS}"
        try:
            with self._connect() as connection:
                total = connection.execute(f"SELECT count(*) FROM runs{chosen}").fetchone()[0]
                query = f"SELECT {LISTED} FROM runs{chosen} ORDER BY id DESC LIMIT ?"
                return self._as_records(connection, reversed(connection.execute(query, (count,)).fetchall())), total
        except sqlite3.DatabaseError:  # partly damaged: return what can be read
            rows = [row for row in self.runs() if members or row["kind"] not in MEMBERS]
            return rows[-count:], len(rows)

    def records(self, *kinds: str) -> list[RunRecord]:
        """Return all runs of these kinds (by default of all kinds) with their data, oldest first."""
        chosen = f" WHERE kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        with self._reading() as connection:
            query = f"SELECT {COLUMNS} FROM runs{chosen}"
            return self._as_records(connection, salvaged(connection, query, kinds))

    def folds(self, parent: int) -> list[RunRecord]:
        """Return the folds of a cross-validation with their data, oldest first."""
        return self._members(FOLD, PARENT, parent)

    def trials(self, parent: int) -> list[RunRecord]:
        """Return the trials of a sweep with their data, oldest first."""
        return self._members(TRIAL, SWEEP_OF, parent)

    def _members(self, kind: str, parent_of: str, parent: int) -> list[RunRecord]:
        with self._reading() as connection:
            query = f"SELECT {COLUMNS} FROM runs WHERE kind = '{kind}' AND {parent_of} = ? ORDER BY id"
            return self._as_records(connection, connection.execute(query, (parent,)).fetchall())

    def find(self, reference: str | int) -> RunRecord:
        """Return a run by its number, by "last", or by its title or folder if only one run has it."""
        with self._reading() as connection:
            return self._as_records(connection, [find_row(connection, self.folder, str(reference))])[0]

    def events(self, run: int, kind: str | None = None) -> Iterator[Event]:
        """Return a run's events of one type, or of all types, in the order of recording.

        Damaged events, and events that only a newer version knows, are omitted.
        """
        with self._reading() as connection:
            query = "SELECT body FROM events WHERE run = ? AND superseded = 0 AND type = COALESCE(?, type)"
            rows = salvaged(connection, query, (run, kind))
        for (body,) in rows:
            event = event_of(body)
            if event is not None:
                yield event

    def tag(self, run: int, *names: str) -> None:
        """Add tags to a run, keeping its other tags."""
        with self._writing() as connection:
            present = connection.execute("SELECT name FROM tags WHERE run = ?", (run,)).fetchall()
            rows = [(run, name) for name in checked_tags(names, [name for (name,) in present])]
            connection.executemany("INSERT OR IGNORE INTO tags (run, name) VALUES (?, ?)", rows)

    def untag(self, run: int, *names: str) -> None:
        """Remove tags from a run, ignoring tags that it does not have."""
        with self._writing() as connection:
            connection.executemany("DELETE FROM tags WHERE run = ? AND name = ?", [(run, name) for name in names])

    def set_note(self, run: int, text: str) -> None:
        """Replace the note of a run; "" removes it."""
        with self._writing() as connection:
            connection.execute("DELETE FROM notes WHERE run = ?", (run,))
            if text:
                connection.execute("INSERT INTO notes (run, text) VALUES (?, ?)", (run, text))

    def set_title(self, run: int, title: str) -> None:
        """Replace the title of a run, but not the name of its folder; `rename_run` does both."""
        with self._writing() as connection:
            connection.execute("UPDATE runs SET title = ? WHERE id = ?", (title, run))

    def delete(self, run: int) -> None:
        with self._writing() as connection:
            for table, column in (("events", "run"), ("tags", "run"), ("notes", "run"), ("runs", "id")):
                connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (run,))

    def keep_open(self) -> sqlite3.Connection:
        """Return a connection to hold during many writes: closing the last connection moves the log into the file."""
        with self._explained("opened"):
            connection = self.connect(check_same_thread=False)
            connection.execute("SELECT 1 FROM runs LIMIT 1").fetchone()  # SQLite opens the file only when it reads
            return connection

    def connect(self, lock_seconds: float = LOCK_SECONDS, *, check_same_thread: bool = True) -> sqlite3.Connection:
        connection = self._access.connect(lock_seconds, check_same_thread=check_same_thread)
        connection.text_factory = as_text
        return connection

    def _as_records(self, connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]) -> list[RunRecord]:
        labels = read_labels(connection)
        records = [make_record(self.folder, row) for row in rows]
        for record in records:
            record["tags"], record["note"] = labels.get(record["id"], ((), ""))
        return records

    def _check_writable(self) -> None:
        if self.version > VERSION:
            raise StoreError(
                f"the run store {short_path(self.file)} cannot be written to: a newer version of Tenfold created it "
                f"(format {self.version}; this version supports {VERSION}); update Tenfold, "
                "or use another folder"
            )
        if self._access.problem:
            raise StoreError(f"the run store {short_path(self.file)} cannot be written to: {self._access.problem}")

    def _check_files(self) -> None:
        """Raise OSError if one of the files that SQLite opens is a pipe, a device or a link."""
        for ending in ("", "-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                require_regular(self.file.with_name(self.file.name + ending), links=False)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._explained("read"), self._connect() as connection:
            yield connection

    @contextmanager
    def _writing(self, lock_seconds: float = LOCK_SECONDS) -> Iterator[sqlite3.Connection]:
        self._check_writable()
        with self._explained("written to"), self._connect(lock_seconds) as connection:
            yield connection

    @contextmanager
    def _connect(self, lock_seconds: float = LOCK_SECONDS) -> Iterator[sqlite3.Connection]:
        connection = self.connect(lock_seconds)
        # With write-ahead logging, a commit that is not yet synced to disk survives the death of the process. Only a
        # power failure can lose it, and even that leaves the store consistent. Syncing every commit costs tens of ms.
        connection.execute("PRAGMA synchronous = NORMAL")
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            newer = "; a newer version of Tenfold made it" if self.version > VERSION else ""
            full = "; its disk is full" if self._is_disk_full() else ""
            raise StoreError(f"the run store {short_path(self.file)} cannot be {done}: {error}{newer}{full}") from None
        except OSError as error:
            raise StoreError(
                f"the run store {short_path(self.folder)} cannot be {done}: {error.strerror or error}"
            ) from None

    def _is_disk_full(self) -> bool:
        """Return whether the disk lacks space for the index that SQLite needs to read a log."""
        with suppress(OSError):
            return shutil.disk_usage(self.folder).free < INDEX_BYTES
        return False

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_claims": {}}  # claims belong to this process


def _elapsed(connection: sqlite3.Connection, run: int) -> float:
    bodies = connection.execute("SELECT body FROM events WHERE run = ?", (run,)).fetchall()
    return max((time_of(body) for (body,) in bodies), default=0.0)


class RemoteStore(Store):
    """The store of rank 0 as seen by a rank that does not record; reading from it raises an error."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.file = self.folder / "tenfold.db"
        self.version = VERSION
        self._claims = {}

    def _check_writable(self) -> None:
        self._refuse()

    def connect(self, *_: object, **__: object) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StoreError(
            f"this run is recorded by rank 0, in its folder {self.folder}; read it there, or on rank 0 only"
        )


SINCE = "SELECT id, body FROM events WHERE run = ? AND superseded = 0 AND id > ? ORDER BY id"
REPEATED = "SELECT COUNT(*) FROM events WHERE run = ? AND superseded = 1"
OF_TYPE = "SELECT body FROM events WHERE run = ? AND type = ? AND superseded = 0"


class Follower:
    """Reads the new events of runs, after a cursor, which is the number of an event."""

    def __init__(self, store: Store) -> None:
        self._lock = threading.Lock()
        self._connection = store.connect(check_same_thread=False)
        self._connection.execute("PRAGMA query_only = 1")

    def version(self) -> int:
        """Return a number that changes whenever something is written to the store."""
        with self._lock:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def events(self, run: int, after: int = 0) -> tuple[list[tuple[int, dict[str, Any]]], int]:
        """Return the numbers and the values of a run's events after a cursor, and the new cursor."""
        with self._lock:
            rows = self._connection.execute(SINCE, (run, after)).fetchall()
        read = [(number, row) for number, body in rows if (row := decoded(body))]
        return read, rows[-1][0] if rows else after

    def repeated(self, run: int) -> int:
        """Return the number of a run's events that are obsolete because their epochs were repeated."""
        with self._lock:
            return int(self._connection.execute(REPEATED, (run,)).fetchone()[0])

    def stages(self, run: int) -> list[dict[str, Any]]:
        return self._bodies(f"{OF_TYPE} ORDER BY id", run, "lifecycle")

    def latest_metric(self, run: int) -> dict[str, Any]:
        """Return the last metric of a run; empty if it has none."""
        return next(iter(self._bodies(f"{OF_TYPE} ORDER BY id DESC LIMIT 1", run, "metric")), {})

    def _bodies(self, query: str, *values: object) -> list[dict[str, Any]]:
        with self._lock:
            rows = self._connection.execute(query, values).fetchall()
        return [row for (body,) in rows if (row := decoded(body))]

    def close(self) -> None:
        with self._lock:
            self._connection.close()
