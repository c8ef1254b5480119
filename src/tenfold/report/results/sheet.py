"""Settings side by side: one table for a terminal, a notebook, a page, a spreadsheet and other programs."""

import csv
import io
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks
from tenfold.report.export import finite
from tenfold.report.formatting import OF_FOLDS
from tenfold.report.rows import Row, Spread
from tenfold.report.tables import columns, crosstable
from tenfold.report.tables.columns import Column
from tenfold.report.tables.crosstable import Crosstable
from tenfold.runs.store import FOLDED

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

NUMBERS = (
    *("workers", "threads", "cores", "seconds", "clock", "calibrated", "accuracy", "loss", "bytes_per_worker"),
    *("speedup", "speedup_deviation", "efficiency", "improvement", "gain"),
    *("factor_against_cpu", "factor_against_cpu_deviation"),
)
WAYS = ((2, False), (2, True), (1, True))
"""How a table is printed, the first that fits: spaces between columns, and whether their names go over lines."""


class Sheet(ABC):
    """Rows of settings, shown in every form."""

    rows: list[Row]

    @abstractmethod
    def report(self, path: str | Path) -> Path:
        """Write a page with the table and plots, and return where it is."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return what a reader of the table must know."""

    def columns(self) -> list[Column]:
        """Return the columns of the table."""
        return columns.of(self.rows)

    def crosstables(self) -> list[Crosstable]:
        """Return folds against workers, where both vary."""
        return crosstable.of(self.rows)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text."""
        return [_record(row) for row in self.rows]

    def besides(self) -> dict[str, Any]:
        """Return what else belongs into JSON."""
        return {}

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
        """Return the rows, and what else is to be known, as JSON."""
        return json.dumps({"rows": finite(self.records()), **self.besides()}, indent=2, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return the table as Markdown; where folds and workers vary, also one against the other."""
        tables = [_markdown(*self.cells())]
        tables += [f"{one.title}\n\n{_markdown(one.columns, one.rows)}" for one in self.crosstables()]
        return "\n".join(tables)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return the names of the table's columns, and its rows as text."""
        shown = self.columns()
        return [one.name for one in shown], [list(row) for row in zip(*(one.cells for one in shown), strict=True)]

    def times_told(self) -> list[str]:
        """Return who told the times, and what stands beside them."""
        clock = clocks.of(self.rows)
        told = clock if clock in (clocks.MEASURED, clocks.PREDICTED) else "measured or predicted, as the clock says"
        notes = [f"times are {told}, without start, evaluation and saving"]
        if any(len(row.runs) > 1 for row in self.rows):
            notes[0] += "; mean ± standard deviation over the repeats"
        if any(run.kind == FOLDED for row in self.rows for run in row.runs):
            notes.append(OF_FOLDS)
        if any(row.interval for row in self.rows):
            notes.append(f"predicted {clocks.INTERVAL}")
        if any(not row.calibrated for row in self.rows):
            notes.append(clocks.UNCALIBRATED)
        return notes

    def factors_told(self) -> list[str]:
        """Return what the factor of a device is, or what it needs; nothing where all is done on the same one."""
        if any(row.factor_against_cpu is not None for row in self.rows):
            return ["factor against cpu (× cpu) = Tcpu/T, with the same settings otherwise"]
        if any("device" in row.settings for row in self.rows):
            return ["no factor against cpu, as nothing was done there with the same settings: add device cpu"]
        return []

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        shown, left_out, width = self.columns(), [], options.max_width
        fitting = [way for way in WAYS if columns.width(shown, *way) <= width]
        gap, broken = (fitting or WAYS[-1:])[0]
        for name in columns.DISPENSABLE:
            if columns.width(shown, gap, broken) > width and any(one.name == name for one in shown):
                shown = [one for one in shown if one.name != name]
                left_out.append(name)
        yield _table(shown, gap, broken)
        yield Text()
        for one in self.crosstables():
            yield Text(one.title, style="bold")
            yield _table(_columns(one), 2, False)
            yield Text()
        notes = [note for note in self.notes() if "sent" not in left_out or not note.startswith("sent: ")]
        if any(one.short == columns.SHARES for one in shown):
            before = next((at for at, note in enumerate(notes) if note.startswith(("sent: ", "failed: "))), len(notes))
            notes.insert(before, f"{columns.SHARES}: computing, waiting and talking (communicating)")
        if left_out:
            notes.append(f"left out, as the terminal is narrow: {', '.join(left_out)}; --format csv has all")
        for note in notes:
            yield Text(note, style="dim")

    def __str__(self) -> str:
        from tenfold.report.live.display import printed

        return printed(self, shutil.get_terminal_size((120, 24)).columns)

    def _repr_html_(self) -> str:
        from markupsafe import Markup

        names, rows = self.cells()
        lines = [Markup("<tr>") + Markup("").join(Markup("<th>{}</th>").format(name) for name in names)]
        lines += [Markup("<tr>") + Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row) for row in rows]
        notes = Markup("<br>").join(self.notes())
        return Markup("<table>{}</table><p>{}</p>").format(Markup("\n").join(lines), notes)


def _table(shown: Sequence[Column], gap: int, broken: bool) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for one in shown:
        table.add_column(Text(one.heading(broken)), justify="left" if one.words else "right", vertical="bottom")
    for row in zip(*(one.cells for one in shown), strict=True):
        table.add_row(*map(Text, row))
    return table


def _columns(crossed: Crosstable) -> list[Column]:
    cells = zip(*crossed.rows, strict=True)
    return [Column(name, name, one, words=not name) for name, one in zip(crossed.columns, cells, strict=True)]


def _markdown(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(_escaped(row)) + " |" for row in rows]) + "\n"


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
    if row.interval is not None:
        record |= {"seconds_low": row.interval[0], "seconds_high": row.interval[1]}
    record |= {f"share_{kind}": share for kind, share in row.shares.items()}
    return record | ({"runs": " ".join(str(run.id) for run in row.runs)} if row.runs else {})
