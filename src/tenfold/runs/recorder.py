"""Writes a run's events to the store, a batch at a time."""

import time
import warnings
from typing import Any

from tenfold.errors import StoreError
from tenfold.runs.events import Event
from tenfold.runs.store import Store

FLUSH_SECONDS = 0.5


class Recorder:
    """A listener that keeps events for a moment and records them together.

    When the store cannot be written (a full disk, say) training goes on: one warning tells so, the events are kept, and
    every later flush tries again.
    """

    def __init__(self, store: Store, run: int) -> None:
        self.store = store
        self.run = run
        self.problem = ""
        self._failing = False
        self._waiting: list[Event] = []
        self._flushed = time.monotonic()
        self._held = store.held_open()

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

    def rewind(self, epoch: int) -> None:
        """Take back what was recorded from this epoch on, which will be repeated."""
        self.flush()
        self._try(self.store.supersede, self.run, epoch)

    def close(self, *, result: dict[str, Any], status: str, error: str = "") -> None:
        """Record what is waiting, and how the run ended."""
        self.flush()
        self._try(self.store.update, self.run, result=result, status=status, error=error)
        self._held.close()

    def report(self, problem: str) -> None:
        """Tell, once, that something of this run could not be kept."""
        if not self.problem:
            warnings.warn(f"{problem}; the training goes on", stacklevel=2)
        self.problem = problem

    def _try(self, write: Any, *args: Any, **kwargs: Any) -> bool:
        try:
            write(*args, **kwargs)
        except StoreError as error:
            self.report(str(error))
            self._failing = True
            return False
        if self._failing:  # what could not be written has been by now
            self._failing, self.problem = False, ""
        return True
