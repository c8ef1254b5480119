"""Small tables in HTML, as notebooks show them."""

from collections.abc import Iterable, Sequence
from html import escape


def details_table(title: str, metadata: Iterable[tuple[str, str]]) -> str:
    """Return a heading and a table of names and values; metadata without a value are left out."""
    rows = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in metadata
        if value
    )
    return f"<div><strong>{escape(title)}</strong><table>{rows}</table></div>"


def values_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with a heading for each column."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in names)]
    lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def short_number(name: str, value: float | None) -> str:
    """Return a metric in few digits: an accuracy in percent; empty where there is none."""
    if value is None:
        return ""
    return f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4g}"
