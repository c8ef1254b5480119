"""The first steps of a run, one by one: who computed when, and who waited."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tenfold.report import palette, summary
from tenfold.report.svg import COMPACT_LEGEND, WIDE, draw
from tenfold.runs import Run, Span

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch

MOST_STEPS = 25
MOST_LANES = 24


def timeline(run: Run, until: float | None = None) -> str:
    """Return the first steps of a run, one lane a worker, coloured by what each moment was spent on.

    The time axis ends with the steps, or after so many seconds, so that several timelines have the same scale.
    """
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
        axes.set_xlim(0, (until or length(spans)) * 1e3)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("time since the first step began (ms, measured)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=7, **COMPACT_LEGEND)

    return draw(f"timeline-{run.id}", "the first steps of every worker", (WIDE, 1.0 + 0.28 * len(workers)), paint)


def length(spans: Sequence[Span]) -> float:
    """Return the seconds from the beginning of the first span to the end of the last; 0 of none."""
    ends = max((span.at + span.seconds for span in spans), default=0.0)
    return ends - min((span.at for span in spans), default=0.0)


def first_steps(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of every worker's first steps, recorded one by one, and what came between these steps."""
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


def _boxes(boxes: Sequence[tuple[float, float, float, float]], **looks: Any) -> "PathPatch":
    """Return boxes (left, bottom, width, height) as one shape, which is far shorter in an SVG than many."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [((x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)) for x, y, w, h in boxes]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    return PathPatch(Path([point for box in corners for point in box], codes), linewidth=0, **looks)
