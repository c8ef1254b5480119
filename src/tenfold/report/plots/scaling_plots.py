"""Plots of several settings: speedup and efficiency over the workers, and quality against training time."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks
from tenfold.report.differences import describe_settings
from tenfold.report.formatting import one_line
from tenfold.report.plots.styles import PlotStyles, Style
from tenfold.report.plots.svg import INK, NARROW, draw_svg, legend_below
from tenfold.report.rows import Row, Spread
from tenfold.report.scores import direction, higher_is_better
from tenfold.report.selection import mean_seconds, pareto_front, quality, rows_metric
from tenfold.report.tables.columns import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 12
ERRORS: dict[str, Any] = {"capsize": 2, "elinewidth": 0.8, "capthick": 0.8}
Curve = tuple[str, Style, list[Row]]


def scaling_curves(rows: Sequence[Row], styles: PlotStyles) -> list[Curve]:
    """Return the rows that have a speedup, grouped into curves that differ only in the workers, each with its name.

    If there are too many curves, those with the highest speedups are kept.
    """
    families: dict[str, list[Row]] = {}
    mixed = len({row.clock for row in rows}) > 1
    for row in sorted(rows, key=lambda row: row.workers):
        if row.speedup is not None and row.workers > 1:
            other = {name: value for name, value in row.settings.items() if name != "workers"}
            families.setdefault(_named(other, row, mixed), []).append(row)
    highest = sorted(families, key=lambda name: -max(row.speedup or 0.0 for row in families[name]))[:MOST_LINES]
    return [(name, styles.style(group[0]), group) for name, group in families.items() if name in highest]


def speedup_plot(rows: Sequence[Row], styles: PlotStyles) -> str:
    """Return the speedup over the number of workers, with the ideal line."""

    def ideal(axes: "Axes", widest: int, tallest: float) -> None:
        cores = sorted({(row.workers, row.speedup / row.efficiency) for row in rows if row.speedup and row.efficiency})
        axes.plot([1, widest], [1, widest], color=INK, alpha=0.45, linewidth=0.9, label="ideal: number of workers")
        if any(times < workers for workers, times in cores):
            dots: dict[str, Any] = {"color": INK, "alpha": 0.45, "linewidth": 0.9, "linestyle": (0, (1, 2))}
            axes.plot(*zip(*cores, strict=True), **dots, label="ideal: number of cores")
        axes.set_ylim(0, max(tallest, min(widest, 2 * tallest)) * 1.06)

    def times(row: Row) -> tuple[float | None, float | None]:
        return row.speedup, row.speedup_deviation

    return _over_workers(
        scaling_curves(rows, styles), "speedup", f"speedup T1/Tn ({clocks.clock_names(rows)})", times, ideal
    )


def efficiency_plot(rows: Sequence[Row], styles: PlotStyles) -> str:
    """Return the efficiency over the number of workers: 100% where every core contributes as much as the first."""

    def percent(row: Row) -> tuple[float | None, float | None]:
        if row.efficiency is None or row.speedup is None:
            return None, None
        factor = 100 * row.efficiency / row.speedup
        return row.speedup * factor, row.speedup_deviation * factor if row.speedup_deviation is not None else None

    def ideal(axes: "Axes", widest: int, tallest: float) -> None:
        axes.plot([1, widest], [100, 100], color=INK, alpha=0.45, linewidth=0.9, label="ideal")
        axes.set_ylim(0, max(tallest, 100) * 1.12)

    return _over_workers(
        scaling_curves(rows, styles), "efficiency", f"efficiency (%, {clocks.clock_names(rows)})", percent, ideal
    )


def tradeoff_plot(rows: Sequence[Row], styles: PlotStyles) -> str:
    """Return the main metric against the training time, one point for each setting; the best ones are numbered."""
    metric = rows_metric(rows)
    timed = [row for row in rows if row.seconds.mean is not None and math.isfinite(quality(row, metric))]
    if len(timed) < 2:
        return ""
    factor, unit = time_unit(max(map(mean_seconds, timed)))
    percent = 100 if metric == "accuracy" else 1
    higher = higher_is_better(metric)

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for row in timed:
            style = styles.style(row)
            x, xerr = _scaled(row.seconds, factor)
            y, yerr = _scaled(row.metrics[metric], percent)
            strokes: dict[str, Any] = {"color": style.colour, "marker": style.marker, "markersize": 5.5}
            axes.errorbar([x], [y], xerr=xerr, yerr=yerr, fillstyle=style.fill, linestyle="none", **strokes, **ERRORS)
        for number, row in enumerate(pareto_front(timed), 1):
            at = (mean_seconds(row) * factor, (row.metrics[metric].mean or 0.0) * percent)
            axes.annotate(str(number), at, (-7, 6 if higher else -12), textcoords="offset points", ha="center")
        axes.margins(0.12)
        axes.set_xlabel(f"training time ({unit}, {clocks.clock_names(timed)})")
        axes.set_ylabel("accuracy (%)" if percent == 100 else f"{one_line(metric)} ({direction(metric)})")
        legend_below(figure, [(_sample(style), name) for style, name in styles.legend_entries(timed)])

    return draw_svg("tradeoff", f"{one_line(metric)} against training time", (NARROW, 3.0), paint)


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
        for label, style, group in found:
            x = [1, *(row.workers for row in group)]
            y = [one, *(value(row)[0] or 0.0 for row in group)]
            errors = [0.0, *(value(row)[1] or 0.0 for row in group)]
            strokes: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes, "linewidth": 1.4}
            strokes |= {"marker": "o", "markersize": 4, "fillstyle": style.fill}
            axes.errorbar(x, y, yerr=errors if any(errors) else None, label=label, **strokes, **ERRORS)
        axes.set_xticks(sorted({1, *(row.workers for _, _, group in found for row in group)}))
        axes.set_xlabel("workers")
        axes.set_ylabel(axis)
        handles, names = axes.get_legend_handles_labels()
        plain: list[Any] = [getattr(handle, "lines", [handle])[0] for handle in handles]  # lines without error bars
        legend_below(figure, list(zip(plain, names, strict=True)))

    return draw_svg(name, f"{name} against workers", (NARROW, 3.0), paint)


def _named(settings: dict[str, Any], row: Row, mixed: bool) -> str:
    parts = [describe_settings(settings), row.clock if mixed or not settings else ""]
    return ", ".join(part for part in parts if part)


def _sample(style: Style) -> Any:
    from matplotlib.lines import Line2D

    strokes: dict[str, Any] = {"color": style.colour, "marker": style.marker, "fillstyle": style.fill}
    return Line2D([], [], linestyle="none", markersize=5.5, **strokes)


def _scaled(spread: Spread, factor: float) -> tuple[float, float | None]:
    return (spread.mean or 0.0) * factor, spread.deviation * factor if spread.deviation is not None else None
