"""Runs side by side: what each setting gains, and what it costs."""

import csv
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.report import columns
from tenfold.report.export import finite
from tenfold.report.rows import Row, Spread, rows_of
from tenfold.report.words import several
from tenfold.runs import Run

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

__all__ = ["Comparison", "Row", "Spread"]

NUMBERS = (
    *("workers", "threads", "cores", "seconds", "accuracy", "loss", "bytes_per_worker"),
    *("speedup", "speedup_deviation", "efficiency", "improvement", "gain"),
)
WAYS = ((2, False), (2, True), (1, True))
"""How a table is printed, the first that fits: spaces between columns, and whether their names go over lines."""


class Comparison:
    """Runs side by side, one row a setting: as a table, as files, and as a page with plots."""

    def __init__(self, runs: Sequence[Run], failed: dict[str, str] | None = None) -> None:
        self.runs = list(runs)
        self.failed = failed or {}
        """What could not be run, and why."""
        self.rows = rows_of(self.runs)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text."""
        return [_record(row) for row in self.rows]

    def to_csv(self) -> str:
        """Return the rows as CSV."""
        records = self.records()
        text = io.StringIO()
        names = list(dict.fromkeys(key for record in records for key in record))
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def to_json(self) -> str:
        """Return the rows, and what failed, as JSON."""
        return json.dumps({"rows": finite(self.records()), "failed": self.failed}, indent=2, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        names, rows = self.cells()
        lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        return "\n".join(lines + ["| " + " | ".join(_escaped(row)) + " |" for row in rows]) + "\n"

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the names of the table's columns, and its rows as text."""
        shown = columns.of(self.rows)
        return [one.name for one in shown], [list(row) for row in zip(*(one.cells for one in shown), strict=True)]

    def notes(self) -> list[str]:
        """Return what a reader of the table must know."""
        notes = ["times are measured, without start, evaluation and saving"]
        if any(len(row.runs) > 1 for row in self.rows):
            notes[0] += "; mean ± standard deviation over the repeats"
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            notes.append("speedup = T1/Tn; efficiency = speedup by core; PI = (T1-Tn)/T1; gain = Tslowest/Tn")
        elif any(row.workers > 1 for row in self.rows):
            notes.append("no speedup, as no run has one worker: add workers 1 to the comparison")
        else:
            notes.append("gain = Tslowest/Tn")
        if any(row.bytes_per_worker for row in self.rows):
            notes.append("sent: what the messages of one worker amount to in a run")
        return notes + [f"failed: {line}" for line in self.failures()]

    def failures(self) -> list[str]:
        """Return what could not be run and why, one line a reason."""
        reasons: dict[str, list[str]] = {}
        for label, reason in self.failed.items():
            reasons.setdefault(reason, []).append(label)
        return [f"{' | '.join(labels)}: {reason}" for reason, labels in reasons.items()]

    def report(self, path: str | Path) -> Path:
        """Write a page with the table and plots, and return where it is."""
        from tenfold.report.html import write

        return write(self, path)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        shown, left_out, width = columns.of(self.rows), [], options.max_width
        fitting = [way for way in WAYS if columns.width(shown, *way) <= width]
        gap, broken = (fitting or WAYS[-1:])[0]
        for name in columns.DISPENSABLE:
            if columns.width(shown, gap, broken) > width and any(one.name == name for one in shown):
                shown = [one for one in shown if one.name != name]
                left_out.append(name)
        yield _table(shown, gap, broken)
        yield Text()
        notes = [note for note in self.notes() if "sent" not in left_out or not note.startswith("sent: ")]
        if any(one.short == columns.SHARES for one in shown):
            notes.insert(2, f"{columns.SHARES}: computing, waiting and talking (communicating)")
        if left_out:
            notes.append(f"left out, as the terminal is narrow: {', '.join(left_out)}; --format csv has all")
        for note in notes:
            yield Text(note, style="dim")

    def __str__(self) -> str:
        from rich.console import Console

        size = shutil.get_terminal_size((120, 24))
        console = Console(file=io.StringIO(), width=size.columns, color_system=None)
        console.print(self)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<Comparison of {several(len(self.rows), 'setting')} in {several(len(self.runs), 'run')}>"

    def _repr_html_(self) -> str:
        from markupsafe import Markup

        names, rows = self.cells()
        lines = [Markup("<tr>") + Markup("").join(Markup("<th>{}</th>").format(name) for name in names)]
        lines += [Markup("<tr>") + Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row) for row in rows]
        notes = Markup("<br>").join(self.notes())
        return Markup("<table>{}</table><p>{}</p>").format(Markup("\n").join(lines), notes)


def _table(shown: Sequence[columns.Column], gap: int, broken: bool) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for one in shown:
        table.add_column(Text(one.heading(broken)), justify="left" if one.words else "right", vertical="bottom")
    for row in zip(*(one.cells for one in shown), strict=True):
        table.add_row(*map(Text, row))
    return table


def _escaped(row: Sequence[str]) -> list[str]:
    return [cell.replace("|", "\\|") for cell in row]


def _record(row: Row) -> dict[str, Any]:
    numbers: dict[str, Any] = {name: getattr(row, name) for name in NUMBERS}
    numbers |= {name: spread for name, spread in row.metrics.items() if name not in numbers}
    record: dict[str, Any] = {}
    for name, value in row.settings.items():
        taken = name in numbers and name not in ("workers", "threads")
        record[f"{name}_setting" if taken else name] = value
    for name, value in numbers.items():
        if isinstance(value, Spread):
            record |= {name: value.mean, f"{name}_deviation": value.deviation}
        else:
            record[name] = value
    record |= {f"share_{kind}": share for kind, share in row.shares.items()}
    return record | {"runs": " ".join(str(run.id) for run in row.runs)}
