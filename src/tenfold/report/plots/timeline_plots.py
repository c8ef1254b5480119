"""Lanes of workers: when each computed, waited and communicated, in the first steps or in the whole run."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tenfold.report import clocks, summary
from tenfold.report.plots import palette
from tenfold.report.plots.charts import LaneChart, Spans
from tenfold.runs import Run, Span

MOST_STEPS = 25
MOST_LANES = 24
MICRO = 1e6
COLUMNS = ("worker", "kind", "at", "length")
KIND_LABELS = [(name, palette.KIND_COLOURS[kind]) for kind, name in summary.KIND_NAMES.items()]


def timeline_plot(run: Run, until: float | None = None) -> LaneChart | None:
    """Return the first steps of a run, one lane for each worker; None where no step was recorded.

    The time axis ends with the steps, or after `until` seconds, so that several timelines have the same scale.
    """
    spans = _columns(first_steps(run.spans()))
    if not spans["worker"]:
        return None
    workers = sorted(set(spans["worker"]))
    kept = workers[:MOST_LANES]
    cut = f", the first {len(kept)} workers" if len(kept) < len(workers) else ""
    return LaneChart(
        title=f"the first steps of run {run.id}{cut}",
        clock=run.clock,
        rows=[f"worker {worker}" for worker in kept],
        kinds=KIND_LABELS,
        spans=_in_rows(spans, {worker: row for row, worker in enumerate(kept)}),
        until=until,
    )


def twin_timeline_plot(real: Run, virtual: Run) -> LaneChart | None:
    """Return what each worker was predicted to do in the first steps above what it did, both from the same start."""
    both = [_columns(first_steps(run.spans())) for run in (virtual, real)]
    workers = sorted(set(both[0]["worker"]) & set(both[1]["worker"]))[:MOST_LANES]
    if not workers:
        return None
    rows = [{worker: 2 * at + below for at, worker in enumerate(workers)} for below in (0, 1)]
    parts = [_in_rows(spans, places) for spans, places in zip(both, rows, strict=True)]
    names = (clocks.PREDICTED, clocks.MEASURED)
    return LaneChart(
        title="the first steps, predicted and measured",
        clock=" and ".join(names),
        rows=[f"worker {worker}, {name}" for worker in workers for name in names],
        kinds=KIND_LABELS,
        spans={name: [*parts[0][name], *parts[1][name]] for name in COLUMNS},
        together=2,
    )


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


def _columns(spans: Sequence[Span]) -> Spans:
    """Return spans as columns, with times from the beginning of the first one."""
    begin = min((span.at for span in spans), default=0.0)
    known = [span for span in spans if span.kind in summary.KINDS]
    return {
        "worker": [span.worker for span in known],
        "kind": [summary.KINDS.index(span.kind) for span in known],
        "at": [round((span.at - begin) * MICRO) for span in known],
        "length": [round(span.seconds * MICRO) for span in known],
    }


def _in_rows(spans: Spans, rows: Mapping[int, int]) -> dict[str, list[int]]:
    """Return the spans of these workers, with the row of each instead of its worker."""
    kept = [row for row in zip(*(spans[name] for name in COLUMNS), strict=True) if row[0] in rows]
    return {name: [rows[row[0]] if name == "worker" else row[at] for row in kept] for at, name in enumerate(COLUMNS)}
