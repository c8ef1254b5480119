"""Plots of single runs and of the same settings on several devices."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tenfold.common import PARTS
from tenfold.errors import StoreError
from tenfold.reports import charts, summary
from tenfold.reports.comparison_rows import CPU, Row, Spread, choose_rows, mean_seconds, rows_metric
from tenfold.reports.formatting import duration, joined, metric_scale, metric_value, one_line, ratio
from tenfold.reports.run_tables import PART_NAMES, RecordedFold, mean_interval, name_of
from tenfold.reports.tables import common_part
from tenfold.runs import Run, Span

MOST_GROUPS = 12
Groups = Mapping[str, Sequence[Row]]


def device_groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the settings that were timed on several devices, by their common fields; the CPU comes first."""
    groups: dict[str, list[Row]] = {}
    mixed = len({row.clock for row in rows}) > 1
    for row in rows:
        if "device" in row.settings and row.seconds.mean:
            name = joined(row.describe_without("device"), row.clock if mixed else "")
            groups.setdefault(name or one_line(row.experiment.title), []).append(row)
    return {
        name: sorted(group, key=lambda row: _device(row) != CPU)
        for name, group in groups.items()
        if len({_device(row) for row in group}) > 1
    }


def choose_groups(groups: Groups) -> Groups:
    """Return as many groups as fit into a plot: those whose fastest rows are the fastest or the most accurate."""
    fastest = {name: min(group, key=mean_seconds) for name, group in groups.items()}
    kept = {id(row) for row in choose_rows(list(fastest.values()), MOST_GROUPS)}
    return {name: group for name, group in groups.items() if id(fastest[name]) in kept}


def devices_plot(groups: Groups, styles: charts.PlotStyles) -> charts.BarTable | None:
    """Return training times and metrics as bars: a row for each setting, in it a bar for each device."""
    rows = [row for group in groups.values() for row in group]
    if not rows:
        return None
    metric = rows_metric(rows)
    scores = {id(row): row.metrics.get(metric, Spread()) for row in rows}
    colors = styles.field_colors("device", list(dict.fromkeys(map(_device, rows))))
    longest = max(map(mean_seconds, rows))
    highest = 1.0 if metric.endswith("accuracy") else max(score.mean or 0.0 for score in scores.values()) or 1.0

    def bar(row: Row, share: float, text: str) -> charts.BarPart:
        return charts.BarPart(series=list(colors).index(_device(row)), begin=0.0, end=share, text=text, note=row.label)

    def time_bar(row: Row) -> charts.BarPart:
        gained = f"{ratio(row.factor_against_cpu)} × cpu" if row.factor_against_cpu is not None else ""
        return bar(row, mean_seconds(row) / longest, joined(row.seconds.written(duration), gained))

    def score_bar(row: Row) -> charts.BarPart:
        score = scores[id(row)]
        return bar(row, max(0.0, score.mean or 0.0) / highest, score.written(partial(metric_value, metric)))

    return charts.BarTable(
        title="the same settings on each device",
        measures=[f"training time ({summary.clock_names(rows)})", f"{common_part(rows)} {one_line(metric)}".strip()],
        zeros=[0.0, 0.0],
        series=list(colors.items()),
        rows=[(name, [list(map(time_bar, group)), list(map(score_bar, group))]) for name, group in groups.items()],
    )


def _device(row: Row) -> str:
    return one_line(row.experiment.machine.device)


COLORS = {"train": charts.GREEN, "validation": charts.BLUE, "test": charts.ORANGE}
MICRO = 1e6


def fold_scores_plot(run: Run, metric: str) -> charts.StripChart | None:
    """Return one metric of all folds: a strip of points for each part, with the mean and its 95% interval."""
    factor, unit = metric_scale(metric)
    strips = [strip for part in PARTS if (strip := _strip(run, part, metric, factor)) is not None]
    if not strips:
        return None
    return charts.StripChart(title=one_line(metric), unit=unit, strips=strips)


def fold_runs(run: Run) -> list[Run]:
    runs = []
    for fold in run.result.get("folds") or []:
        try:
            other = run.other(fold["run"]) if fold["run"] is not None else None
        except StoreError:
            other = None
        if other is not None and other.metadata.get("crossval", {}).get("parent") == run.id:
            runs.append(other)
    return runs


def fold_timeline(run: Run) -> charts.LaneChart | None:
    """Return which core worked on which fold and when, one lane for each core; None where no cores are known."""
    folds: list[RecordedFold] = run.result["folds"]
    cores = sorted({core for fold in folds for core in fold["cores"]})
    begin = min(fold["began"] for fold in folds)
    if not cores or max(fold["ended"] for fold in folds) <= begin:
        return None
    boxes = [(fold, core) for fold in folds for core in fold["cores"]]
    kinds = [("fold", charts.BLUE)]
    if any(fold["status"] == "failed" for fold in folds):
        kinds.append(("failed fold", charts.RED))
    return charts.LaneChart(
        title="folds on cores over time",
        clock=run.clock,
        rows=[f"core {core}" for core in cores],
        kinds=kinds,
        spans={
            "worker": [cores.index(core) for _, core in boxes],
            "kind": [int(fold["status"] == "failed") for fold, _ in boxes],
            "at": [round((fold["began"] - begin) * MICRO) for fold, _ in boxes],
            "length": [round((fold["ended"] - fold["began"]) * MICRO) for fold, _ in boxes],
        },
        texts=[name_of(fold) for fold, _ in boxes],
    )


def _strip(run: Run, part: str, metric: str, factor: float) -> charts.Strip | None:
    scored = [fold for fold in run.result["folds"] if metric in fold["metrics"].get(part, {})]
    if not scored:
        return None
    spread: dict[str, Any] = run.result.get("spread", {}).get(part, {}).get(metric, {})
    ends = {end: spread[end] * factor for end in ("mean", "low", "high") if spread.get(end) is not None}
    values = [fold["metrics"][part][metric] for fold in scored]
    about = f"mean {metric_value(metric, spread.get('mean'))}, 95% interval {mean_interval(metric, spread)}"
    return charts.Strip(
        name=PART_NAMES.get(part, part),
        color=COLORS[part],
        values=[value * factor for value in values],
        notes=[f"{name_of(fold)}: {metric_value(metric, value)}" for fold, value in zip(scored, values, strict=True)],
        about=about if ends else "",
        **ends,
    )


MOST_STEPS = 25
MOST_LANES = 24
COLUMNS = ("worker", "kind", "at", "length")
KIND_LABELS = [(name, charts.KIND_COLORS[kind]) for kind, name in summary.KIND_NAMES.items()]


def timeline_plot(run: Run, until: float | None = None) -> charts.LaneChart | None:
    """Return the first steps of a run, one lane for each worker; None where no step was recorded.

    The time axis ends with the steps, or after `until` seconds, so that several timelines have the same scale.
    """
    spans = _columns(first_steps(run.spans()))
    if not spans["worker"]:
        return None
    workers = sorted(set(spans["worker"]))
    kept = workers[:MOST_LANES]
    cut = f", the first {len(kept)} workers" if len(kept) < len(workers) else ""
    return charts.LaneChart(
        title=f"the first steps of run {run.id}{cut}",
        clock=run.clock,
        rows=[f"worker {worker}" for worker in kept],
        kinds=KIND_LABELS,
        spans=_in_rows(spans, {worker: row for row, worker in enumerate(kept)}),
        until=until,
    )


def twin_timeline_plot(real: Run, virtual: Run) -> charts.LaneChart | None:
    """Return each worker's predicted first steps above the measured ones, both from the same start."""
    both = [_columns(first_steps(run.spans())) for run in (virtual, real)]
    workers = sorted(set(both[0]["worker"]) & set(both[1]["worker"]))[:MOST_LANES]
    if not workers:
        return None
    rows = [{worker: 2 * at + below for at, worker in enumerate(workers)} for below in (0, 1)]
    parts = [_in_rows(spans, places) for spans, places in zip(both, rows, strict=True)]
    names = (summary.PREDICTED, summary.MEASURED)
    return charts.LaneChart(
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


def _columns(spans: Sequence[Span]) -> charts.Spans:
    """Return spans as columns, with times from the beginning of the first one."""
    begin = min((span.at for span in spans), default=0.0)
    shown = [span for span in spans if span.kind in summary.KINDS]
    return {
        "worker": [span.worker for span in shown],
        "kind": [summary.KINDS.index(span.kind) for span in shown],
        "at": [round((span.at - begin) * MICRO) for span in shown],
        "length": [round(span.seconds * MICRO) for span in shown],
    }


def _in_rows(spans: charts.Spans, rows: Mapping[int, int]) -> dict[str, list[int]]:
    """Return the spans of these workers, with the row of each instead of its worker."""
    kept = [row for row in zip(*(spans[name] for name in COLUMNS), strict=True) if row[0] in rows]
    return {name: [rows[row[0]] if name == "worker" else row[at] for row in kept] for at, name in enumerate(COLUMNS)}
