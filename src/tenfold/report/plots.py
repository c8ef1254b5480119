"""What runs look like: curves, where the time went, and the first steps one by one."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tenfold.report import palette, summary
from tenfold.report.compare import LABEL_LETTERS, labels
from tenfold.report.svg import INK, draw
from tenfold.report.words import duration, plain
from tenfold.runs import Metric, Run, Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch

NARROW, WIDE = 4.6, 9.6
"""Widths in inches, so that letters come out equally large where one takes half the page and the other all of it."""
MOST_POINTS = 1000
MOST_STEPS = 25
MOST_LANES = 24
LOG_RANGE = 30.0
"""A loss that falls by more than this factor is shown on a logarithmic axis."""

Over = Literal["steps", "seconds"]
AXES: dict[Over, str] = {"steps": "step", "seconds": "training time (s, measured)"}


def curves(runs: Sequence[Run], metric: str, over: Over) -> str:
    """Return one metric of all runs: the training curve thin, what was evaluated after each epoch with markers."""
    found = [_points(run, metric, over) for run in runs]
    if not any(points for parts in found for points in parts.values()):
        return ""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for at, parts in enumerate(found):
            colour, marker = palette.series(at)
            for part, points in parts.items():
                x, y = zip(*thinned(points), strict=True)
                if part == "train":
                    axes.plot(x, y, color=colour, linewidth=0.9, alpha=0.8)
                else:
                    dashes = "--" if part == "validation" else "-"
                    axes.plot(x, y, color=colour, linewidth=1.4, linestyle=dashes, marker=marker, markersize=4)
        _scale(axes, metric, [y for parts in found for points in parts.values() for _, y in points])
        axes.set_xlabel(AXES[over])
        axes.set_ylabel(f"{plain(metric)} (%)" if metric == "accuracy" else plain(metric))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter("{x:,.0f}" if over == "steps" else "{x:g}")
        _curve_legend(axes, runs, found)

    return draw(f"{_identifier(metric)}-{over}", f"{plain(metric)} over {over}", (NARROW, 3.0), paint)


def time_split(runs: Sequence[Run]) -> str:
    """Return what each run's time was spent on, as bars of measured seconds."""
    times = [summary.times(run) for run in runs]
    kinds = [kind for kind in summary.KINDS if any(kind in one for one in times)]
    longest = max((sum(one.values()) for one in times), default=0.0)
    if not longest:
        return ""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        begins = [0.0] * len(runs)
        for kind in kinds:
            seconds = [one.get(kind, 0.0) for one in times]
            label = summary.NAMES.get(kind, kind)
            bars = axes.barh(
                range(len(runs)), seconds, left=begins, height=0.62, color=palette.KINDS[kind], label=label
            )
            named = [duration(one) if one > 0.09 * longest else "" for one in seconds]
            axes.bar_label(bars, named, label_type="center", color="white", fontsize=8)
            begins = [begin + one for begin, one in zip(begins, seconds, strict=True)]
        names = [_short(label) for label in labels(runs)] if len(runs) > 1 else [""]
        axes.set_yticks(range(len(runs)), names)
        axes.set_ylim(len(runs) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("time (s, measured)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=7, **_SMALL_LEGEND)

    return draw("times", "what the time was spent on", (WIDE, 1.1 + 0.34 * len(runs)), paint)


def timeline(run: Run) -> str:
    """Return the first steps of a run, one lane a worker, coloured by what each moment was spent on."""
    spans = first_steps(run.spans())
    if not spans:
        return ""
    workers = sorted({span.worker for span in spans})[:MOST_LANES]
    kinds = [kind for kind in summary.KINDS if any(span.kind == kind for span in spans)]
    origin = min(span.at for span in spans)

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        lanes = {worker: lane for lane, worker in enumerate(workers)}
        for kind in kinds:
            chosen = [span for span in spans if span.kind == kind and span.worker in lanes]
            boxes = [((span.at - origin) * 1e3, lanes[span.worker] - 0.36, span.seconds * 1e3, 0.72) for span in chosen]
            axes.add_patch(_boxes(boxes, facecolor=palette.KINDS[kind], label=summary.NAMES.get(kind, kind)))
        axes.set_yticks(range(len(workers)), [f"worker {worker}" for worker in workers])
        axes.set_ylim(len(workers) - 0.4, -0.6)
        axes.set_xlim(0, max(span.at + span.seconds - origin for span in spans) * 1e3)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("time since the first step began (ms, measured)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=7, **_SMALL_LEGEND)

    return draw(f"timeline-{run.id}", "the first steps of every worker", (WIDE, 1.0 + 0.28 * len(workers)), paint)


def first_steps(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of every worker's first steps, recorded one by one, and what came between these steps."""
    counted: Counter[tuple[int, str]] = Counter()
    steps, others = [], []
    for span in spans:
        if span.count == 1 and span.kind in summary.TRAINING_KINDS:
            counted[span.worker, span.kind] += 1
            if counted[span.worker, span.kind] <= MOST_STEPS:
                steps.append(span)
        elif span.count == 1:
            others.append(span)
    begin, end = min((span.at for span in steps), default=0.0), max((span.at for span in steps), default=0.0)
    return [*steps, *(span for span in others if begin <= span.at < end)]


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


_SMALL_LEGEND: dict[str, Any] = {"handlelength": 0.9, "handleheight": 0.9, "columnspacing": 1.2, "handletextpad": 0.5}


def _boxes(boxes: Sequence[tuple[float, float, float, float]], **looks: Any) -> "PathPatch":
    """Return boxes (left, bottom, width, height) as one shape, which is far shorter in an SVG than many."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [((x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)) for x, y, w, h in boxes]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    return PathPatch(Path([point for box in corners for point in box], codes), linewidth=0, **looks)


def _points(run: Run, metric: str, over: Over) -> dict[str, list[tuple[float, float]]]:
    """Return the finite points of one metric by part, those of training first; an accuracy in percent."""
    place: Callable[[Metric], float] = (lambda one: one.step) if over == "steps" else (lambda one: one.seconds)
    factor = 100.0 if metric == "accuracy" else 1.0
    parts: dict[str, list[tuple[float, float]]] = {}
    for one in run.measurements():
        if one.name == metric and math.isfinite(one.value) and not one.worker:
            parts.setdefault(one.part, []).append((place(one), one.value * factor))
    return dict(sorted(parts.items(), key=lambda item: item[0] != "train"))


def _scale(axes: "Axes", metric: str, values: Sequence[float]) -> None:
    if metric.endswith("loss") and min(values) > 0 and max(values) > LOG_RANGE * min(values):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _curve_legend(axes: "Axes", runs: Sequence[Run], found: Sequence[dict[str, Any]]) -> None:
    """Name the runs if there are several, else the parts of the one."""
    from matplotlib.lines import Line2D

    if len(runs) == 1:
        colour, marker = palette.series(0)
        thin, thick = {"linewidth": 0.9, "alpha": 0.8}, {"linewidth": 1.4, "marker": marker, "markersize": 4}
        lines = [Line2D([], [], color=colour, **(thin if part == "train" else thick)) for part in found[0]]
        names = ["training" if part == "train" else part for part in found[0]]
    else:
        looks = [palette.series(at) for at in range(len(runs))]
        lines = [Line2D([], [], color=colour, marker=marker, linewidth=1.4, markersize=4) for colour, marker in looks]
        names = [_short(label) for label in labels(runs)]
    axes.legend(lines, names, loc="best", labelcolor=INK)


def _short(label: str) -> str:
    text = label if len(label) <= LABEL_LETTERS else f"{label[: LABEL_LETTERS - 1]}…"
    return f" {text}" if text.startswith("_") else text  # matplotlib hides names that begin with an underscore


def _identifier(text: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text)
