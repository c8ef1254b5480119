"""The records of runs as flat tables, for CSV, JSON and Parquet files."""

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from tenfold.common.imports import optional_module
from tenfold.common.json_values import replace_nonfinite
from tenfold.report.exports.csv_table import write_csv
from tenfold.report.exports.export import measurement_rows
from tenfold.runs import Run

Rows = list[dict[str, Any]]


def epoch_rows(run: Run) -> Rows:
    """Return one row for each epoch: step, training time so far, training loss, and what was measured."""
    return [{"run": run.id, "title": run.title} | row | {"clock": run.clock} for row in run.history]


def span_rows(run: Run) -> Rows:
    """Return one row for each span of a worker's time; `at` is when it began."""
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


def result_rows(run: Run) -> Rows:
    """Return one row: how the run ended, its result and its settings; what is nested is named a.b, lists are JSON."""
    flat: dict[str, Any] = {"run": run.id}
    summary = run.summary()
    for key in ("title", "kind", "status", "error", "created", "tags", "note"):
        flat |= _flattened(key, summary[key])
    for key, value in run.result.items():
        flat |= _flattened(key, value)
    return [flat | _flattened("clock", run.clock) | _flattened("experiment", summary["experiment"])]


TABLES: dict[str, Callable[[Run], Rows]] = {
    "metrics": measurement_rows,
    "epochs": epoch_rows,
    "spans": span_rows,
    "result": result_rows,
}
"""The tables that can be exported, by name."""


def collect_rows(runs: Sequence[Run], table: str) -> Rows:
    """Return the rows of one table for all runs."""
    return [row for run in runs for row in TABLES[table](run)]


def columns_of(rows: Rows) -> list[str]:
    """Return every column that a row has, in the order in which they come up."""
    return list(dict.fromkeys(name for row in rows for name in row))


def rows_to_csv(rows: Rows) -> str:
    """Return rows as CSV with a header."""
    return write_csv(columns_of(rows), rows)


def rows_to_json(rows: Rows) -> str:
    """Return rows as a JSON list of objects; NaN and infinity become null."""
    return json.dumps(replace_nonfinite(rows), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def rows_to_parquet(rows: Rows) -> bytes:
    """Return rows as a Parquet file, which pandas, Polars, DuckDB and R read."""
    arrow = optional_module("pyarrow", "a Parquet file", "parquet")
    parquet = optional_module("pyarrow.parquet", "a Parquet file", "parquet")
    columns = {name: _column([row.get(name) for row in rows]) for name in columns_of(rows)}
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type, as a Parquet column has: numbers, booleans, or else text."""
    present = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in present):
        return values
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        whole = all(isinstance(value, int) for value in present)
        return values if whole else [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def _flattened(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: cell for inner, one in value.items() for name, cell in _flattened(f"{key}.{inner}", one).items()}
    if isinstance(value, list | tuple):
        return {key: json.dumps(replace_nonfinite(value), ensure_ascii=False, allow_nan=False)}
    return {key: value}
