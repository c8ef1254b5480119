"""Reading what is new in a store, again and again, over a connection that stays open."""

import threading
from typing import Any

from tenfold.runs.storage import store_tables
from tenfold.runs.store import Store

SINCE = "SELECT id, body FROM events WHERE run = ? AND superseded = 0 AND id > ? ORDER BY id"
REPEATED = "SELECT COUNT(*) FROM events WHERE run = ? AND superseded = 1"
OF_TYPE = "SELECT body FROM events WHERE run = ? AND type = ? AND superseded = 0"


class Follower:
    """Reads the events of runs that were recorded after a cursor, which is the number of an event."""

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
            found = self._connection.execute(SINCE, (run, after)).fetchall()
        read = ((number, *store_tables.decoded(body)) for number, body in found)
        return [(number, row) for number, row, damaged in read if not damaged], found[-1][0] if found else after

    def repeated(self, run: int) -> int:
        """Return how many events of a run do not count any more, because their epochs were repeated."""
        with self._lock:
            return int(self._connection.execute(REPEATED, (run,)).fetchone()[0])

    def stages(self, run: int) -> list[dict[str, Any]]:
        """Return the lifecycle events of a run."""
        return self._bodies(f"{OF_TYPE} ORDER BY id", run, "lifecycle")

    def latest_metric(self, run: int) -> dict[str, Any]:
        """Return the last metric of a run; empty where it has none."""
        return next(iter(self._bodies(f"{OF_TYPE} ORDER BY id DESC LIMIT 1", run, "metric")), {})

    def _bodies(self, query: str, *values: object) -> list[dict[str, Any]]:
        with self._lock:
            found = self._connection.execute(query, values).fetchall()
        return [row for row, damaged in (store_tables.decoded(body) for (body,) in found) if not damaged]

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()
