"""What runs in processes that may not write large files. Imported by them, so it is a module of its own."""

import resource
import sqlite3
import warnings
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forked import run_command

LARGE: dict[str, Any] = {"model": "mlp", "data": "digits", "hidden": [2048], "epochs": 3, "threads": 1}
readers: list[sqlite3.Connection] = []


def command(limit: int | None, folder: str, *arguments: str) -> None:
    """Run the command line with a limit on the size of files; what it says goes to two files in the folder."""
    _limit(limit)
    run_command(folder, *arguments)


def _limit(size: int | None) -> None:
    """Let no file grow beyond this size; None: from the moment that the run is recorded, the store does not grow."""
    if size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return
    from tenfold.runs import Store

    create = Store.create

    def create_and_fill(store: Store, *args: Any, **kwargs: Any) -> int:
        run = create(store, *args, **kwargs)
        reader = sqlite3.connect(store.file)
        readers.append(reader)
        look = "SELECT * FROM runs"
        reader.execute(look).fetchall()
        _touch(store.file)
        reader.execute("BEGIN")
        reader.execute(look).fetchall()  # while someone reads what is in it, the write-ahead log only grows
        log = store.file.with_name("tenfold.db-wal")
        for _ in range(1000):
            if log.stat().st_size > 40_000:
                break
            _touch(store.file)
        size = log.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return run

    Store.create = create_and_fill  # type: ignore[method-assign]


def _touch(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE runs SET created = created + 0.001")


def python(limit: int | None, runs: str, answer: Connection) -> None:
    """Train with a limit on the size of files, and send back what a program sees."""
    import tenfold

    _limit(limit)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run = tenfold.train(**LARGE, runs=runs)
    try:
        model = type(run.model).__name__
    except tenfold.TenfoldError as error:
        model = str(error)
    said = [str(item.message) for item in warned]
    answer.send({"status": run.status, "accuracy": run.accuracy, "model": model, "warnings": said, **run.result})
