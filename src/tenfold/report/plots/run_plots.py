"""Plots of runs: learning curves, and what the time is spent on."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, get_args

from tenfold.report import clocks, summary
from tenfold.report.differences import LABEL_LENGTH
from tenfold.report.formatting import one_line
from tenfold.report.plots import palette
from tenfold.report.plots.styles import Series
from tenfold.report.plots.svg import INK, NARROW, PHONE, draw_both, draw_svg, legend_above, legend_below
from tenfold.report.tables.columns import time_unit
from tenfold.runs import Metric, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 1000
MOST_WITH_TRAINING = 3
"""With more settings than this, the noisy training curves are not drawn, as they would hide the evaluated ones."""
FEW_BARS = 12
LOG_RANGE = 30.0
"""A loss that falls by more than this factor is shown on a logarithmic axis."""

Over = Literal["epochs", "steps", "seconds"]
OVER: tuple[Over, ...] = get_args(Over)


def learning_curves(series: Sequence[Series], metrics: Sequence[str]) -> dict[Over, list[str]]:
    """Return a plot of each metric over the epochs, over the steps, and over the training time."""
    return {over: [svg for name in metrics if (svg := learning_curve(series, name, over))] for over in OVER}


def learning_curve(series: Sequence[Series], metric: str, over: Over) -> str:
    """Return one metric, the mean over repeats: thin lines for training, lines with markers for evaluation."""
    found = [_points(one.runs, metric, over) for one in series]
    if len(series) > MOST_WITH_TRAINING and any(part != "train" for parts in found for part in parts):
        found = [{part: points for part, points in parts.items() if part != "train"} for parts in found]
    if not any(points for parts in found for points in parts.values()):
        return ""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for one, parts in zip(series, found, strict=True):
            for part, points in parts.items():
                x, y = zip(*thin_points(points), strict=True)
                axes.plot(x, y, **_strokes(one, part))
        for at in _lost_workers(series, over):
            axes.axvline(at, color=INK, linewidth=0.9, linestyle=":")
        clock = clocks.clock_names(run for one in series for run in one.runs)
        axes.set_xlabel({"epochs": "epoch", "steps": "step"}.get(over, f"training time (s, {clock})"))
        label_metric_axis(axes, metric, [y for parts in found for points in parts.values() for _, y in points])
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:g}" if over == "seconds" else "{x:,.0f}")
        axes.locator_params(axis="x", integer=over != "seconds")
        _name_curves(figure, series, found)

    return draw_svg(f"{identifier(metric)}-{over}", f"{one_line(metric)} over {over}", (NARROW, 3.0), paint)


def label_metric_axis(axes: "Axes", metric: str, values: Sequence[float]) -> None:
    """Label the vertical axis, and make it logarithmic for a loss that falls by a large factor."""
    label = f"{one_line(metric)} (%)" if metric == "accuracy" else one_line(metric)
    if metric.endswith("loss") and min(values) > 0 and max(values) > LOG_RANGE * min(values):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        label = f"{label} (log scale)"
    axes.set_ylabel(label)


def time_plot(bars: Sequence[tuple[str, dict[str, float]]], clock: str) -> str:
    """Return one bar for each name, divided by what the time is spent on; `clock` is measured or predicted."""
    kinds = [kind for kind in summary.KINDS if any(times.get(kind) for _, times in bars)]
    longest = max((sum(times.values()) for _, times in bars), default=0.0)
    if not longest:
        return ""
    factor, unit = time_unit(longest)
    named = any(name for name, _ in bars)

    def size(width: float) -> tuple[float, float]:
        height = 0.34 if len(bars) <= FEW_BARS else 0.24
        return width, 1.1 + (0.5 if width == PHONE and named else height) * len(bars) + 0.3 * (width == PHONE)

    def paint(figure: "Figure", width: float) -> None:
        axes = figure.subplots()
        begins = [0.0] * len(bars)
        shown = 0.09 if width != PHONE else 0.18
        for kind in kinds:
            lengths = [times.get(kind, 0.0) * factor for _, times in bars]
            options: dict[str, Any] = {"height": 0.62, "color": palette.KIND_COLOURS[kind]}
            if width == PHONE and named:
                options["height"] = 0.45
            drawn = axes.barh(
                range(len(bars)), lengths, left=begins, label=summary.KIND_NAMES.get(kind, kind), **options
            )
            texts = [f"{one:.3g}" if one > shown * longest * factor else "" for one in lengths]
            axes.bar_label(drawn, texts, label_type="center", color="white", fontsize=8)
            begins = [begin + one for begin, one in zip(begins, lengths, strict=True)]
        name_rows(axes, [name for name, _ in bars], width)
        axes.set_ylim(len(bars) - 0.5, -0.5 - 0.2 * (width == PHONE and named))
        axes.set_xlabel(f"time ({unit}, {clock})")
        legend_above(figure, width)

    return draw_both("times", "what the time was spent on", size, paint)


def name_rows(axes: "Axes", names: Sequence[str], width: float) -> None:
    """Name horizontal bars at the left, or above each bar where the plot is narrow."""
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    if width != PHONE:
        axes.set_yticks(range(len(names)), [_tick_label(name) for name in names])
        return
    axes.set_yticks([])
    for at, name in enumerate(names):
        axes.text(0, at - 0.27, shorten(name), fontsize=8, ha="left", va="bottom")


def thin_points(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most this many points: the first, the last, and the lowest and highest of each stretch."""
    if len(points) <= most:
        return list(points)
    inner = range(1, len(points) - 1)
    stretches = (most - 2) // 2
    kept = {0, len(points) - 1}
    for at in range(stretches):
        stretch = inner[len(inner) * at // stretches : len(inner) * (at + 1) // stretches]
        kept |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def curve_metrics(runs: Sequence[Run]) -> list[str]:
    """Return the metrics that can be drawn as curves: the loss, the accuracy, and the other evaluated ones."""
    evaluated = dict.fromkeys(one.name for run in runs for one in run.measurements() if one.part != "train")
    return list(dict.fromkeys(["loss", *(["accuracy"] if "accuracy" in evaluated else []), *evaluated]))


def steps_per_epoch(run: Run) -> float:
    """Return the mean number of steps in an epoch so far; 0 if no epoch has ended."""
    last = run.history[-1] if run.history else {}
    return last.get("step", 0) / last["epoch"] if last.get("epoch") else 0.0


def _points(runs: Sequence[Run], metric: str, over: Over) -> dict[str, list[tuple[float, float]]]:
    """Return the finite points of one metric by part, training first; an accuracy in percent.

    For several runs, they are the means of value and time at each step that all of them have reached.
    """
    factor = 100.0 if metric == "accuracy" else 1.0
    parts: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for run in runs:
        epoch_length = steps_per_epoch(run) if over == "epochs" else 0.0
        for one in run.measurements():
            if one.name == metric and math.isfinite(one.value) and not one.worker:
                point = _position(one, over, epoch_length), one.value * factor
                parts.setdefault(one.part, {}).setdefault(one.step, []).append(point)
    found: dict[str, list[tuple[float, float]]] = {}
    for part, steps in sorted(parts.items(), key=lambda item: item[0] != "train"):
        many = max(map(len, steps.values()))
        complete = [listed for _, listed in sorted(steps.items()) if len(listed) == many]
        found[part] = [(fmean(x for x, _ in listed), fmean(y for _, y in listed)) for listed in complete]
    return found


def _position(metric: Metric, over: Over, epoch_length: float) -> float:
    if over == "seconds":
        return metric.seconds
    if over == "steps":
        return float(metric.step)
    return metric.step / epoch_length if epoch_length else metric.epoch + 1.0


def _lost_workers(series: Sequence[Series], over: Over) -> list[float]:
    """Return where a run that is shown alone lost workers: after the last epoch that was not repeated."""
    runs = [run for one in series for run in one.runs]
    if len(runs) != 1:
        return []
    key = {"epochs": "epoch", "steps": "step"}.get(over, "seconds")
    ends = {row["epoch"]: row[key] for row in runs[0].history}
    return [float(ends.get(loss["epoch"] - 1, 0.0)) for loss in runs[0].result.get("lost") or []]


def _strokes(one: Series, part: str) -> dict[str, Any]:
    style = one.style
    if part == "train":
        return {"color": style.colour, "linestyle": style.dashes, "linewidth": 0.9, "alpha": 0.8}
    dashes = "--" if part == "validation" and not one.label else style.dashes
    marker = {"marker": style.marker, "markersize": 4, "fillstyle": style.fill}
    return {"color": style.colour, "linestyle": dashes, "linewidth": 1.4, **marker}


def _name_curves(figure: "Figure", series: Sequence[Series], found: Sequence[dict[str, Any]]) -> None:
    """Name the settings if there are several, else the parts of the data."""
    from matplotlib.lines import Line2D

    if any(one.label for one in series):
        legend_below(figure, [(Line2D([], [], **_strokes(one, "test")), shorten(one.label)) for one in series])
    else:
        lines = [Line2D([], [], **_strokes(series[0], part)) for part in found[0]]
        names = ["training" if part == "train" else part for part in found[0]]
        figure.axes[0].legend(lines, names, loc="best", labelcolor=INK)


def shorten(label: str) -> str:
    """Return a label, cut where it is too long for a plot."""
    return label if len(label) <= LABEL_LENGTH else f"{label[: LABEL_LENGTH - 1]}…"


def _tick_label(label: str) -> str:
    text = shorten(label)
    return f" {text}" if text.startswith("_") else text  # matplotlib hides names that start with an underscore


def identifier(text: str) -> str:
    """Return a text as part of an id: letters, digits and dashes."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text)
