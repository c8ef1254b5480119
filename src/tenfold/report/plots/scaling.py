"""What settings look like beside each other: how they scale with the workers, and what their speed costs."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks
from tenfold.report.differences import spoken
from tenfold.report.plots.styles import Look, Looks
from tenfold.report.plots.svg import INK, NARROW, below, draw
from tenfold.report.rows import Row, Spread
from tenfold.report.selection import best, seconds, worth
from tenfold.report.tables.columns import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 12
ERRORS: dict[str, Any] = {"capsize": 2, "elinewidth": 0.8, "capthick": 0.8}
Curve = tuple[str, Look, list[Row]]


def lines(rows: Sequence[Row], looks: Looks) -> list[Curve]:
    """Return the settings with a speedup, those that differ only in the workers together as a line with its name.

    Where there are too many lines, the ones that reach the highest speedup are kept.
    """
    families: dict[str, list[Row]] = {}
    mixed = len({row.clock for row in rows}) > 1
    for row in sorted(rows, key=lambda row: row.workers):
        if row.speedup is not None and row.workers > 1:
            other = {name: value for name, value in row.settings.items() if name != "workers"}
            families.setdefault(_named(other, row, mixed), []).append(row)
    highest = sorted(families, key=lambda name: -max(row.speedup or 0.0 for row in families[name]))[:MOST_LINES]
    return [(name, looks.of(group[0]), group) for name, group in families.items() if name in highest]


def speedup(rows: Sequence[Row], looks: Looks) -> str:
    """Return the speedup against the number of workers, beside the line of as many times as workers."""

    def ideal(axes: "Axes", widest: int, tallest: float) -> None:
        cores = sorted({(row.workers, row.speedup / row.efficiency) for row in rows if row.speedup and row.efficiency})
        axes.plot([1, widest], [1, widest], color=INK, alpha=0.45, linewidth=0.9, label="as many times as workers")
        if any(times < workers for workers, times in cores):
            dots: dict[str, Any] = {"color": INK, "alpha": 0.45, "linewidth": 0.9, "linestyle": (0, (1, 2))}
            axes.plot(*zip(*cores, strict=True), **dots, label="as many times as cores")
        axes.set_ylim(0, max(tallest, min(widest, 2 * tallest)) * 1.06)

    def times(row: Row) -> tuple[float | None, float | None]:
        return row.speedup, row.speedup_deviation

    return _over_workers(lines(rows, looks), "speedup", f"speedup T1/Tn ({clocks.of(rows)})", times, ideal)


def efficiency(rows: Sequence[Row], looks: Looks) -> str:
    """Return the efficiency against the number of workers: 100% where every core brings what the first one did."""

    def percent(row: Row) -> tuple[float | None, float | None]:
        if row.efficiency is None or row.speedup is None:
            return None, None
        factor = 100 * row.efficiency / row.speedup
        return row.speedup * factor, row.speedup_deviation * factor if row.speedup_deviation is not None else None

    def ideal(axes: "Axes", widest: int, tallest: float) -> None:
        axes.plot(
            [1, widest], [100, 100], color=INK, alpha=0.45, linewidth=0.9, label="every core as good as the first"
        )
        axes.set_ylim(0, max(tallest, 100) * 1.12)

    return _over_workers(lines(rows, looks), "efficiency", f"efficiency (%, {clocks.of(rows)})", percent, ideal)


def tradeoff(rows: Sequence[Row], looks: Looks) -> str:
    """Return how good the model is against its training time, one point a setting; the best are numbered."""
    timed = [row for row in rows if row.seconds.mean is not None and math.isfinite(worth(row))]
    if len(timed) < 2:
        return ""
    classes = any(row.accuracy.values for row in timed)
    factor, unit = unit_of(max(map(seconds, timed)))

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for row in timed:
            look = looks.of(row)
            score = row.accuracy if classes else row.loss
            x, xerr = _scaled(row.seconds, factor)
            y, yerr = _scaled(score, 100 if classes else 1)
            strokes: dict[str, Any] = {"color": look.colour, "marker": look.marker, "markersize": 5.5}
            axes.errorbar([x], [y], xerr=xerr, yerr=yerr, fillstyle=look.fill, linestyle="none", **strokes, **ERRORS)
        front = best(timed)
        for number, row in enumerate(front, 1):
            at = (seconds(row) * factor, worth(row) * 100 if classes else -worth(row))
            axes.annotate(str(number), at, (-7, 6 if classes else -12), textcoords="offset points", ha="center")
        axes.margins(0.12)
        axes.set_xlabel(f"training time ({unit}, {clocks.of(timed)})")
        axes.set_ylabel("accuracy (%)" if classes else "loss")
        below(figure, [(_sample(look), name) for look, name in looks.meanings(timed)])

    return draw("tradeoff", "accuracy against training time", (NARROW, 3.0), paint)


def _over_workers(
    found: Sequence[Curve],
    name: str,
    axis: str,
    value: Callable[[Row], tuple[float | None, float | None]],
    ideal: Callable[["Axes", int, float], None],
) -> str:
    if not found:
        return ""
    widest = max(row.workers for _, _, group in found for row in group)
    tallest = max((value(row)[0] or 0.0) + (value(row)[1] or 0.0) for _, _, group in found for row in group)
    one = 1.0 if name == "speedup" else 100.0

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        ideal(axes, widest, max(tallest, one))
        for label, look, group in found:
            x = [1, *(row.workers for row in group)]
            y = [one, *(value(row)[0] or 0.0 for row in group)]
            errors = [0.0, *(value(row)[1] or 0.0 for row in group)]
            strokes: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes, "linewidth": 1.4}
            strokes |= {"marker": "o", "markersize": 4, "fillstyle": look.fill}
            axes.errorbar(x, y, yerr=errors if any(errors) else None, label=label, **strokes, **ERRORS)
        axes.set_xticks(sorted({1, *(row.workers for _, _, group in found for row in group)}))
        axes.set_xlabel("workers")
        axes.set_ylabel(axis)
        handles, names = axes.get_legend_handles_labels()
        plain: list[Any] = [getattr(handle, "lines", [handle])[0] for handle in handles]  # lines without error bars
        below(figure, list(zip(plain, names, strict=True)))

    return draw(name, f"{name} against workers", (NARROW, 3.0), paint)


def _named(settings: dict[str, Any], row: Row, mixed: bool) -> str:
    told = [spoken(settings), row.clock if mixed or not settings else ""]
    return ", ".join(one for one in told if one)


def _sample(look: Look) -> Any:
    from matplotlib.lines import Line2D

    strokes: dict[str, Any] = {"color": look.colour, "marker": look.marker, "fillstyle": look.fill}
    return Line2D([], [], linestyle="none", markersize=5.5, **strokes)


def _scaled(spread: Spread, factor: float) -> tuple[float, float | None]:
    return (spread.mean or 0.0) * factor, spread.deviation * factor if spread.deviation is not None else None
