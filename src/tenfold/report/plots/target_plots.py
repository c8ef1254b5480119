"""A metric against the training time, one line a setting, with the target as a line."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks
from tenfold.report.formatting import duration, one_line
from tenfold.report.plots.styles import PlotStyles
from tenfold.report.plots.svg import INK, WIDE, draw_svg, legend_below, save_figure, shorten
from tenfold.report.rows import Row
from tenfold.report.scores import main_metric
from tenfold.report.selection import choose_rows
from tenfold.report.tables.columns import time_unit
from tenfold.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 8
ZOOM = 6
"""How many times the error at the target an accuracy may be off to be drawn."""
SIZE = (WIDE, 3.4)
Points = list[tuple[float, float]]


def target_plot(rows: Sequence[Row], styles: PlotStyles) -> str:
    """Return the metric of the target against the training time as SVG; "" where no setting has a target."""
    paint = _paint(rows, styles)
    return draw_svg("target", "metric against training time, with the target", SIZE, paint) if paint else ""


def save_target_plot(rows: Sequence[Row], path: Path) -> bool:
    """Write the same plot to a file, SVG, PNG or PDF by its name; return whether there was something to draw."""
    paint = _paint(rows, PlotStyles(rows))
    if paint is not None:
        save_figure(path, SIZE, paint)
    return paint is not None


def _paint(rows: Sequence[Row], styles: PlotStyles) -> Callable[["Figure"], None] | None:
    aimed = [row for row in rows if row.experiment.training.target is not None]
    lines_of = {row.label: [points for run in row.runs if (points := _evaluated(run))] for row in aimed}
    found = [(row, lines_of[row.label]) for row in choose_rows(aimed, MOST_LINES) if lines_of[row.label]]
    if not found:
        return None
    metric = _metric(found[0][0].runs[0])
    percent = 100 if metric.endswith("accuracy") else 1
    factor, unit = time_unit(max(seconds for _, lines in found for points in lines for seconds, _ in points))

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        entries: list[tuple[Any, str]] = []
        for row, lines in found:
            style = styles.style(row)
            strokes: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes, "linewidth": 1.4}
            strokes |= {"marker": style.marker, "markersize": 4, "fillstyle": style.fill}
            for at, points in enumerate(lines):
                x, y = zip(*((seconds * factor, value * percent) for seconds, value in points), strict=True)
                (drawn,) = axes.plot(x, y, **strokes, alpha=1.0 if len(lines) == 1 else 0.7)
                if at == 0:
                    entries.append((drawn, f"{shorten(row.label)}: {_reached(row)}"))
        for target in sorted({row.experiment.training.target or 0.0 for row, _ in found}):
            line = axes.axhline(target * percent, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
            entries.append((line, f"target {target * percent:g}{'%' if percent == 100 else ''}"))
        axes.set_xlim(left=0)
        if percent == 100:  # the first steps would leave no room for the last ones
            lowest = min(row.experiment.training.target or 0.0 for row, _ in found)
            axes.set_ylim(bottom=max(axes.get_ylim()[0], 100 * (1 - ZOOM * (1 - lowest))))
        axes.set_xlabel(f"training time ({unit}, {clocks.clock_names(row for row, _ in found)})")
        axes.set_ylabel(f"{one_line(metric)} (%)" if percent == 100 else one_line(metric))
        legend_below(figure, entries)

    return paint


def _reached(row: Row) -> str:
    count = len(row.seconds_to_target.values)
    if not count:
        return "not reached"
    some = "" if count == len(row.runs) else f" ({count} of {len(row.runs)})"
    return f"{duration(row.seconds_to_target.mean)}{some}"


def _metric(run: Run) -> str:
    """Return the metric that the target is about: the experiment's first, or the accuracy of classes, or the loss."""
    evaluated = {one.name for one in run.measurements() if one.part != "train"}
    named = [getattr(one, "name", one) for one in run.experiment.training.metrics[:1]]
    return next((str(name) for name in named if name in evaluated), None) or main_metric(evaluated) or "loss"


def _evaluated(run: Run) -> Points:
    """Return the evaluations of a run's watched part, by training time."""
    metric = _metric(run)
    watched = [one for one in run.measurements() if one.part != "train" and one.name == metric and not one.worker]
    return sorted((one.seconds, one.value) for one in watched)
