"""Folds against workers: the k x n tables of a comparison that varies both."""

from collections.abc import Sequence
from typing import Any

from tenfold.report import clocks
from tenfold.report.differences import MIXING_FIELDS, describe_settings
from tenfold.report.formatting import NOTHING, joined, plural
from tenfold.report.rows import Row
from tenfold.report.tables import columns
from tenfold.report.tables.text_table import TextTable

CROSSED = ("folds", "workers")


def make_crosstables(rows: Sequence[Row]) -> list[TextTable]:
    """Return tables of the times and of each metric, for every combination of the other settings."""
    if not rows or not set(CROSSED) <= set(rows[0].settings):
        return []
    cells = [columns.time_column(rows), *columns.metric_columns(rows)]
    families: list[tuple[str, dict[str, Any]]] = []
    for row in rows:
        family = row.clock, {name: value for name, value in row.settings.items() if name not in CROSSED}
        if family not in families and (row.workers > 1 or not any(name in MIXING_FIELDS for name in family[1])):
            families.append(family)
    found = []
    for clock, other in families:
        places = {
            (row.settings["folds"], row.settings["workers"]): at
            for at, row in enumerate(rows)
            if row.clock == clock and _belongs(row, other)
        }
        if min(len({fold for fold, _ in places}), len({count for _, count in places})) < 2:
            continue
        for column in cells:
            title = f"{column.name}, {clock}" if column is cells[0] else column.name
            title = f"{title}, {clocks.INTERVAL}" if column is cells[0] and clock == clocks.PREDICTED else title
            found.append(_crossed(joined(describe_settings(other), title), column, places))
    return found


def _belongs(row: Row, other: dict[str, Any]) -> bool:
    """Return whether a row has these settings; a single worker matches every strategy."""
    return all(
        row.settings[name] == value or (row.workers == 1 and name in MIXING_FIELDS) for name, value in other.items()
    )


def _crossed(title: str, column: columns.Column, places: dict[tuple[int | None, int], int]) -> TextTable:
    folds = sorted({fold for fold, _ in places}, key=lambda fold: fold or 0)
    workers = sorted({count for _, count in places})
    rows = [
        (
            plural(fold, "fold") if fold else "no folds",
            *(column.cells[places[fold, count]] if (fold, count) in places else NOTHING for count in workers),
        )
        for fold in folds
    ]
    return TextTable(["", *(plural(count, "worker") for count in workers)], rows, title)
