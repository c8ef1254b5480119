"""The output of a run, kept with it: the last part, as plain text in its folder."""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from tenfold.common.files import open_regular, open_to_update, write_atomically

FILE = "console.txt"
LIMIT = 200_000
"""How many bytes are shown; a file that has grown to twice as many is cut to its last part."""
WRITE_SECONDS = 0.5
"""The least number of seconds between two writes to the file."""
CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1f\x7f]")
"""Escape sequences of terminals (colors, cursor movements), and other control characters."""


class LineBuffer:
    """Turns a program's output into the lines that remain on a terminal."""

    def __init__(self) -> None:
        self._rest = ""

    def add(self, text: str) -> list[str]:
        """Return the lines that this text completes."""
        *lines, rest = (self._rest + text).split("\n")
        self._rest = (_last_state(rest) + "\r" * rest.endswith("\r"))[-LIMIT:]
        return [CODES.sub("", _last_state(line)) for line in lines]

    @property
    def rest(self) -> str:
        """The line that is not complete yet, such as a progress bar."""
        return CODES.sub("", _last_state(self._rest))


def _last_state(line: str) -> str:
    """Return the visible text of a line that was written over from its start, as progress bars do."""
    return line.rstrip("\r").rpartition("\r")[2]


class ConsoleFile:
    """Writes a run's output to a file, a few times per second; one that cannot be read or written is left alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._own, self._pid = LineBuffer(), os.getpid()
        self._workers: dict[int, LineBuffer] = {}
        self._changed = self._failed = False
        self._size, ends_line = self._end()
        """Bytes of the complete lines in the file; a line that is not complete follows them."""
        self._waiting: list[str] = [] if ends_line else [""]  # ends a line that was cut off
        self._written = time.monotonic()
        self._lock = threading.RLock()

    def add(self, text: str, worker: int | None = None) -> None:
        """Keep a text that was printed here, or by a worker process, which its lines then name."""
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
            lines = "".join(f"{line}\n" for line in self._waiting).encode(errors="replace")[-2 * LIMIT :]
            try:
                with open_to_update(self.path) as file:
                    file.seek(self._size)
                    file.write(lines)
                    self._size = file.tell()
                    file.write(self._own.rest.encode(errors="replace"))
                    file.truncate()
                if self._size > 2 * LIMIT:
                    self._cut()
            except OSError:  # a full disk: the run matters more than its output
                self._failed = True
            self._waiting, self._changed = [], False

    def _end(self) -> tuple[int, bool]:
        """Return the bytes that the file has from before, for a resumed run, and whether its last line is whole."""
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
        """Replace the file by one with its last part."""
        kept = _read_tail(self.path, self._size)
        write_atomically(self.path, kept)
        self._size = len(kept)

    def close(self) -> None:
        """Write everything, with lines that were not completed."""
        with self._lock:
            rests = [(f"[worker {worker}] ", lines.rest) for worker, lines in sorted(self._workers.items())]
            self._waiting += [f"{name}{rest}" for name, rest in [*rests, ("", self._own.rest)] if rest]
            self._own, self._workers = LineBuffer(), {}
            self._changed = self._changed or bool(self._waiting)
            self.write()


def read_console(folder: Path) -> str:
    """Return the last part of a run's output; empty where it printed nothing or its folder is gone."""
    with suppress(OSError):
        return _read_tail(folder / FILE).decode(errors="replace")
    return ""


def _read_tail(path: Path, end: int | None = None) -> bytes:
    """Return the last lines before a place in a file, by default its end, that have at most LIMIT bytes."""
    with open_regular(path) as file:
        end = file.seek(0, os.SEEK_END) if end is None else end
        file.seek(max(0, end - LIMIT))
        kept = file.read(min(end, LIMIT))
    return kept if end <= LIMIT else kept[kept.find(b"\n") + 1 :]


class Tap:
    """Stands in for sys.stdout or sys.stderr: passes everything on to it, and written text also to the listeners."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.stream = stream
        self.name_in_sys = name

    def write(self, text: str) -> int:
        """Write to the stream, then call the listeners.

        A tap that was taken out, but that somebody's own stream still holds, only passes on: there is another by now.
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
    """Let the runs that are being recorded keep a text that did not come through sys.stdout or sys.stderr."""
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
    console = ConsoleFile(folder / FILE)
    try:
        with listening_to_prints(console.add):
            yield console
    finally:
        console.close()
