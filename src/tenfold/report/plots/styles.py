"""How settings look in plots: the same colour, line and marker in each plot of a page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tenfold.report.differences import MIXING, spoken
from tenfold.report.formatting import several
from tenfold.report.plots import palette
from tenfold.report.plots.svg import INK
from tenfold.report.rows import Row
from tenfold.runs import Run

Dashes = str | tuple[int, tuple[float, ...]]
Fill = Literal["full", "none", "left", "bottom"]
DASHES: tuple[Dashes, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
FILLS: tuple[Fill, ...] = ("full", "none", "left", "bottom")


@dataclass(frozen=True)
class Look:
    """Colour, line and marker."""

    colour: str
    dashes: Dashes = "-"
    fill: Fill = "full"
    marker: str = "o"


@dataclass(frozen=True)
class Series:
    """Runs that are drawn as one: repeats of one setting."""

    label: str
    runs: tuple[Run, ...]
    look: Look


def single(run: Run) -> Series:
    """Return one run on its own."""
    colour, marker = palette.series(0)
    return Series("", (run,), Look(colour, marker=marker))


class Looks:
    """What colours, lines and markers mean on a page.

    The colour tells the strategy (or whatever else differs first), the line and the filling of a marker the other
    fields and the clock, the marker the number of workers. One worker mixes with nobody, so it has the page's own
    colour instead of a strategy's.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        names = [name for name in (rows[0].settings if rows else ()) if name != "workers"]
        self._first = next((name for name in ("strategy", *names) if name in names), "workers")
        self._rest = [name for name in names if name != self._first]
        self._clocks = len({row.clock for row in rows}) > 1
        mixing = [row for row in rows if not self._is_neutral(row)]
        self.colours = _places(self._told(row, [self._first]) for row in mixing)
        self.others = _places(self._otherwise(row) for row in mixing)
        self.workers = _places(several(row.workers, "worker") for row in rows)

    def of(self, row: Row) -> Look:
        """Return the look of a setting."""
        other = self.others.get(self._otherwise(row), 0)
        worker = self.workers[several(row.workers, "worker")]
        marker = palette.MARKERS[(worker if len(self.workers) > 1 else other) % len(palette.MARKERS)]
        if self._is_neutral(row):
            return Look(INK, marker=marker)
        colour = palette.SERIES[self.colours[self._told(row, [self._first])] % len(palette.SERIES)]
        return Look(colour, DASHES[other % len(DASHES)], FILLS[other % len(FILLS)], marker)

    def series(self, row: Row) -> Series:
        """Return a setting as it is drawn."""
        return Series(row.label, row.runs, self.of(row))

    def meanings(self, rows: Sequence[Row]) -> list[tuple[Look, str]]:
        """Return what colours and fillings of these rows' points mean, then what their markers mean."""
        found: dict[str, Look] = {}
        for row in rows:
            if not self._is_neutral(row):
                look, told = self.of(row), _joined(self._told(row, [self._first]), self._otherwise(row))
                shape = look if len(self.workers) == 1 else replace(look, marker="o")
                found.setdefault(told, shape)
        if len(self.workers) > 1 and self._first != "workers":
            for name, at in self.workers.items():
                found[name] = Look(INK, marker=palette.MARKERS[at % len(palette.MARKERS)])
        return [(look, name) for name, look in found.items() if name]

    def apart(self, name: str, values: Sequence[str]) -> dict[str, str]:
        """Return a colour for each value of a field: the field's own, or one that means nothing else."""
        own = self.colours if name == self._first else {}
        places = {value: own.get(value, len(self.colours) + at) for at, value in enumerate(values)}
        return {value: palette.SERIES[place % len(palette.SERIES)] for value, place in places.items()}

    def _is_neutral(self, row: Row) -> bool:
        return row.workers == 1 and self._first in MIXING

    def _otherwise(self, row: Row) -> str:
        """Return all that the colour does not tell: the other fields, and the clock where there are two."""
        return _joined(self._told(row, self._rest), row.clock if self._clocks else "")

    def _told(self, row: Row, names: Sequence[str]) -> str:
        return spoken({name: row.settings[name] for name in names if name in row.settings})


def _joined(*told: str) -> str:
    return ", ".join(one for one in told if one)


def _places(keys: Iterable[str]) -> dict[str, int]:
    return {key: at for at, key in enumerate(dict.fromkeys(keys))}
