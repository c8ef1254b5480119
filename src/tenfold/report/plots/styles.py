"""How settings are drawn: the same colour, line and marker in each plot of a page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tenfold.report.differences import MIXING_FIELDS, describe_settings
from tenfold.report.formatting import joined, plural
from tenfold.report.plots import palette
from tenfold.report.rows import Row

Fill = Literal["full", "none", "left", "bottom"]
DASHES: tuple[tuple[float, ...], ...] = ((), (4, 1.5), (1, 1.2), (5, 1.2, 1, 1.2), (8, 2), (3, 1, 1, 1, 1, 1))
"""Lengths of dashes and gaps as multiples of a line's width; none for a solid line."""
LINE_WIDTH = 1.6
FILLS: tuple[Fill, ...] = ("full", "none", "left", "bottom")


@dataclass(frozen=True)
class Style:
    """Colour, line and marker."""

    colour: str
    """Empty for the text colour."""
    dashes: tuple[float, ...] = ()
    """One of DASHES."""
    fill: Fill = "full"
    marker: str = "o"

    @property
    def dash(self) -> list[float]:
        """The dashes as lengths in pixels."""
        return [LINE_WIDTH * length for length in self.dashes]


class PlotStyles:
    """What colours, lines and markers mean on a page.

    The colour stands for the strategy (or whatever else differs first), the fill of a marker for the other fields and
    the clock, the marker for the number of workers. A single worker does not average, so it has the page's text colour
    instead of a strategy's. Settings of one colour have different lines.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        names = [name for name in (rows[0].settings if rows else ()) if name != "workers"]
        self._first = next((name for name in ("strategy", *names) if name in names), "workers")
        self._rest = [name for name in names if name != self._first]
        self._clocks = len({row.clock for row in rows}) > 1
        mixing = [row for row in rows if not self._is_neutral(row)]
        self.colours = _places(self._describe(row, [self._first]) for row in mixing)
        self.others = _places(self._other_fields(row) for row in mixing)
        self.workers = _places(plural(row.workers, "worker") for row in rows)
        self._lines: dict[str, dict[str, int]] = {}
        for row in rows:
            lines = self._lines.setdefault(self._colour(row), {})
            lines.setdefault(row.label, len(lines))

    def style(self, row: Row) -> Style:
        """Return the style of a setting."""
        other = self.others.get(self._other_fields(row), 0)
        worker = self.workers[plural(row.workers, "worker")]
        marker = palette.MARKERS[(worker if len(self.workers) > 1 else other) % len(palette.MARKERS)]
        colour = self._colour(row)
        line = self._lines[colour][row.label]
        fill = FILLS[(other if colour else line) % len(FILLS)]
        return Style(colour, DASHES[line % len(DASHES)], fill, marker)

    def legend_name(self, row: Row) -> str:
        """Return what the colour and fill of a setting's points mean."""
        if not self._is_neutral(row):
            return joined(self._describe(row, [self._first]), self._other_fields(row)) or row.label
        others = self._describe(row, [name for name in self._rest if name not in MIXING_FIELDS])
        return joined(plural(1, "worker"), others, row.clock if self._clocks else "")

    def marker_keys(self) -> list[tuple[str, str]]:
        """Return each marker with its meaning, where markers mean something that colours do not."""
        if len(self.workers) == 1 or self._first == "workers":
            return []
        return [(palette.MARKERS[at % len(palette.MARKERS)], name) for name, at in self.workers.items()]

    def field_colours(self, name: str, values: Sequence[str]) -> dict[str, str]:
        """Return a colour for each value of a field: its own, or one that has no other meaning on the page."""
        own = self.colours if name == self._first else {}
        places = {value: own.get(value, len(self.colours) + at) for at, value in enumerate(values)}
        return {value: palette.SERIES[place % len(palette.SERIES)] for value, place in places.items()}

    def _colour(self, row: Row) -> str:
        if self._is_neutral(row):
            return ""
        return palette.SERIES[self.colours[self._describe(row, [self._first])] % len(palette.SERIES)]

    def _is_neutral(self, row: Row) -> bool:
        return row.workers == 1 and self._first in MIXING_FIELDS

    def _other_fields(self, row: Row) -> str:
        """Return what the colour does not stand for: the other fields, and the clock where there are two."""
        return joined(self._describe(row, self._rest), row.clock if self._clocks else "")

    def _describe(self, row: Row, names: Sequence[str]) -> str:
        return describe_settings({name: row.settings[name] for name in names if name in row.settings})


def _places(keys: Iterable[str]) -> dict[str, int]:
    return {key: at for at, key in enumerate(dict.fromkeys(keys))}
