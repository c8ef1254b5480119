"""CSV that spreadsheets open as data: text that they would take for a formula is marked as text."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""The first characters of text that a spreadsheet would take for a formula; an apostrophe before it makes it text."""


def write_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with a header as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({name: as_cell(name) for name in columns})
    writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def as_cell(value: Any) -> Any:
    """Return a value as a cell holds it: numbers as they are, text never as a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else value
