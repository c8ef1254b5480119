"""Plots of predictions over the workers: the speedup, and what the time is spent on."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks, summary
from tenfold.report.formatting import count
from tenfold.report.knee import find_knee, scaling_families
from tenfold.report.plots import palette
from tenfold.report.plots.scaling_plots import scaling_curves
from tenfold.report.plots.styles import PlotStyles
from tenfold.report.plots.svg import COMPACT_LEGEND, INK, NARROW, draw_svg, legend_below
from tenfold.report.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SHARES = 6
"""How many groups of settings are drawn, those with the highest speedups."""
MOST_BANDS = 3
"""With more curves than this, the bands of their intervals would hide each other."""


def forecast_speedup_plot(rows: Sequence[Row], styles: PlotStyles) -> str:
    """Return the speedup over the workers on logarithmic axes; rings show where it levels off.

    Intervals are drawn as bands, unless there are too many curves.
    """
    curves = scaling_curves(rows, styles)
    if not curves:
        return ""
    families = dict(scaling_families(rows))

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        widest = max(row.workers for row in rows)
        axes.plot([1, widest], [1, widest], color=INK, alpha=0.45, linewidth=0.9, label="ideal: number of workers")
        lowest = 1.0
        for label, style, group in curves:
            x, y = [1, *(row.workers for row in group)], [1.0, *(row.speedup or 1.0 for row in group)]
            low, high = zip((1.0, 1.0), *(_bounds(row) for row in group), strict=True)
            lowest = min(lowest, *(low if has_bands(rows) else y))
            if has_bands(rows):
                axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
            strokes: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes, "fillstyle": style.fill}
            axes.plot(x, y, marker="o", markersize=3.5, linewidth=1.4, label=label, **strokes)
            first = find_knee(families[label]).first if label in families else None
            if first is not None:
                ring: dict[str, Any] = {"markersize": 11, "fillstyle": "none", "markeredgewidth": 1.1}
                axes.plot([first.workers], [first.speedup or 1.0], "o", color=style.colour, clip_on=False, **ring)
        worker_axis(axes, rows)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(bottom=lowest / 1.2)
        axes.set_ylabel(f"speedup T1/Tn ({clocks.clock_names(rows)})")
        handles, names = axes.get_legend_handles_labels()
        legend_below(figure, list(zip(handles, names, strict=True)))

    return draw_svg("forecast-speedup", "speedup over workers", (NARROW, 3.3), paint)


def has_bands(rows: Sequence[Row]) -> bool:
    """Return whether the intervals of the speedup are drawn as bands."""
    return len(scaling_families(rows)) <= MOST_BANDS


def share_plots(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return, for each group of settings, its name and what the time is spent on over the workers."""
    found = [(name, group) for name, group in scaling_families(rows) if len(group) > 1]
    highest = sorted(found, key=lambda family: -max(row.speedup or 0.0 for row in family[1]))[:MOST_SHARES]
    chosen = [family for family in found if family in highest]
    return [(name, _shares(at, name, group)) for at, (name, group) in enumerate(chosen)]


def worker_axis(axes: "Axes", rows: Sequence[Row], margin: float = 1.12) -> None:
    """Make the horizontal axis a logarithmic one of workers, with room for markers at both ends."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
    axes.set_xlim(min(row.workers for row in rows) / margin, max(row.workers for row in rows) * margin)
    axes.set_xlabel("workers")


def _shares(at: int, name: str, group: Sequence[Row]) -> str:
    kinds = [kind for kind in summary.TRAINING_KINDS if any(row.shares.get(kind) for row in group)]

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        heights = [[100 * row.shares.get(kind, 0.0) for row in group] for kind in kinds]
        colours, names = (
            [palette.KIND_COLOURS[kind] for kind in kinds],
            [summary.KIND_NAMES.get(kind, kind) for kind in kinds],
        )
        axes.stackplot([row.workers for row in group], heights, colors=colours, labels=names, linewidth=0)
        worker_axis(axes, group, margin=1.0)
        axes.set_ylim(0, 100)
        axes.set_ylabel(f"training time (%, {clocks.clock_names(group)})")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=4, **COMPACT_LEGEND)

    return draw_svg(f"forecast-shares-{at}", f"what the time is spent on, {name}", (NARROW, 2.6), paint)


def _bounds(row: Row) -> tuple[float, float]:
    """Return the speedup at both ends of the interval, for the predicted T1."""
    low, high = row.interval or (row.seconds.mean or 1.0,) * 2
    single = (row.speedup or 1.0) * (row.seconds.mean or 1.0)
    return single / high, single / low
