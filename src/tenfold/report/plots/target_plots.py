"""A metric against the training time, one line a setting, with the target as a line."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks
from tenfold.report.formatting import duration, metric_value, one_line
from tenfold.report.plots.charts import ChartLine, LineChart
from tenfold.report.plots.pictures import INK, WIDE, legend_below, save_figure, shorten
from tenfold.report.plots.styles import PlotStyles
from tenfold.report.row_ranking import choose_rows
from tenfold.report.rows import Row
from tenfold.report.scores import main_metric
from tenfold.report.tables.columns import time_unit
from tenfold.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 8
ZOOM = 6
"""Accuracies are drawn if their error is at most this many times the error at the target."""
SIZE = (WIDE, 3.4)
Points = list[tuple[float, float]]


def target_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the metric of the target against the training time, one line a run; None where no setting has a target."""
    found = _aimed(rows)
    if not found:
        return None
    metric, percent, factor, unit = _scales(found)
    targets = sorted({row.experiment.training.target or 0.0 for row, _ in found})

    def line(row: Row, points: Points) -> ChartLine:
        style = styles.style(row)
        return ChartLine(
            label=f"{row.label}: {_reached(row)}",
            x=[seconds * factor for seconds, _ in points],
            y=[value * percent for _, value in points],
            notes=[f"{row.label}\n{duration(seconds)}: {metric_value(metric, value)}" for seconds, value in points],
            colour=style.colour,
            dash=style.dash,
            markers=[style.marker] * len(points),
            fill=style.fill,
        )

    return LineChart(
        x_label=f"training time ({unit}, {clocks.clock_names(row for row, _ in found)})",
        title=f"{one_line(metric)} (%)" if percent == 100 else one_line(metric),
        unit="%" if percent == 100 else "",
        lines=[line(row, points) for row, lines in found for points in lines],
        y_range=(_bottom(found) if percent == 100 else None, None),
        target=targets[0] * percent if len(targets) == 1 else None,
    )


def save_target_plot(rows: Sequence[Row], path: Path) -> bool:
    """Write the same plot to a file, SVG, PNG or PDF by its name; return whether there was something to draw."""
    paint = _paint(rows, PlotStyles(rows))
    if paint is not None:
        save_figure(path, SIZE, paint)
    return paint is not None


def _aimed(rows: Sequence[Row]) -> list[tuple[Row, list[Points]]]:
    """Return the settings that have a target, each with the evaluations of its runs."""
    aimed = [row for row in rows if row.experiment.training.target is not None]
    lines_of = {row.label: [points for run in row.runs if (points := _evaluated(run))] for row in aimed}
    return [(row, lines_of[row.label]) for row in choose_rows(aimed, MOST_LINES) if lines_of[row.label]]


def _scales(found: Sequence[tuple[Row, list[Points]]]) -> tuple[str, int, float, str]:
    """Return the metric, what its values and the seconds are multiplied by, and the unit of the time."""
    metric = _metric(found[0][0].runs[0])
    longest = max(seconds for _, lines in found for points in lines for seconds, _ in points)
    return metric, 100 if metric.endswith("accuracy") else 1, *time_unit(longest)


def _bottom(found: Sequence[tuple[Row, list[Points]]]) -> float | None:
    """Return where the axis of an accuracy begins, if lower values would leave no room for those near the target."""
    lowest = min(row.experiment.training.target or 0.0 for row, _ in found)
    least = min(value for _, lines in found for points in lines for _, value in points)
    bottom = 1 - ZOOM * (1 - lowest)
    return 100 * bottom if least < bottom else None


def _paint(rows: Sequence[Row], styles: PlotStyles) -> Callable[["Figure"], None] | None:
    found = _aimed(rows)
    if not found:
        return None
    metric, percent, factor, unit = _scales(found)

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        entries: list[tuple[Any, str]] = []
        for row, lines in found:
            style = styles.style(row)
            strokes: dict[str, Any] = {"color": style.colour or INK, "linewidth": 1.4}
            strokes |= {"linestyle": (0, style.dashes) if style.dashes else "-"}
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
        if percent == 100 and (bottom := _bottom(found)) is not None:
            axes.set_ylim(bottom=bottom)
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
    """Return the evaluations of a run's evaluation part, by training time."""
    metric = _metric(run)
    evaluations = [one for one in run.measurements() if one.part != "train" and one.name == metric and not one.worker]
    return sorted((one.seconds, one.value) for one in evaluations)
