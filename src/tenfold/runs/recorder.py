"""Recording the events of a run: they are written to the store, a batch at a time, and shown to a listener."""

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tenfold.errors import RunTakenOver, StoreError
from tenfold.runs.console import ConsoleFile
from tenfold.runs.events import (
    CheckpointFailed,
    Emit,
    Ended,
    Ending,
    Event,
    Lifecycle,
    Metric,
    Printed,
    Span,
    Stopwatch,
    Warned,
    metadata_of,
)
from tenfold.runs.storage.tables import LOCK_SECONDS
from tenfold.runs.store import Store

FLUSH_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 60.0
"""While the store cannot be written to, the time until the next attempt doubles up to this."""
RETRY_LOCK_SECONDS = 1.0
"""How long such an attempt waits for another process to release the store."""
MOST_WAITING = 50_000
"""Events that wait for a store that cannot be written to; beyond that, those of single steps are left out."""


class Recorder:
    """A listener that keeps events for a moment and records them together.

    When the store cannot be written to (a full disk, say) training continues: it warns once, keeps the events, and
    tries again now and then.
    """

    def __init__(self, store: Store, run: int) -> None:
        self.store = store
        self.run = run
        self.problem = ""
        self._failing = False
        self._retry_seconds = FLUSH_SECONDS
        self._left_out = 0
        self._waiting: list[Event] = []
        self._flushed = time.monotonic()
        self._connection = store.keep_open()

    def __call__(self, event: Event) -> None:
        """Keep the event, and record those that have waited long enough."""
        self._waiting.append(event)
        if time.monotonic() - self._flushed > self._retry_seconds:
            self.flush()
        elif self._failing and len(self._waiting) > MOST_WAITING:
            self._leave_out_steps()

    def flush_unless_failing(self) -> None:
        """Record the waiting events, unless the store could not be written to a moment ago."""
        if not self._failing:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            seconds = RETRY_LOCK_SECONDS if self._failing else LOCK_SECONDS
            if self._try(self.store.append, self.run, self._waiting, lock_seconds=seconds):
                self._retry_seconds, self._waiting = FLUSH_SECONDS, self._note_left_out()
            else:
                self._retry_seconds = min(2 * self._retry_seconds, LONGEST_RETRY_SECONDS)
        self._flushed = time.monotonic()

    def _leave_out_steps(self) -> None:
        """Forget events of single steps, which only curves and timelines show; of the others, the oldest."""
        kept = [event for event in self._waiting if _is_summary(event)][-MOST_WAITING // 2 :]
        self._left_out += len(self._waiting) - len(kept)
        self._waiting = kept

    def _note_left_out(self) -> list[Event]:
        """Return an event that says how many were left out, if any."""
        count, self._left_out = self._left_out, 0
        if not count:
            return []
        text = f"{count:,} events of single steps are not recorded: the run store could not be written to for a while"
        return [Warned(at=self._waiting[-1].at, text=text)]

    def close(self, *, result: dict[str, Any], status: str, error: str = "") -> bool:
        """Record the waiting events and how the run ended, release the run, and return whether all is recorded."""
        self.flush()
        if self._waiting:  # a last attempt, which waits longer, or the count of what was left out
            self._failing = False
            self.flush()
        done = self._try(self.store.update, self.run, result=result, status=status, error=error) and not self._waiting
        self.store.release(self.run)
        self._connection.close()
        return done

    def abandon(self) -> None:
        """Record nothing more: another process has taken over the run."""
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


def _is_summary(event: Event) -> bool:
    """Return whether an event is about more than a step or two."""
    return isinstance(event, Lifecycle) or (
        isinstance(event, Metric) and (event.part != "train" or "epoch" in event.name)
    )


@dataclass
class EventDispatcher:
    """Passes each event on to the recorder or the console file and to the listener; knows how far the run has come."""

    recorder: Recorder
    stopwatch: Stopwatch
    listen: Emit
    console: ConsoleFile
    known: dict[str, Any]
    """The result before the end."""
    partial: Callable[[], dict[str, Any]] | None
    """Returns the result of work that was interrupted."""
    listening: float = 0.0
    """Seconds spent in the listener: the display and callbacks."""
    latest: float = 0.0
    """The time of the last event; on a virtual cluster it runs ahead of the stopwatch here."""

    def __call__(self, event: Event) -> None:
        """Record the event, or its content, and tell the listener."""
        if isinstance(event, CheckpointFailed):
            self.recorder.report(event.text)
            return
        if isinstance(event, Printed):
            self.console.add(event.text, event.worker)
            return
        self.console.write_due()
        self.latest = max(self.latest, event.at)
        self.recorder(event)
        if isinstance(event, Lifecycle):
            self.recorder.flush_unless_failing()
        elif isinstance(event, Metric) and event.part != "train":
            self.known |= {"part": event.part, "epochs": event.epoch + 1, "seconds": event.seconds}
            self.known.setdefault("metrics", {})[event.name] = event.value
        began = time.perf_counter()
        try:
            self.listen(event)  # last, because a callback may ask to stop
        finally:
            self.listening += time.perf_counter() - began

    def end(self, status: Ending, error: str = "", result: dict[str, Any] | None = None) -> bool:
        """Record how the run ended, tell the listener, and return whether all is recorded.

        Without a result, what came out before the work was interrupted is recorded.
        """
        last = Ended(at=max(self.stopwatch.now(), self.latest), status=status, error=error.partition("\n")[0])
        self.recorder(last)
        if result is None:
            result = self.partial() if self.partial is not None else self.known
        recorded = self.recorder.close(result=result, status=status, error=error)
        self.listen(last)
        return recorded


MICROSECONDS = 1e6


def chrome_trace(events: Iterable[Event], *, clock: str = "measured") -> dict[str, Any]:
    """Return the trace, in Chrome's trace event format: one lane per worker.

    Spans that were merged over a window of steps all begin where it begins; they are laid end to end, with their
    number in `count`. What a run said about itself (an epoch, a warning) becomes a mark, if its time was measured.
    The process is named after the clock: 0 for measured times, 1 for predicted ones.
    """
    pid = int(clock == "predicted")
    ends: dict[tuple[int, float], float] = defaultdict(float)
    workers: set[int] = set()
    traced: list[dict[str, Any]] = []
    for event in events:
        if not isinstance(event, Span | Lifecycle):
            continue
        if isinstance(event, Lifecycle) and clock == "predicted":
            continue
        workers.add(event.worker)
        lane = {"pid": pid, "tid": event.worker}
        if isinstance(event, Lifecycle):
            mark = {"name": event.stage, "ph": "i", "s": "t", "ts": event.at * MICROSECONDS}
            traced.append({**lane, **mark, "args": {**metadata_of(event), "epoch": event.epoch}})
            continue
        begin = event.at + ends[event.worker, event.at]
        ends[event.worker, event.at] += event.seconds
        span = {"name": event.kind, "cat": event.kind, "ph": "X"}
        when = {"ts": begin * MICROSECONDS, "dur": event.seconds * MICROSECONDS}
        traced.append({**lane, **span, **when, "args": {"count": event.count, "epoch": event.epoch}})
    process = {"pid": pid, "ph": "M", "name": "process_name", "args": {"name": clock}}
    lanes = [lane for worker in sorted(workers) for lane in _lane(pid, worker)]
    return {"displayTimeUnit": "ms", "traceEvents": [process, *lanes, *traced]}


def _lane(pid: int, worker: int) -> list[dict[str, Any]]:
    about = {"pid": pid, "tid": worker, "ph": "M"}
    return [
        {**about, "name": "thread_name", "args": {"name": f"worker {worker}"}},
        {**about, "name": "thread_sort_index", "args": {"sort_index": worker}},
    ]
