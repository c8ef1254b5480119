"""A metric against the training time, one line a setting, with the target as a line."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common.metric_table import main_metric
from tenfold.report import clocks
from tenfold.report.formatting import duration, metric_scale, metric_value, one_line
from tenfold.report.plots.charts import ChartLine, LineChart
from tenfold.report.plots.pictures import INK, WIDTH, legend_below, save_figure
from tenfold.report.plots.styles import LINE_WIDTH, PlotStyles
from tenfold.report.row_ranking import choose_rows
from tenfold.report.rows import Row
from tenfold.report.tables.columns import reached_by, time_unit
from tenfold.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 8
ZOOM = 6
"""Accuracies are drawn if their error is at most this many times the error at the target."""
SIZE = (WIDTH, 3.4)
Points = list[tuple[float, float]]


def target_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the metric of the target against the training time, one line a run; None where no setting has a target."""
    found = _aimed(rows)
    if not found:
        return None
    metric = _metric(found[0][0].runs[0])
    scale, percent = metric_scale(metric)
    factor, unit = time_unit(max(seconds for _, lines in found for points in lines for seconds, _ in points))
    targets = _targets(row for row, _ in found)

    def line(row: Row, points: Points) -> ChartLine:
        style = styles.style(row)
        return ChartLine(
            label=f"{row.label}: {reached_by(row, duration(row.seconds_to_target.mean))}",
            x=[seconds * factor for seconds, _ in points],
            y=[value * scale for _, value in points],
            notes=[f"{row.label}\n{duration(seconds)}: {metric_value(metric, value)}" for seconds, value in points],
            colour=style.colour,
            dash=style.dash,
            markers=[style.marker] * len(points),
            fill=style.fill,
        )

    return LineChart(
        x_label=f"training time ({unit}, {clocks.clock_names(row for row, _ in found)})",
        title=one_line(metric) + (f" ({percent})" if percent else ""),
        unit=percent,
        lines=[line(row, points) for row, lines in found for points in lines],
        y_range=(_bottom(found) if percent else None, None),
        target=targets[0] * scale if len(targets) == 1 else None,
    )


def save_target_plot(rows: Sequence[Row], path: Path) -> bool:
    """Write the same plot to a file, SVG, PNG or PDF by its name; return whether there was something to draw."""
    chart = target_plot(rows, PlotStyles(rows))
    if chart is None:
        return False

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        entries: dict[str, Any] = {}
        runs = Counter(line.label for line in chart.lines)
        for line in chart.lines:
            strokes: dict[str, Any] = {"color": line.colour or INK, "linewidth": 1.4, "fillstyle": line.fill}
            strokes |= {"marker": line.markers[0], "markersize": 4, "alpha": 1.0 if runs[line.label] == 1 else 0.7}
            strokes["linestyle"] = (0, [length / LINE_WIDTH for length in line.dash]) if line.dash else "-"
            (drawn,) = axes.plot(line.x, line.y, **strokes)
            entries.setdefault(line.label, drawn)
        for target in (100 * one if chart.unit else one for one in _targets(rows)):
            rule = axes.axhline(target, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
            entries[f"target {target:g}{chart.unit}"] = rule
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=chart.y_range[0])
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.title)
        legend_below(figure, entries)

    save_figure(path, SIZE, paint)
    return True


def _targets(rows: Iterable[Row]) -> list[float]:
    """Return the targets of these settings, each once."""
    return sorted({row.experiment.training.target for row in rows if row.experiment.training.target is not None})


def _aimed(rows: Sequence[Row]) -> list[tuple[Row, list[Points]]]:
    """Return the settings that have a target, each with the evaluations of its runs."""
    aimed = [row for row in rows if row.experiment.training.target is not None]
    lines_of = {row.label: [points for run in row.runs if (points := _evaluated(run))] for row in aimed}
    return [(row, lines_of[row.label]) for row in choose_rows(aimed, MOST_LINES) if lines_of[row.label]]


def _bottom(found: Sequence[tuple[Row, list[Points]]]) -> float | None:
    """Return where the axis of an accuracy begins, if lower values would leave no room for those near the target."""
    lowest = _targets(row for row, _ in found)[0]
    least = min(value for _, lines in found for points in lines for _, value in points)
    bottom = 1 - ZOOM * (1 - lowest)
    return 100 * bottom if least < bottom else None


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
