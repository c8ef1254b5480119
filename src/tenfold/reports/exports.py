"""Runs and tables as files: CSV, JSON and traces."""

import csv
import html
import io
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tenfold.common.files import json_text
from tenfold.common.imports import optional_module
from tenfold.reports.run_tables import name_of
from tenfold.reports.tables import TextTable
from tenfold.runs import Run
from tenfold.runs.run import values_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""Leading characters that make a spreadsheet read text as a formula; such text gets an apostrophe in front."""


def write_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Return a table with a header as CSV; by default with all columns of its rows."""
    text = io.StringIO()
    names = column_names(rows) if columns is None else columns
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writerow({name: as_cell(name) for name in names})
    writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def as_cell(value: Any) -> Any:
    """Return a value for a cell: numbers unchanged, text escaped so that it is never read as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else value


class Result(ABC):
    """The base of results in every form: terminal, notebook, page, CSV, JSON and Markdown."""

    words: ClassVar[int] = 1
    """The number of text columns at the left of the table."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text."""

    @abstractmethod
    def text_table(self) -> TextTable:
        """Return the rows as formatted text."""

    @abstractmethod
    def lines(self) -> list[str]:
        """Return the lines below the table."""

    @abstractmethod
    def report(self, path: str | Path) -> Path:
        """Write an HTML report with the table and plots, and return its path."""

    def shown_table(self) -> TextTable:
        """Return the table that a terminal or a notebook shows."""
        return self.text_table()

    def extra_json(self) -> dict[str, Any]:
        """Return additional content for the JSON output."""
        return {}

    def to_csv(self) -> str:
        return write_csv(self.records())

    def to_json(self) -> str:
        """Return the rows and additional content as JSON."""
        return json_text({"rows": self.records(), **self.extra_json()}, indent=2) + "\n"

    def to_markdown(self) -> str:
        return self.text_table().to_markdown()

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        yield from (self.shown_table().to_rich(self.words), Text())
        for line in self.lines():
            yield Text(line, style="dim")

    def __str__(self) -> str:
        from tenfold.reports.display import as_plain_text

        return as_plain_text(self, shutil.get_terminal_size((120, 24)).columns)

    def _repr_html_(self) -> str:
        table, lines = self.shown_table(), "<br>".join(html.escape(line) for line in self.lines())
        return f"{values_table(table.columns, table.rows)}<p>{lines}</p>"


def predictions_to_csv(
    predicted: Any, classes: Sequence[str] = (), *, samples: Sequence[str] | None = None, probabilities: bool = False
) -> str:
    """Return an array of predictions as CSV, one row per sample: its number, and its class, values or probabilities.

    Known names of samples and classes are used.
    """
    width = predicted[0].size if len(predicted) else 0
    flat = predicted.reshape(len(predicted), -1)
    word = "probability" if probabilities else "class" if predicted.dtype.kind in "iu" else "prediction"
    ends = classes if probabilities and len(classes) == width else range(width)
    names = [word] if width == 1 else [f"{word}_{end}" for end in ends]
    named = bool(classes) and word == "class"
    rows = [
        {"sample": sample} | dict(zip(names, [classes[item] for item in row] if named else row, strict=True))
        for sample, row in zip(samples or range(len(flat)), flat.tolist(), strict=True)
    ]
    return write_csv(rows, ("sample", *names))


Rows = list[dict[str, Any]]
COLUMNS = ("run", "title", "part", "metric", "epoch", "step", "seconds", "clock", "value")
METRICS = "metrics"


def to_csv(runs: Sequence[Run], table: str = METRICS) -> str:
    return write_csv(_rows(runs, table), COLUMNS if table == METRICS else None)


def to_json(runs: Sequence[Run], table: str | None = None) -> str:
    """Return a table as a JSON list of objects; without a table, all data of the runs except their spans.

    Without a table, a run's `measurements` are columns of equal length, suitable for `pandas.DataFrame`. NaN and
    infinity become null.
    """
    if table is not None:
        return json_text(_rows(runs, table), ensure_ascii=False, indent=1)
    listed = [
        {
            **run.summary(),
            "ended": run.ended,
            "metadata": run.metadata,
            "history": run.history,
            "measurements": _columns(run),
        }
        for run in runs
    ]
    return json_text(listed, ensure_ascii=False, separators=(",", ":"))


def to_parquet(runs: Sequence[Run], table: str = METRICS) -> bytes:
    """Return a table as a Parquet file."""
    arrow = optional_module("pyarrow", "a Parquet file", "parquet")
    parquet = optional_module("pyarrow.parquet", "a Parquet file", "parquet")
    rows = _rows(runs, table)
    columns = {name: _of_one_type([row.get(name) for row in rows]) for name in column_names(rows)}
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


def measurement_rows(run: Run) -> Rows:
    """Return one flat row for each measurement, in order; epochs count from 1, `seconds` is the training time so far.

    `clock` is "measured" or "predicted".
    """
    return [
        {
            "run": run.id,
            "title": run.title,
            "part": metric.part,
            "metric": metric.name,
            "epoch": metric.epoch + 1,
            "step": metric.step,
            "seconds": round(metric.seconds, 6),
            "clock": run.clock,
            "value": metric.value,
        }
        for metric in run.measurements()
    ]


def _metric_rows(run: Run) -> Rows:
    """Return the measurements of a run; for a cross-validation, the final scores of its folds."""
    return measurement_rows(run) or [
        {
            "run": fold["run"],
            "title": f"{run.title}, {name_of(fold)}",
            "part": part,
            "metric": name,
            "epoch": None,
            "step": None,
            "seconds": fold["seconds"],
            "clock": run.clock,
            "value": value,
        }
        for fold in run.result.get("folds") or []
        for part, metrics in fold["metrics"].items()
        for name, value in metrics.items()
    ]


def _epoch_rows(run: Run) -> Rows:
    """Return one row for each epoch: step, training time so far, training loss, and metrics."""
    return [{"run": run.id, "title": run.title} | row | {"clock": run.clock} for row in run.history]


def _span_rows(run: Run) -> Rows:
    """Return one row for each span of a worker's time; `at` is its start time."""
    return [
        {
            "run": run.id,
            "worker": span.worker,
            "kind": span.kind,
            "epoch": span.epoch + 1,
            "at": span.at,
            "seconds": span.seconds,
            "count": span.count,
            "clock": run.clock,
        }
        for span in run.spans()
    ]


def _result_row(run: Run) -> Rows:
    """Return one row with a run's status, result and settings; nested values are named a.b, lists are JSON."""
    flat: dict[str, Any] = {"run": run.id}
    summary = run.summary()
    for key in ("title", "kind", "status", "error", "created", "tags", "note"):
        flat |= _flattened(key, summary[key])
    for key, value in run.result.items():
        flat |= _flattened(key, value)
    return [flat | _flattened("clock", run.clock) | _flattened("experiment", summary["experiment"])]


TABLES: dict[str, Callable[[Run], Rows]] = {
    METRICS: _metric_rows,
    "epochs": _epoch_rows,
    "spans": _span_rows,
    "result": _result_row,
}
"""The tables that can be exported, by name."""


def _rows(runs: Sequence[Run], table: str) -> Rows:
    return [row for run in runs for row in TABLES[table](run)]


def _columns(run: Run) -> dict[str, list[Any]]:
    rows = measurement_rows(run)
    return {name: [row[name] for row in rows] for name in COLUMNS[2:]}


def _of_one_type(values: list[Any]) -> list[Any]:
    """Convert the values of a Parquet column to one type: numbers, booleans, or else text."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in present):
        return values
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        whole = all(isinstance(value, int) for value in present)
        return values if whole else [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _flattened(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {
            name: cell for inner, item in value.items() for name, cell in _flattened(f"{key}.{inner}", item).items()
        }
    return {key: json_text(value, ensure_ascii=False) if isinstance(value, list | tuple) else value}
