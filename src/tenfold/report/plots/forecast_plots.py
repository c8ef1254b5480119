"""What predictions look like over the workers: the speedup, where it bends, and what the time is spent on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks, summary
from tenfold.report import knee as bend
from tenfold.report.formatting import count
from tenfold.report.plots import palette, scaling
from tenfold.report.plots.styles import Looks
from tenfold.report.plots.svg import COMPACT_LEGEND, INK, NARROW, below, draw
from tenfold.report.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SHARES = 6
"""Families whose shares are drawn: those that reach the highest speedup."""


def speedup(rows: Sequence[Row], looks: Looks) -> str:
    """Return the speedup against the workers, both logarithmic, with its interval; rings show where it bends."""
    curves = scaling.lines(rows, looks)
    if not curves:
        return ""
    bends = dict(bend.families(rows))

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        widest = max(row.workers for row in rows)
        axes.plot([1, widest], [1, widest], color=INK, alpha=0.45, linewidth=0.9, label="as many times as workers")
        lowest = 1.0
        for label, look, group in curves:
            x, y = [1, *(row.workers for row in group)], [1.0, *(row.speedup or 1.0 for row in group)]
            low, high = zip((1.0, 1.0), *(_bounds(row) for row in group), strict=True)
            lowest = min(lowest, *low)
            axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0)
            strokes: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes, "fillstyle": look.fill}
            axes.plot(x, y, marker="o", markersize=3.5, linewidth=1.4, label=label, **strokes)
            first = bend.find(bends[label]).first if label in bends else None
            if first is not None:
                ring: dict[str, Any] = {"markersize": 11, "fillstyle": "none", "markeredgewidth": 1.1}
                axes.plot([first.workers], [first.speedup or 1.0], "o", color=look.colour, **ring)
        over_workers(axes, rows)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(bottom=lowest / 1.2)
        axes.set_ylabel(f"speedup T1/Tn ({clocks.of(rows)})")
        handles, names = axes.get_legend_handles_labels()
        below(figure, list(zip(handles, names, strict=True)))

    return draw("outlook-speedup", "speedup against workers", (NARROW, 3.3), paint)


def shares(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return, for each family of settings, its name and what its time is spent on as workers are added."""
    found = [(name, group) for name, group in bend.families(rows) if len(group) > 1]
    highest = sorted(found, key=lambda family: -max(row.speedup or 0.0 for row in family[1]))[:MOST_SHARES]
    chosen = [family for family in found if family in highest]
    return [(name, _shares(at, name, group)) for at, (name, group) in enumerate(chosen)]


def over_workers(axes: "Axes", rows: Sequence[Row]) -> None:
    """Make the horizontal axis one of workers, logarithmic."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.set_xlim(min(row.workers for row in rows), max(row.workers for row in rows))
    axes.set_xlabel("workers")


def _shares(at: int, name: str, group: Sequence[Row]) -> str:
    kinds = [kind for kind in summary.TRAINING_KINDS if any(row.shares.get(kind) for row in group)]

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        heights = [[100 * row.shares.get(kind, 0.0) for row in group] for kind in kinds]
        colours, names = [palette.KINDS[kind] for kind in kinds], [summary.NAMES.get(kind, kind) for kind in kinds]
        axes.stackplot([row.workers for row in group], heights, colors=colours, labels=names, linewidth=0)
        over_workers(axes, group)
        axes.set_ylim(0, 100)
        axes.set_ylabel(f"training time (%, {clocks.of(group)})")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4, **COMPACT_LEGEND)

    return draw(f"outlook-shares-{at}", f"what the time is spent on, {name}", (NARROW, 2.6), paint)


def _bounds(row: Row) -> tuple[float, float]:
    """Return the speedup at both ends of the interval: T1 is taken as it is."""
    low, high = row.interval or (row.seconds.mean or 1.0,) * 2
    single = (row.speedup or 1.0) * (row.seconds.mean or 1.0)
    return single / high, single / low
