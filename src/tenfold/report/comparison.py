"""Runs side by side: what each setting gains, and what it costs."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, stdev
from typing import Any

from tenfold.experiment import FIELDS
from tenfold.report.compare import differing, repeats
from tenfold.report.words import NOTHING, setting, spread, storage
from tenfold.runs import Run

TRAINING = ("data", "compute", "wait", "communicate")


@dataclass(frozen=True)
class Spread:
    """A repeated measurement."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        """The mean; None of nothing."""
        return fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation; None for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Row:
    """One setting, over its repeats. All times were measured."""

    settings: dict[str, Any]
    """The fields in which the compared runs differ."""
    runs: tuple[int, ...]
    workers: int
    threads: int
    cores: int
    """Cores in use: workers x threads, as far as there are so many."""
    seconds: Spread
    accuracy: Spread
    loss: Spread
    bytes_per_worker: float
    shares: dict[str, float]
    """Of the training time: data, compute, wait, communicate."""
    speedup: float | None = None
    """T1 / Tn, against one worker with the same settings otherwise."""
    efficiency: float | None = None
    """Speedup for each core that is used more."""
    improvement: float | None = None
    """PI = (T1 - Tn) / T1 x 100."""
    gain: float = 100.0
    """Tslowest / Tn x 100."""


class Comparison:
    """Runs side by side, as a table, plots and files."""

    def __init__(self, runs: Sequence[Run], failed: dict[str, str] | None = None) -> None:
        self.runs = list(runs)
        self.failed = failed or {}
        """What could not be run, and why."""
        varied = [name for name in differing(self.runs) if name != "seed"]
        groups = [[run for run in group if run.seconds] for group in repeats(self.runs)]
        groups = [group for group in groups if group]
        slowest = max((fmean(_seconds(group)) for group in groups), default=0.0)
        self.rows = [_row(group, groups, varied, slowest) for group in groups]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text."""
        return [_record(row) for row in self.rows]

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        records = self.records()
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for record in records for key in record)))
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def to_json(self) -> str:
        """Return the rows, and what failed, as JSON."""
        return json.dumps({"rows": self.records(), "failed": self.failed}, indent=2)

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        columns, rows = self.cells()
        lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the table's columns and its rows as text."""
        told = ("workers", "threads")
        varied = [name for name in (self.rows[0].settings if self.rows else ()) if name not in told]
        columns = ["workers x threads", *(name.replace("_", " ") for name in varied), "training time", "speedup"]
        columns += ["efficiency", "PI", "gain", "accuracy", "sent", "compute / wait / talk"]
        rows = [
            [
                f"{row.workers} x {row.threads}",
                *(setting(row.settings[name]) for name in varied),
                spread("seconds", row.seconds.values),
                f"{row.speedup:.2f}" if row.speedup else NOTHING,
                f"{row.efficiency:.0%}" if row.efficiency else NOTHING,
                f"{row.improvement:.1f}%" if row.improvement is not None else NOTHING,
                f"{row.gain:.0f}%",
                spread("accuracy", row.accuracy.values),
                storage(row.bytes_per_worker) if row.bytes_per_worker else NOTHING,
                " / ".join(f"{row.shares.get(kind, 0.0):.0%}" for kind in ("compute", "wait", "communicate")),
            ]
            for row in self.rows
        ]
        return columns, rows

    def notes(self) -> list[str]:
        """Return what a reader of the table must know."""
        notes = [
            "training time is measured, without start, evaluation and saving; mean ± standard deviation",
            "sent: what one worker's messages amount to; then the shares of computing, waiting and communicating",
        ]
        if all(row.speedup is None for row in self.rows):
            notes.append("no speedup, as no run has one worker: add workers 1 to the comparison")
        else:
            notes.append("speedup = T1 / Tn; efficiency = speedup by core; PI = (T1 - Tn) / T1; gain = Tslowest / Tn")
        notes += [f"failed: {label}: {reason}" for label, reason in self.failed.items()]
        return notes

    def __rich__(self) -> Any:
        """Return the table as it is printed."""
        from rich.table import Table
        from rich.text import Text

        columns, rows = self.cells()
        table = Table(caption="\n".join(self.notes()), caption_justify="left", box=None, pad_edge=False)
        for column in columns:
            table.add_column(column, justify="left" if column in FIELDS else "right")
        for row in rows:
            table.add_row(*map(Text, row))
        return table

    def __str__(self) -> str:
        return self.to_markdown()


def _row(group: Sequence[Run], groups: Sequence[Sequence[Run]], varied: Sequence[str], slowest: float) -> Row:
    first, seconds = group[0], fmean(_seconds(group))
    flat = first.experiment.flat()
    totals = {kind: fmean(run.times.get(kind, 0.0) for run in group) for kind in TRAINING}
    whole = sum(totals.values()) or 1.0
    row = Row(
        settings={name: flat[name] for name in varied},
        runs=tuple(run.id for run in group),
        workers=first.result["workers"],
        threads=first.result["threads"],
        cores=_cores(first),
        seconds=Spread(tuple(_seconds(group))),
        accuracy=Spread(tuple(run.accuracy for run in group if run.accuracy is not None)),
        loss=Spread(tuple(run.loss for run in group if run.loss is not None)),
        bytes_per_worker=fmean(run.result.get("bytes_moved", 0) for run in group),
        shares={kind: total / whole for kind, total in totals.items()},
        gain=slowest / seconds * 100,
    )
    alone = _baseline(first, groups)
    if alone is None:
        return row
    single, cores = fmean(_seconds(alone)), _cores(alone[0])
    speedup = single / seconds
    return replace(
        row,
        speedup=speedup,
        efficiency=speedup * cores / row.cores,
        improvement=(single - seconds) / single * 100,
    )


def _baseline(run: Run, groups: Sequence[Sequence[Run]]) -> Sequence[Run] | None:
    """Return the runs with one worker and otherwise the same settings, as far as these matter to one worker."""
    ours = _undivided(run)
    return next((group for group in groups if group[0].result["workers"] == 1 and _undivided(group[0]) == ours), None)


def _undivided(run: Run) -> dict[str, Any]:
    told = {name for name, (section, _) in FIELDS.items() if section == "division"}
    told |= {"name", "seed", "threads", "pin", "engine", "transport"}
    return {name: value for name, value in run.experiment.flat().items() if name not in told}


def _cores(run: Run) -> int:
    asked = int(run.result["workers"] * run.result["threads"])
    return min(asked, run.facts.get("machine", {}).get("cpu", {}).get("budget") or asked)


def _seconds(group: Sequence[Run]) -> list[float]:
    return [run.seconds for run in group if run.seconds]


def _record(row: Row) -> dict[str, Any]:
    record = dict(row.settings)
    for name in (one.name for one in fields(row) if one.name not in ("settings", "shares", "runs")):
        value = getattr(row, name)
        if isinstance(value, Spread):
            record |= {name: value.mean, f"{name}_deviation": value.deviation}
        else:
            record[name] = value
    record |= {f"share_{kind}": share for kind, share in row.shares.items()}
    return record | {"runs": " ".join(map(str, row.runs))}
