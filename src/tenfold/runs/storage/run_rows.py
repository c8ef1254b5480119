"""Rows of the run store as dictionaries; what is damaged in a row spoils neither the rest of it nor other rows."""

import json
import math
import re
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenfold.runs.events import Event
from tenfold.runs.storage import entries
from tenfold.runs.storage.claim import is_claimed
from tenfold.runs.storage.entries import sound_entries
from tenfold.runs.storage.event_rows import from_row

Row = dict[str, Any]
"""A run: id, title, kind, status, created, ended, tags, note; where it was read whole, experiment, facts, result,
error and problems as well."""
LISTED = "id, title, kind, status, created, ended"
COLUMNS = f"{LISTED}, error, experiment, facts, result, host, pid"
DECODED = ("experiment", "facts", "result")
TYPES = {"facts": entries.FACTS, "result": entries.RESULT}


def known(folder: Path, row: tuple[Any, ...]) -> Row:
    """Return a run as a dictionary; one whose process is gone without having said how it ended is interrupted."""
    record: Row = dict(zip(COLUMNS.split(", "), row, strict=False))
    for name in ("title", "kind", "status", "error", "host"):
        if name in record:
            record[name] = str(record[name])
    record["created"] = date(record["created"]) or 0.0
    record["ended"] = date(record["ended"])
    if "result" in record:
        record["problems"] = []
        for name in DECODED:
            record[name], damaged = decoded(record[name])
            if damaged:
                record["problems"].append(f"its {name} {'are' if name == 'facts' else 'is'} damaged")
            record[name], wrong = sound_entries(record[name], TYPES.get(name, {}))
            record["problems"] += [f"{entry} in its {name} is damaged" for entry in wrong]
    if record["status"] == "running" and not is_claimed(path_of(folder, record["id"], record["title"])):
        record["status"] = "interrupted"
    return record


def path_of(folder: Path, run: int, title: str) -> Path:
    """Return the folder of a run's artifacts."""
    return folder / f"{run}-{re.sub(r'[^A-Za-z0-9._-]+', '_', title)[:60]}"


def decoded(text: Any) -> tuple[dict[str, Any], bool]:
    """Return what a column holds, and whether it is damaged, in which case that is nothing."""
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return {}, True
    return (found, False) if isinstance(found, dict) else ({}, True)


def number(value: Any) -> float | None:
    """Return a number, None where the value is none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def date(value: Any) -> float | None:
    """Return seconds since 1970 that a calendar can show; None where the value is nothing of the kind."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds < 1e11 else None


def event_of(body: Any) -> Event | None:
    """Return the event that a row holds; None where it is damaged or only a newer version knows it."""
    row, damaged = decoded(body)
    if not damaged:
        with suppress(ValueError):
            return from_row(row)
    return None


def time_of(body: Any) -> float:
    """Return when an event happened; 0 where that cannot be read."""
    return number(decoded(body)[0].get("at")) or 0.0


def as_text(content: bytes) -> str:
    """Return text of the store, with a mark in the place of what is not UTF-8."""
    return content.decode(errors="replace")


def salvaged(connection: sqlite3.Connection, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the rows of a query by their ids; around a damaged place in the file, those from both of its sides."""
    ends: list[list[tuple[Any, ...]]] = []
    for order in ("ASC", "DESC"):
        rows: list[tuple[Any, ...]] = []
        try:
            for row in connection.execute(f"{query} ORDER BY id {order}", values):
                rows.append(row)  # noqa: PERF402 - what came before an error is kept
        except sqlite3.DatabaseError:
            ends.append(rows)
            if order == "DESC" and not any(ends):
                raise
        else:
            return rows if order == "ASC" else rows[::-1]
    return [*ends[0], *reversed(ends[1])]
