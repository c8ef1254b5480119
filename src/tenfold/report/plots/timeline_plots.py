"""Timelines of the first steps: when each worker computed, waited and communicated."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tenfold.report import clocks, summary
from tenfold.report.plots import palette
from tenfold.report.plots.svg import PHONE, draw_both, legend_above
from tenfold.runs import Run, Span

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch

MOST_STEPS = 25
MOST_LANES = 24
GAP = 0.6
"""Space between two runs, as a multiple of a lane."""


def timeline_plot(run: Run, until: float | None = None) -> str:
    """Return the first steps of a run, one lane for each worker, coloured by what the time is spent on.

    The time axis ends with the steps, or after `until` seconds, so that several timelines have the same scale.
    """
    return _drawn(f"timeline-{run.id}", [(run, first_steps(run.spans()))], until)


def twin_timeline_plot(real: Run, virtual: Run) -> str:
    """Return the first steps of a real run and, below them on the same axis, those of its virtual twin."""
    both = [(run, first_steps(run.spans())) for run in (real, virtual)]
    return _drawn("timelines", both, max(total_seconds(spans) for _, spans in both))


def _drawn(name: str, runs: Sequence[tuple[Run, list[Span]]], until: float | None) -> str:
    groups = [(run, spans, sorted({span.worker for span in spans})[:MOST_LANES]) for run, spans in runs if spans]
    if not groups:
        return ""
    several = len(runs) > 1
    kinds = [kind for kind in summary.KINDS if any(span.kind == kind for _, spans, _ in groups for span in spans)]
    ends = [sum(len(workers) for _, _, workers in groups[:at]) + at * GAP for at in range(1, len(groups) + 1)]
    lanes = [
        {worker: end - GAP - len(workers) + place for place, worker in enumerate(workers)}
        for (_, _, workers), end in zip(groups, ends, strict=True)
    ]
    last = ends[-1] - GAP
    cut = any(len({span.worker for span in spans}) > MOST_LANES for _, spans, _ in groups)
    which = f"; the first {MOST_LANES} workers" if cut else ""

    def paint(figure: "Figure", width: float) -> None:
        axes = figure.subplots()
        for kind in kinds:
            boxes = []
            for (_, spans, _), rows in zip(groups, lanes, strict=True):
                origin = min(span.at for span in spans)
                chosen = [span for span in spans if span.kind == kind and span.worker in rows]
                boxes += [
                    ((span.at - origin) * 1e3, rows[span.worker] - 0.36, span.seconds * 1e3, 0.72) for span in chosen
                ]
            axes.add_patch(
                _boxes(boxes, facecolor=palette.KIND_COLOURS[kind], label=summary.KIND_NAMES.get(kind, kind))
            )
        named = {
            row: f"{run.clock}, worker {worker}" if several else f"worker {worker}"
            for (run, _, _), rows in zip(groups, lanes, strict=True)
            for worker, row in rows.items()
        }
        axes.set_yticks(list(named), list(named.values()))
        axes.set_ylim(last - 0.4, -0.6)
        axes.set_xlim(0, (until or total_seconds(groups[0][1])) * 1e3)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(
            f"time since the first step began (ms, {clocks.clock_names(run for run, _, _ in groups)}){which}"
            if width != PHONE
            else f"time (ms, {clocks.clock_names(run for run, _, _ in groups)}){which}"
        )
        legend_above(figure, width)

    def size(width: float) -> tuple[float, float]:
        return width, 1.0 + 0.28 * last + 0.3 * (width == PHONE)

    return draw_both(name, "the first steps of every worker", size, paint)


def total_seconds(spans: Sequence[Span]) -> float:
    """Return the seconds from the start of the first span to the end of the last; 0 without spans."""
    ends = max((span.at + span.seconds for span in spans), default=0.0)
    return ends - min((span.at for span in spans), default=0.0)


def first_steps(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of the first steps of each worker, and of what happened between these steps."""
    single = [span for span in spans if span.count == 1]
    counted: Counter[tuple[int, str]] = Counter()
    first = []
    for span in single:
        if span.kind in summary.TRAINING_KINDS:
            counted[span.worker, span.kind] += 1
            if max(counted[span.worker, kind] for kind in summary.TRAINING_KINDS) <= MOST_STEPS:
                first.append(span)
    begin, end = min((span.at for span in first), default=0.0), max((span.at for span in first), default=0.0)
    others = (span for span in single if span.kind not in summary.TRAINING_KINDS and begin <= span.at < end)
    return [*first, *others]


def _boxes(boxes: Sequence[tuple[float, float, float, float]], **options: Any) -> "PathPatch":
    """Return boxes (left, bottom, width, height) as one shape, which makes a much shorter SVG than many."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [((x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)) for x, y, w, h in boxes]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    return PathPatch(Path([point for box in corners for point in box], codes), linewidth=0, **options)
