"""What runs look like: curves, and where the time went."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, get_args

from tenfold.report import clocks, summary
from tenfold.report.differences import LABEL_LETTERS
from tenfold.report.formatting import duration, plain
from tenfold.report.plots import palette
from tenfold.report.plots.styles import Series
from tenfold.report.plots.svg import COMPACT_LEGEND, INK, NARROW, WIDE, below, draw
from tenfold.runs import Metric, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_POINTS = 1000
MOST_WITH_TRAINING = 3
"""Among more settings than these the training curves, which are noisy, would hide what was evaluated."""
FEW_BARS = 12
LOG_RANGE = 30.0
"""A loss that falls by more than this factor is shown on a logarithmic axis."""

Over = Literal["steps", "seconds"]
OVER: tuple[Over, ...] = get_args(Over)


def curves(series: Sequence[Series], metric: str, over: Over) -> str:
    """Return one metric, the mean over repeats: the training curve thin, what was evaluated with markers."""
    found = [_points(one.runs, metric, over) for one in series]
    if len(series) > MOST_WITH_TRAINING and any(part != "train" for parts in found for part in parts):
        found = [{part: points for part, points in parts.items() if part != "train"} for parts in found]
    if not any(points for parts in found for points in parts.values()):
        return ""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for one, parts in zip(series, found, strict=True):
            for part, points in parts.items():
                x, y = zip(*thinned(points), strict=True)
                axes.plot(x, y, **_strokes(one, part))
        for at in _losses(series, over):
            axes.axvline(at, color=INK, linewidth=0.9, linestyle=":")
        _scale(axes, metric, [y for parts in found for points in parts.values() for _, y in points])
        clock = clocks.of(run for one in series for run in one.runs)
        axes.set_xlabel("step" if over == "steps" else f"training time (s, {clock})")
        axes.set_ylabel(f"{plain(metric)} (%)" if metric == "accuracy" else plain(metric))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:,.0f}" if over == "steps" else "{x:g}")
        axes.locator_params(axis="x", integer=over == "steps")
        _name_curves(figure, series, found)

    return draw(f"{identifier(metric)}-{over}", f"{plain(metric)} over {over}", (NARROW, 3.0), paint)


def time_split(bars: Sequence[tuple[str, dict[str, float]]], clock: str) -> str:
    """Return what time is spent on, one bar of seconds for each name; `clock` says who told them."""
    kinds = [kind for kind in summary.KINDS if any(times.get(kind) for _, times in bars)]
    totals = [sum(times.values()) for _, times in bars]
    longest = max(totals, default=0.0)
    if not longest:
        return ""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        begins = [0.0] * len(bars)
        for kind in kinds:
            seconds = [times.get(kind, 0.0) for _, times in bars]
            looks: dict[str, Any] = {"height": 0.62, "color": palette.KINDS[kind]}
            drawn = axes.barh(range(len(bars)), seconds, left=begins, label=summary.NAMES.get(kind, kind), **looks)
            named = [duration(one) if one > 0.09 * longest else "" for one in seconds]
            axes.bar_label(drawn, named, label_type="center", color="white", fontsize=8)
            begins = [begin + one for begin, one in zip(begins, seconds, strict=True)]
        axes.set_yticks(range(len(bars)), [_short(name) for name, _ in bars])
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"time (s, {clock})")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=7, **COMPACT_LEGEND)

    height = 0.34 if len(bars) <= FEW_BARS else 0.24
    return draw("times", "what the time was spent on", (WIDE, 1.1 + height * len(bars)), paint)


def thinned(points: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Return at most this many of the points: the first, the last, and the lowest and highest of each stretch."""
    if len(points) <= most:
        return list(points)
    inner = range(1, len(points) - 1)
    stretches = (most - 2) // 2
    kept = {0, len(points) - 1}
    for at in range(stretches):
        stretch = inner[len(inner) * at // stretches : len(inner) * (at + 1) // stretches]
        kept |= {min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Return what can be drawn as curves: the loss, the accuracy, and what else was evaluated."""
    evaluated = dict.fromkeys(one.name for run in runs for one in run.measurements() if one.part != "train")
    return list(dict.fromkeys(["loss", *(["accuracy"] if "accuracy" in evaluated else []), *evaluated]))


def _points(runs: Sequence[Run], metric: str, over: Over) -> dict[str, list[tuple[float, float]]]:
    """Return the finite points of one metric by part, those of training first; an accuracy in percent.

    Of several runs, the mean of value and time at each step, as far as all have come.
    """
    factor = 100.0 if metric == "accuracy" else 1.0
    parts: dict[str, dict[int, list[Metric]]] = {}
    for one in (one for run in runs for one in run.measurements()):
        if one.name == metric and math.isfinite(one.value) and not one.worker:
            parts.setdefault(one.part, {}).setdefault(one.step, []).append(one)
    found: dict[str, list[tuple[float, float]]] = {}
    for part, steps in sorted(parts.items(), key=lambda item: item[0] != "train"):
        many = max(map(len, steps.values()))
        whole = [(step, listed) for step, listed in sorted(steps.items()) if len(listed) == many]
        found[part] = [
            (
                float(step) if over == "steps" else fmean(one.seconds for one in listed),
                fmean(one.value for one in listed) * factor,
            )
            for step, listed in whole
        ]
    return found


def _losses(series: Sequence[Series], over: Over) -> list[float]:
    """Return where a worker of a run that is shown by itself was lost: after the last epoch that was not repeated."""
    runs = [run for one in series for run in one.runs]
    if len(runs) != 1:
        return []
    ends = {row["epoch"]: row["step" if over == "steps" else "seconds"] for row in runs[0].history}
    return [float(ends.get(loss["epoch"] - 1, 0.0)) for loss in runs[0].result.get("lost") or []]


def _scale(axes: "Axes", metric: str, values: Sequence[float]) -> None:
    if metric.endswith("loss") and min(values) > 0 and max(values) > LOG_RANGE * min(values):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _strokes(one: Series, part: str) -> dict[str, Any]:
    """Return how a curve is drawn."""
    look = one.look
    if part == "train":
        return {"color": look.colour, "linestyle": look.dashes, "linewidth": 0.9, "alpha": 0.8}
    dashes = "--" if part == "validation" and not one.label else look.dashes
    marker = {"marker": look.marker, "markersize": 4, "fillstyle": look.fill}
    return {"color": look.colour, "linestyle": dashes, "linewidth": 1.4, **marker}


def _name_curves(figure: "Figure", series: Sequence[Series], found: Sequence[dict[str, Any]]) -> None:
    """Name the settings if there are several, else the parts of the one."""
    from matplotlib.lines import Line2D

    if any(one.label for one in series):
        below(figure, [(Line2D([], [], **_strokes(one, "test")), cut(one.label)) for one in series])
    else:
        lines = [Line2D([], [], **_strokes(series[0], part)) for part in found[0]]
        names = ["training" if part == "train" else part for part in found[0]]
        figure.axes[0].legend(lines, names, loc="best", labelcolor=INK)


def cut(label: str) -> str:
    """Return a name, shortened where it is too long for a plot."""
    return label if len(label) <= LABEL_LETTERS else f"{label[: LABEL_LETTERS - 1]}…"


def _short(label: str) -> str:
    text = cut(label)
    return f" {text}" if text.startswith("_") else text  # matplotlib hides names that begin with an underscore


def identifier(text: str) -> str:
    """Return a text as part of a drawing's name: letters, digits and dashes."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text)
