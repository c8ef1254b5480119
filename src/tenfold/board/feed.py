"""The messages to an open page of the board: new rows, points and lines of the console."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from tenfold.board.pages import Pages, RunList, Watch, progress_of
from tenfold.common.files import json_text, open_regular
from tenfold.errors import TenfoldError
from tenfold.executors.submitting import JobUnderWay, jobs_under_way
from tenfold.runs.recorder import CONSOLE_FILE, CONSOLE_LIMIT
from tenfold.runs.store import Follower


@dataclass(frozen=True)
class ConsolePosition:
    """The position in a run's console output up to which a page has received it."""

    inode: int
    """Identifies the file: a file that has grown too long is replaced by its last part."""
    size: int
    """Bytes of complete lines."""
    written: int
    """The time of the last write, in nanoseconds."""


def console_since(folder: Path, before: ConsolePosition | None) -> tuple[dict[str, Any] | None, ConsolePosition | None]:
    """Return the lines after a position, including an unfinished one (None if nothing is new), and the new position.

    "again" means that they replace the lines on the page.
    """
    try:
        with open_regular(folder / CONSOLE_FILE) as file:
            state = os.fstat(file.fileno())
            if before is not None and (before.inode, before.written) == (state.st_ino, state.st_mtime_ns):
                return None, before
            again = before is None or before.inode != state.st_ino or before.size > state.st_size
            start = max(0, state.st_size - CONSOLE_LIMIT) if again or before is None else before.size
            file.seek(start)
            content = file.read(2 * CONSOLE_LIMIT)
    except OSError:  # it has printed nothing yet, or is gone
        return None, before
    end = content.rfind(b"\n") + 1
    first = content.find(b"\n") + 1 if again and start else 0
    lines, rest = (part.decode(errors="replace") for part in (content[first:end], content[end:]))
    return {"lines": lines, "rest": rest, "again": again}, ConsolePosition(state.st_ino, start + end, state.st_mtime_ns)


TICK_SECONDS = 0.5
JOBS_SECONDS = 2.0
KEEP_ALIVE_TICKS = 20
MOST_FOLLOWED = 64
INSTANCE = secrets.token_hex(4)
"""Distinguishes the versions of this server's list from those of an earlier server."""


@dataclass
class Position:
    """The state of a page: a version of the list of runs, and a position in the events of each run it shows."""

    version: int | None = None
    runs: dict[int, str] = field(default_factory=dict)
    shown: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """The status and the number of stages of each run when its parts were rendered last."""
    with_parts: bool = False
    console: dict[int, ConsolePosition | None] = field(default_factory=dict)
    """The page's position in each run's console output."""
    only: int | None = None
    """The only run whose row the page shows; None for all."""
    jobs: list[JobUnderWay] | None = None
    """The jobs under way that the page shows; None before it has received any."""

    @classmethod
    def read(
        cls,
        version: str | None,
        runs: str | None,
        parts: str | None,
        only: str | None = None,
        running: str | None = None,
    ) -> "Position":
        """Return the position that a page names in its address; what cannot be read is ignored.

        `running` names the runs that were running when the page heard of them last; they may have ended since.
        """
        number = None
        if version is not None:
            instance, _, digits = version.partition(":")
            number = int(digits) if instance == INSTANCE and digits.isdecimal() else 0
        read = {}
        for word in (runs or "").split(",")[:MOST_FOLLOWED]:
            run, _, place = word.partition("@")
            cursor, _, repeated = place.partition(".")
            if run.isdecimal() and cursor.isdecimal() and repeated.isdecimal():
                read[int(run)] = place
        single = int(only) if only is not None and only.isdecimal() else None
        before = {int(word): ("running", -1) for word in (running or "").split(",") if word.isdecimal()}
        shown: dict[int, tuple[Any, ...]] = {run: stage for run, stage in before.items() if run in read}
        return cls(number, read, shown, with_parts=parts == "1", only=single)

    def __str__(self) -> str:
        runs = ",".join(f"{run}@{place}" for run, place in self.runs.items())
        return f"{'' if self.version is None else f'{INSTANCE}:{self.version}'}|{runs}"


class Feed:
    """Finds the news for a page."""

    def __init__(self, runs: RunList, watch: Watch, pages: Pages, follower: Follower) -> None:
        self.runs = runs
        self.watch = watch
        self.pages = pages
        self.follower = follower
        self._jobs: tuple[float, list[JobUnderWay]] = (-JOBS_SECONDS, [])
        """The time of the last lookup, and the jobs under way."""
        self.stopping: Callable[[], bool] = lambda: False
        """Returns whether the server is shutting down, which waits for its pages."""

    async def messages(self, position: Position) -> AsyncIterator[str]:
        """Yield messages for as long as the page listens."""
        yield "retry: 1000\n\n"
        quiet = 0
        while not self.stopping():
            news = await run_in_threadpool(self.news, position)
            if news:
                quiet = 0
                yield f"id: {position}\ndata: {json_line(news)}\n\n"
            else:
                quiet += 1
                if quiet % KEEP_ALIVE_TICKS == 0:
                    yield ": still here\n\n"
            await asyncio.sleep(TICK_SECONDS)

    def news(self, position: Position) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        self.runs.update()
        if position.version is not None:
            listed = self.runs.since(position.version)
            if listed["version"] != position.version:
                position.version = listed["version"]
                rows = [row for row in listed["rows"] if position.only in (None, row["id"])]
                if rows or listed["gone"] or position.only is None:
                    answer["list"] = {
                        "rows": rows,
                        "gone": listed["gone"],
                        "version": f"{INSTANCE}:{listed['version']}",
                    }
        if position.version is not None and position.only is None:
            jobs = self.jobs()
            if jobs != position.jobs:
                position.jobs = jobs
                answer["jobs"] = [asdict(job) for job in jobs]
        runs = {}
        for run in position.runs:
            try:
                news = self._run_news(run, position)
            except TenfoldError as error:
                news = {"gone": str(error)}
            if news:
                runs[run] = news
        if runs:
            answer["runs"] = runs
        return answer

    def jobs(self) -> list[JobUnderWay]:
        """Return the jobs of executors that are under way, looked up every few seconds."""
        looked, jobs = self._jobs
        if time.monotonic() - looked > JOBS_SECONDS:
            jobs = jobs_under_way(self.runs.store.folder)
            self._jobs = (time.monotonic(), jobs)
        return jobs

    def _run_news(self, number: int, position: Position) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        with self.watch.measurements(number) as watched:
            new = watched.since(position.runs[number])
            position.runs[number] = watched.position
        if new is not None:
            answer |= new
        run = self.watch.open(number)
        now = (run.status, len(self.follower.stages(number)))
        before = position.shown.get(number)
        if run.status == "running":
            progress = progress_of(run, self.follower)
            if new is not None or before is None:
                answer["progress"] = progress
        if now != before and (before is not None or run.status == "running"):
            answer["status"] = run.status
            if position.with_parts:
                several = len(position.runs) > 1
                numbers = list(position.runs)
                answer["parts"] = self.pages.comparison_parts(numbers) if several else self.pages.run_parts(number)
        position.shown[number] = now
        was_running = "running" in (run.status, before[0] if before else "") or number in position.console
        if position.with_parts and len(position.runs) == 1 and was_running:
            printed, position.console[number] = console_since(run.path, position.console.get(number))
            if printed is not None:
                answer["console"] = printed
        return answer


def json_line(value: Any) -> str:
    return json_text(value, separators=(",", ":"), default=str)
