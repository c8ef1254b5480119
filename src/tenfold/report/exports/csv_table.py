"""CSV that spreadsheets open as data: text that they would take for a formula is marked as text."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of text that a spreadsheet would take for a formula; an apostrophe before it makes it text."""


def write_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Return a table with a header as CSV; by default with all columns of its rows."""
    text = io.StringIO()
    names = column_names(rows) if columns is None else columns
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writerow({name: as_cell(name) for name in names})
    writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def column_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every column that a row has, in the order in which they come up."""
    return list(dict.fromkeys(name for row in rows for name in row))


def as_cell(value: Any) -> Any:
    """Return a value as a cell holds it: numbers as they are, text never as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else value
