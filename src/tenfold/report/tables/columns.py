"""The columns of a comparison's table: short names for a terminal, whole ones for a page, one unit for a column."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenfold.report import clocks, summary
from tenfold.report.differences import HARDWARE, MIXING
from tenfold.report.formatting import NOTHING, decimals_of, measure, plain, setting, storage
from tenfold.report.rows import Interval, Row, Spread

SHARES = "c/w/t %"
TOLD = ("workers", "threads")
UNITS = ((1.0, 1e3, "ms"), (600.0, 1.0, "s"), (math.inf, 1 / 60, "min"))
"""Up to how many seconds, how many in one, and its name."""
FAR_APART = 100
DISPENSABLE = ("compute/wait/talk %", "sent", "gain %", "PI %", "efficiency %")
"""What a narrow terminal can do without, in this order."""


@dataclass(frozen=True)
class Column:
    """A column: its name, its short name and its cells."""

    name: str
    short: str
    cells: tuple[str, ...]
    words: bool = False
    """Whether it holds words, which begin at the left."""

    def heading(self, broken: bool) -> str:
        """Return the short name; broken into lines where it would be wider than the cells, if that is wanted."""
        widest = max(map(len, self.cells), default=0)
        return self.short.replace(" ", "\n") if broken and len(self.short) > widest else self.short


def width(columns: Sequence[Column], gap: int, broken: bool) -> int:
    """Return how wide a table has to be for no cell to break."""
    lines = [(*column.cells, *column.heading(broken).splitlines()) for column in columns]
    return sum(max(map(len, listed), default=0) + gap for listed in lines) - gap


def of(rows: Sequence[Row]) -> list[Column]:
    """Return the columns that say something about these rows."""
    alone = all(row.workers == 1 for row in rows)
    found = [_hosts(rows), *_fields(rows), times(rows)]
    if any(row.clock == clocks.PREDICTED for row in rows):
        found.append(Column("clock", "clock", tuple(_clock(row) for row in rows), words=True))
    if not alone:
        found += [
            _column("speedup", "speedup", rows, lambda row: _number(row.speedup, ".2f")),
            _column("efficiency %", "eff %", rows, lambda row: _number(row.efficiency, ".0f", 100)),
            _column("PI %", "PI %", rows, lambda row: _number(row.improvement, ".1f")),
        ]
    found.append(_column("gain %", "gain %", rows, lambda row: _number(row.gain, ".0f")))
    if any(row.factor_against_cpu is not None for row in rows):
        found.append(_column("factor against cpu", "× cpu", rows, lambda row: _number(row.factor_against_cpu, ".2f")))
    found += scores(rows)
    if not alone:
        found.append(
            _column(
                "sent", "sent", rows, lambda row: storage(row.bytes_per_worker) if row.bytes_per_worker else NOTHING
            )
        )
        found.append(_column("compute/wait/talk %", SHARES, rows, _shares))
    return found


def _hosts(rows: Sequence[Row]) -> Column:
    return _column(
        "workers × threads" if any(row.threads for row in rows) else "workers",
        "workers",
        rows,
        lambda row: f"{row.workers} × {row.threads}" if row.threads else f"{row.workers}",
    )


def _fields(rows: Sequence[Row]) -> list[Column]:
    names = [name for name in (rows[0].settings if rows else ()) if name not in TOLD]

    def field(name: str) -> Column:
        cells = [NOTHING if _without(row, name) else setting(row.settings[name]) for row in rows]
        words = not all(isinstance(row.settings[name], int | float) for row in rows)
        spoken = name.replace("_", " ")
        return Column(spoken, spoken, tuple(cells), words)

    return [field(name) for name in names]


def unit_of(longest: float) -> tuple[float, str]:
    """Return the unit that suits times of up to so many seconds: how many are in a second, and its name."""
    return next((factor, unit) for limit, factor, unit in UNITS if longest < limit)


def times(rows: Sequence[Row]) -> Column:
    """Return the training times, predicted ones with their interval, in one unit."""
    spreads = [row.seconds for row in rows]
    longest = max((one.mean for one in spreads if one.mean is not None), default=1.0)
    factor, unit = unit_of(longest)
    return Column(
        f"training time, {unit}",
        f"time, {unit}",
        tuple(_spreads(spreads, factor, intervals=[row.interval for row in rows])),
    )


def scores(rows: Sequence[Row]) -> list[Column]:
    """Return what was measured at the end; the loss only where there is nothing that says more."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    names = [name for name in names if name != "loss"] or names
    part = summary.part_of_any(run for row in rows for run in row.runs)
    found = []
    for name in names:
        spreads = [row.metrics.get(name, Spread()) for row in rows]
        if name == "accuracy":
            found.append(Column(f"{part} accuracy %", "accuracy %", tuple(_spreads(spreads, 100, 2))))
        else:
            short = plain(name.replace("_", " "))
            found.append(Column(f"{part} {short}", short, tuple(_loose(name, one) for one in spreads)))
    return found


def _without(row: Row, name: str) -> bool:
    """Tell whether a field means nothing there: how to mix for one worker, or virtual hardware that is not set."""
    return (row.workers == 1 and name in MIXING) or (name in HARDWARE and row.settings[name] is None)


def _clock(row: Row) -> str:
    return row.clock if row.calibrated else f"{row.clock}, uncalibrated"


def _shares(row: Row) -> str:
    if not row.shares:
        return NOTHING
    return "/".join(f"{row.shares.get(kind, 0.0) * 100:.0f}" for kind in ("compute", "wait", "communicate"))


def _spreads(
    spreads: Sequence[Spread],
    factor: float,
    decimals: int | None = None,
    intervals: Sequence[Interval | None] | None = None,
) -> list[str]:
    """Return means, deviations and intervals with as many decimals each, so that they stand below each other.

    Where some are far larger than others, each has the decimals that suit it.
    """
    means = [abs(one.mean * factor) for one in spreads if one.mean]
    far_apart = bool(means) and max(means) > FAR_APART * min(means)

    def shown(one: Spread, interval: Interval | None) -> str:
        if one.mean is None:
            return NOTHING
        places = (
            decimals if decimals is not None else decimals_of(one.mean * factor if far_apart else min(means, default=1))
        )
        text = f"{one.mean * factor:.{places}f}"
        if one.deviation is not None:
            text += f" ± {one.deviation * factor:.{places}f}"
        if interval is not None:
            text += f" [{interval[0] * factor:.{places}f}-{interval[1] * factor:.{places}f}]"
        return text

    return [shown(*pair) for pair in zip(spreads, intervals or [None] * len(spreads), strict=True)]


def _loose(name: str, one: Spread) -> str:
    apart = f" ± {one.deviation:.2g}" if one.deviation is not None else ""
    return f"{measure(name, one.mean)}{apart}"


def _number(value: float | None, form: str, factor: float = 1) -> str:
    return NOTHING if value is None else f"{value * factor:{form}}"


def _column(name: str, short: str, rows: Sequence[Row], cell: Callable[[Row], str]) -> Column:
    return Column(name, short, tuple(cell(row) for row in rows))
