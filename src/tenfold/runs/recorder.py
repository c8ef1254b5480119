"""Writes a run's events to the store, a batch at a time."""

import time
import warnings
from typing import Any

from tenfold.errors import RunTakenOver, StoreError
from tenfold.runs.events import Event
from tenfold.runs.store import Store

FLUSH_SECONDS = 0.5


class Recorder:
    """A listener that keeps events for a moment and records them together.

    When the store cannot be written to (a full disk, say) training continues: it warns once, keeps the events, and
    tries again with every flush.
    """

    def __init__(self, store: Store, run: int) -> None:
        self.store = store
        self.run = run
        self.problem = ""
        self._failing = False
        self._waiting: list[Event] = []
        self._flushed = time.monotonic()
        self._connection = store.keep_open()

    def __call__(self, event: Event) -> None:
        """Keep the event, and record what has waited long enough."""
        self._waiting.append(event)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Record what is waiting."""
        self._flushed = time.monotonic()
        if self._waiting and self._try(self.store.append, self.run, self._waiting):
            self._waiting = []

    def close(self, *, result: dict[str, Any], status: str, error: str = "") -> bool:
        """Record what is waiting and how the run ended, release the run, and return whether all is recorded."""
        self.flush()
        done = self._try(self.store.update, self.run, result=result, status=status, error=error) and not self._waiting
        self.store.release(self.run)
        self._connection.close()
        return done

    def abandon(self) -> None:
        """Record nothing more: the run is another process's."""
        self._waiting = []
        self.store.release(self.run)
        self._connection.close()

    def report(self, problem: str) -> None:
        """Warn, once, that something of this run could not be saved."""
        if not self.problem:
            warnings.warn(f"{problem}; training continues", stacklevel=2)
        self.problem = problem

    def _try(self, write: Any, *args: Any, **kwargs: Any) -> bool:
        try:
            write(*args, **kwargs)
        except RunTakenOver:
            raise
        except StoreError as error:
            self.report(str(error))
            self._failing = True
            return False
        if self._failing:  # what could not be written has been by now
            self._failing, self.problem = False, ""
        return True
