"""Record a run: its events in the store, in batches, and the last part of its output in its folder."""

import os
import re
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tenfold.common.files import open_regular, open_to_update, write_atomically
from tenfold.errors import RunTakenOver, StoreError
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
from tenfold.runs.store import Store
from tenfold.runs.tables import LOCK_SECONDS

FLUSH_SECONDS = 0.5
LONGEST_RETRY_SECONDS = 60.0
"""Maximum time between attempts while the store cannot be written to; the time doubles after each attempt."""
RETRY_LOCK_SECONDS = 1.0
"""How long such an attempt waits for another process that writes to the store."""
MOST_WAITING = 50_000
"""Maximum number of events kept while the store cannot be written to; beyond it, events of single steps are dropped."""


class Recorder:
    """A listener that collects events and records them in batches.

    If the store cannot be written to, for example because the disk is full, training continues: the recorder warns
    once, keeps the events, and retries periodically.
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
        """Keep the event, and record the kept events if they have waited long enough."""
        self._waiting.append(event)
        if time.monotonic() - self._flushed > self._retry_seconds:
            self.flush()
        elif self._failing and len(self._waiting) > MOST_WAITING:
            self._leave_out_steps()

    def flush_unless_failing(self) -> None:
        """Record the waiting events, unless the last write to the store failed."""
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
        """Drop events of single steps, which only curves and timelines show, then the oldest of the others."""
        kept = [event for event in self._waiting if _is_summary(event)][-MOST_WAITING // 2 :]
        self._left_out += len(self._waiting) - len(kept)
        self._waiting = kept

    def _note_left_out(self) -> list[Event]:
        """Return an event with the number of dropped events, if any."""
        count, self._left_out = self._left_out, 0
        if not count:
            return []
        text = f"{count:,} events of single steps are not recorded: the run store could not be written to for a while"
        return [Warned(at=self._waiting[-1].at, text=text)]

    def close(self, *, result: dict[str, Any], status: str, error: str = "") -> bool:
        """Record the waiting events and the end of the run, release it, and return whether everything was recorded."""
        self.flush()
        if self._waiting:  # a last attempt, which waits longer, or the number of dropped events
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
        """Warn once that some data of this run could not be saved."""
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
        if self._failing:  # the events that failed before are written now
            self._failing, self.problem = False, ""
        return True


def _is_summary(event: Event) -> bool:
    """Return whether an event is about more than a step or two."""
    return isinstance(event, Lifecycle) or (
        isinstance(event, Metric) and (event.part != "train" or "epoch" in event.name)
    )


@dataclass
class EventDispatcher:
    """Forwards each event to the recorder or the console file, and to the listener; tracks the progress of the run."""

    recorder: Recorder
    stopwatch: Stopwatch
    listen: Emit
    console: "ConsoleFile"
    known: dict[str, Any]
    """The result before the end."""
    partial: Callable[[], dict[str, Any]] | None
    """Returns the result of work that was interrupted."""
    listening: float = 0.0
    """Seconds spent in the listener: the display and callbacks."""
    latest: float = 0.0
    """The time of the last event; on a virtual cluster it runs ahead of the stopwatch here."""

    def __call__(self, event: Event) -> None:
        """Record the event, or its content, and call the listener."""
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
        """Record the end of the run, call the listener, and return whether everything was recorded.

        Without a `result`, the partial result of the interrupted work is recorded.
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

    Spans merged over a window of steps all begin with the window; they are placed end to end, with the number of
    merged spans in `count`. Lifecycle events (an epoch, a warning) become marks, if their times were measured.
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


CONSOLE_FILE = "console.txt"
CONSOLE_LIMIT = 200_000
"""Number of bytes shown; a file that has grown to twice this size is cut to its last part."""
WRITE_SECONDS = 0.5
"""Minimum seconds between two writes to the file."""
CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")
"""Escape sequences of terminals (colors, cursor movements), and other control characters."""


class LineBuffer:
    """Turns a program's output into the lines that remain on a terminal."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, text: str) -> list[str]:
        """Add text, and return the lines that it completes."""
        *lines, rest = (self._rest + text).split("\n")
        self._rest = (_last_state(rest) + "\r" * rest.endswith("\r"))[-CONSOLE_LIMIT:]
        return [CODES.sub("", _last_state(line)) for line in lines]

    @property
    def rest(self) -> str:
        """The line that is not complete yet, such as a progress bar."""
        return CODES.sub("", _last_state(self._rest))


def _last_state(line: str) -> str:
    """Return the visible text of a line that was overwritten from its start, as by a progress bar."""
    return line.rstrip("\r").rpartition("\r")[2]


class ConsoleFile:
    """Writes a run's output to a file, a few times per second; errors of the file are ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own, self._pid = LineBuffer(), os.getpid()
        self._workers: dict[int, LineBuffer] = {}
        self._changed = self._failed = False
        self._size, ends_line = self._end()
        """Bytes of the complete lines in the file; an incomplete line may follow them."""
        self._waiting: list[str] = [] if ends_line else [""]  # ends a line that was cut off
        self._written = time.monotonic()
        self._lock = threading.RLock()

    def add(self, text: str, worker: int | None = None) -> None:
        """Keep text printed by this process, or by a worker process, whose number is added to its lines."""
        forked = os.getpid() != self._pid
        if forked or self._failed:
            return
        with self._lock:
            if worker is None:
                self._waiting += self._own.add(text)
            else:
                lines = self._workers.setdefault(worker, LineBuffer()).add(text)
                self._waiting += [f"[worker {worker}] {line}" for line in lines]
            self._changed = True
            self.write_due()

    def write_due(self) -> None:
        """Write the waiting text if the last write was long enough ago."""
        if self._changed and time.monotonic() - self._written > WRITE_SECONDS:
            self.write()

    def write(self) -> None:
        with self._lock:
            self._written = time.monotonic()
            if not self._changed or self._failed:
                return
            lines = "".join(f"{line}\n" for line in self._waiting).encode(errors="replace")[-2 * CONSOLE_LIMIT :]
            try:
                with open_to_update(self.path) as file:
                    file.seek(self._size)
                    file.write(lines)
                    self._size = file.tell()
                    file.write(self._own.rest.encode(errors="replace"))
                    file.truncate()
                if self._size > 2 * CONSOLE_LIMIT:
                    self._cut()
            except OSError:  # such as a full disk: the run matters more than its output
                self._failed = True
            self._waiting, self._changed = [], False

    def _end(self) -> tuple[int, bool]:
        """Return the current size of the file, for a resumed run, and whether its last line is complete."""
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 1))
                return size, file.read() in (b"", b"\n")
        except FileNotFoundError:
            return 0, True
        except OSError:
            self._failed = True
            return 0, True

    def _cut(self) -> None:
        """Cut the file to its last part."""
        kept = _read_tail(self.path, self._size)
        write_atomically(self.path, kept)
        self._size = len(kept)

    def close(self) -> None:
        """Write everything, including incomplete lines."""
        with self._lock:
            rests = [(f"[worker {worker}] ", lines.rest) for worker, lines in sorted(self._workers.items())]
            self._waiting += [f"{name}{rest}" for name, rest in [*rests, ("", self._own.rest)] if rest]
            self._own, self._workers = LineBuffer(), {}
            self._changed = self._changed or bool(self._waiting)
            self.write()


def read_console(folder: Path) -> str:
    """Return the last part of a run's output; empty if it printed nothing or its folder is gone."""
    with suppress(OSError):
        return _read_tail(folder / CONSOLE_FILE).decode(errors="replace")
    return ""


def _read_tail(path: Path, end: int | None = None) -> bytes:
    """Return the last lines, at most CONSOLE_LIMIT bytes, before a position in a file (default: its end)."""
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END) if end is None else end
        file.seek(max(0, end - CONSOLE_LIMIT))
        kept = file.read(min(end, CONSOLE_LIMIT))
    return kept if end <= CONSOLE_LIMIT else kept[kept.find(b"\n") + 1 :]


class Tap:
    """Replaces sys.stdout or sys.stderr: forwards everything to the original stream, and text also to listeners."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream = stream
        self.name_in_sys = name

    def write(self, text: str) -> int:
        """Write to the stream, then call the listeners.

        A tap that was removed, but is still referenced by a user's stream, only forwards to the original.
        """
        written = self.stream.write(text)
        if self in _taps:
            print_to_runs(text)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.stream)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (sys, self.name_in_sys)


_listeners: list[Callable[[str], None]] = []
_taps: list[Tap] = []
_lock = threading.RLock()


def print_to_runs(text: str) -> None:
    """Add text that was not written to sys.stdout or sys.stderr to the output of the runs being recorded."""
    for listener in tuple(_listeners):
        listener(text)


@contextmanager
def listening_to_prints(listener: Callable[[str], None]) -> Iterator[None]:
    """Call a function with the output of this process in this block; afterwards its streams are as they were before.

    All blocks share the stand-ins for sys.stdout and sys.stderr, so they may end in any order, in any thread.
    """
    tap_streams(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
            if not _listeners:
                _restore()


@contextmanager
def original_streams() -> Iterator[None]:
    """Put the streams back for a moment: objects that refer to sys.stdout itself can be pickled only by that name."""
    with _lock:
        taps = [tap for tap in _taps if getattr(sys, tap.name_in_sys) is tap]
        for tap in taps:
            setattr(sys, tap.name_in_sys, tap.stream)
        try:
            yield
        finally:
            for tap in taps:
                setattr(sys, tap.name_in_sys, tap)


def tap_streams(listener: Callable[[str], None]) -> None:
    """In one of Tenfold's own processes: call a function with everything that it prints from now on."""
    with _lock:
        if not _listeners:
            _install()
        _listeners.append(listener)


def _install() -> None:
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            tap = Tap(stream, name)
            _taps.append(tap)
            setattr(sys, name, tap)


def _restore() -> None:
    """Give the streams back, unless somebody else has replaced them since: then ours only pass text on."""
    for tap in _taps:
        if getattr(sys, tap.name_in_sys) is tap:
            setattr(sys, tap.name_in_sys, tap.stream)
    _taps.clear()


@contextmanager
def keeping_console(folder: Path) -> Iterator[ConsoleFile]:
    """Keep the output of this block in a run's folder."""
    console = ConsoleFile(folder / CONSOLE_FILE)
    try:
        with listening_to_prints(console.add):
            yield console
    finally:
        console.close()
