"""The plots of pages: settings side by side, forecasts and plans, devices, folds, and timelines of runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from tenfold.common import PARTS
from tenfold.common.metric_traits import main_metric
from tenfold.errors import StoreError
from tenfold.prediction.planning.evidence import Assessment, describe_candidate
from tenfold.reports import summary
from tenfold.reports.charts import (
    BLUE,
    GREEN,
    KIND_COLORS,
    ORANGE,
    RED,
    SERIES,
    BarPart,
    BarTable,
    ChartLine,
    ChartPoint,
    LaneChart,
    LineChart,
    PlotStyles,
    ShareChart,
    Spans,
    Strip,
    StripChart,
    Style,
    series,
)
from tenfold.reports.comparison_rows import (
    CPU,
    Row,
    Spread,
    choose_rows,
    direction,
    mean_seconds,
    pareto_front,
    rows_metric,
)
from tenfold.reports.forecast import ScalingPoint, find_knee, scaling_families
from tenfold.reports.formatting import (
    duration,
    grouped,
    interval,
    joined,
    metric_scale,
    metric_value,
    one_line,
    plural,
    ratio,
)
from tenfold.reports.run_tables import PART_NAMES, RecordedFold, mean_interval, name_of
from tenfold.reports.tables import common_part, reached_by, time_unit
from tenfold.runs import Run
from tenfold.runs.events import Span

MOST_LINES = 12
BASELINE = "1 worker: the baseline"
Curve = tuple[str, Style, list[Row]]


def scaling_curves(rows: Sequence[Row], styles: PlotStyles) -> list[Curve]:
    """Return the rows with a speedup as named curves; the rows of a curve differ only in the number of workers.

    If there are too many curves, those with the highest speedups are kept.
    """
    mixed = len({row.clock for row in rows}) > 1

    def name(row: Row) -> str:
        others = row.describe_without("workers")
        return joined(others, row.clock if mixed or not others else "")

    compared = [row for row in rows if row.speedup is not None and row.workers > 1]
    families = grouped((name(row), row) for row in sorted(compared, key=lambda row: row.workers))
    highest = sorted(families, key=lambda name: -max(row.speedup or 0.0 for row in families[name]))[:MOST_LINES]
    return [(name, styles.curve_style(group[0]), group) for name, group in families.items() if name in highest]


def speedup_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the speedup over the number of workers, with the ideal line; None without speedups."""
    if not (curves := scaling_curves(rows, styles)):
        return None
    widest = max(row.workers for _, _, group in curves for row in group)
    ideal = [reference_line("ideal: number of workers", [1, widest], [1, widest])]
    cores = sorted({(row.workers, row.speedup / row.efficiency) for row in rows if row.speedup and row.efficiency})
    if any(times < workers for workers, times in cores):
        x, y = zip(*cores, strict=True)
        ideal.append(reference_line("ideal: number of cores", x, y, dash=(2, 3)))

    def point(label: str, row: Row) -> ChartPoint:
        return _scaling_point(label, row, row.speedup or 0.0, row.speedup_deviation, ratio)

    lines = _worker_lines(curves, 1.0, point)
    highest = max(max(line.high or line.y) for line in lines)
    return LineChart(
        title=f"speedup T1/Tn ({summary.clock_names(rows)})",
        x_label="workers",
        lines=[*ideal, *lines],
        x_ticks=_counts(row for _, _, group in curves for row in group),
        y_range=(0, max(highest, min(widest, 2 * highest)) * 1.06),
    )


def efficiency_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the efficiency over the number of workers: 100% where every core contributes as much as the first."""
    if not (curves := scaling_curves(rows, styles)):
        return None

    def point(label: str, row: Row) -> ChartPoint:
        percent = 100 * (row.efficiency or 0.0)
        deviation = row.speedup_deviation and row.speedup_deviation * percent / (row.speedup or 1.0)
        return _scaling_point(label, row, percent, deviation, "{:.0f}%".format)

    lines = _worker_lines(curves, 100.0, point)
    counts = _counts(row for _, _, group in curves for row in group)
    return LineChart(
        title=f"efficiency (%, {summary.clock_names(rows)})",
        x_label="workers",
        unit="%",
        lines=[reference_line("ideal", [1, counts[-1]], [100, 100]), *lines],
        x_ticks=counts,
        y_range=(0, max(max(line.high or line.y) for line in lines) * 1.12),
    )


def _worker_lines(curves: Sequence[Curve], alone: float, point: Callable[[str, Row], ChartPoint]) -> list[ChartLine]:
    """Return a line over the workers for each curve, from the value of one worker."""
    return [
        ChartLine.of(
            label,
            [ChartPoint(1, alone, BASELINE), *(point(label, row) for row in group)],
            color=style.color,
            dash=style.dash,
            fill=style.fill,
        )
        for label, style, group in curves
    ]


def _scaling_point(
    label: str, row: Row, value: float, deviation: float | None, write: Callable[[float], str]
) -> ChartPoint:
    text = write(value) + (f" ± {write(deviation)}" if deviation is not None else "")
    note = f"{label}\n{plural(row.workers, 'worker')}: {text}, {duration(row.seconds.mean)} {row.clock}"
    return ChartPoint(row.workers, value, note, value - (deviation or 0.0), value + (deviation or 0.0))


def _counts(timed: Iterable[Row | ScalingPoint]) -> list[int]:
    return sorted({1, *(item.workers for item in timed)})


def tradeoff_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the main metric against the training time, one point for each setting; the best ones are numbered."""
    metric = rows_metric(rows)
    timed = [
        row for row in rows if row.seconds.mean is not None and metric in row.metrics and row.metrics[metric].values
    ]
    if len(timed) < 2:
        return None
    factor, unit = time_unit(max(map(mean_seconds, timed)))
    scale, percent = metric_scale(metric)
    about, part = percent or direction(timed, metric), common_part(timed)
    best = {id(row): str(number) for number, row in enumerate(pareto_front(timed), 1)}
    names = [styles.legend_name(row) for row in timed]
    ordered = sorted(zip(names, timed, strict=True), key=lambda pair: (names.index(pair[0]), mean_seconds(pair[1])))
    return LineChart(
        title=f"{'' if part == 'test' else part} {one_line(metric)}".strip() + (f" ({about})" if about else ""),
        x_label=f"training time ({unit}, {summary.clock_names(timed)})",
        unit=percent,
        lines=[
            _points(name, [row for _, row in group], styles, metric, (factor, scale), best)
            for name, group in groupby(ordered, key=lambda pair: pair[0])
        ],
        keys=[(marker, name) for marker, name in styles.marker_keys() if name not in names],
    )


def reference_line(label: str, x: Sequence[float], y: Sequence[float], dash: Sequence[float] = ()) -> ChartLine:
    return ChartLine(label=label, x=list(x), y=list(y), dash=dash, reference=True)


def _points(
    name: str,
    rows: Sequence[Row],
    styles: PlotStyles,
    metric: str,
    scales: tuple[float, float],
    best: dict[int, str],
) -> ChartLine:
    """Return the settings of one color and fill as points, with their deviations in the metric."""
    factor, scale = scales
    style = styles.style(rows[0])

    def point(row: Row) -> ChartPoint:
        score = row.metrics[metric]
        value, apart = (score.mean or 0.0) * scale, (score.deviation or 0.0) * scale
        scored = f"{one_line(metric)} {score.written(partial(metric_value, metric))}"
        note = f"{row.label}\n{row.seconds.written(duration)} {row.clock}, {scored}"
        return ChartPoint(mean_seconds(row) * factor, value, note, value - apart, value + apart)

    return ChartLine.of(
        name,
        list(map(point, rows)),
        color=style.color,
        joined=False,
        markers=[styles.style(row).marker for row in rows],
        fill=style.fill,
        numbers=[best.get(id(row), "") for row in rows],
    )


MOST_TARGET_LINES = 8
ZOOM = 6
"""Accuracies are drawn if their error is at most this many times the error at the target."""
Points = list[tuple[float, float]]


def target_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the metric of the target against the training time, one line a run; None where no setting has a target."""
    with_target = [row for row in rows if row.experiment.training.target is not None]
    lines_of = {row.label: [points for run in row.runs if (points := _evaluated(run))] for row in with_target}
    aimed = [(row, lines) for row in choose_rows(with_target, MOST_TARGET_LINES) if (lines := lines_of[row.label])]
    if not aimed:
        return None
    metric = _metric(aimed[0][0].runs[0])
    scale, percent = metric_scale(metric)
    factor, unit = time_unit(max(seconds for _, lines in aimed for points in lines for seconds, _ in points))
    targets = _targets(row for row, _ in aimed)

    def line(row: Row, points: Points) -> ChartLine:
        style = styles.style(row)
        return ChartLine.of(
            f"{row.label}: {reached_by(row, duration(row.seconds_to_target.mean))}",
            [
                ChartPoint(
                    seconds * factor, value * scale, f"{row.label}\n{duration(seconds)}: {metric_value(metric, value)}"
                )
                for seconds, value in points
            ],
            color=style.color,
            dash=style.dash,
            markers=[style.marker] * len(points),
            fill=style.fill,
        )

    return LineChart(
        x_label=f"training time ({unit}, {summary.clock_names(row for row, _ in aimed)})",
        title=one_line(metric) + (f" ({percent})" if percent else ""),
        unit=percent,
        lines=[line(row, points) for row, lines in aimed for points in lines],
        y_range=(_bottom(aimed) if percent else None, None),
        target=targets[0] * scale if len(targets) == 1 else None,
    )


def _targets(rows: Iterable[Row]) -> list[float]:
    return sorted({row.experiment.training.target for row in rows if row.experiment.training.target is not None})


def _bottom(aimed: Sequence[tuple[Row, list[Points]]]) -> float | None:
    """Return the lower end of an accuracy axis, if lower values would hide the values near the target."""
    lowest = _targets(row for row, _ in aimed)[0]
    least = min(value for _, lines in aimed for points in lines for _, value in points)
    bottom = 1 - ZOOM * (1 - lowest)
    return 100 * bottom if least < bottom else None


def _metric(run: Run) -> str:
    """Return the metric that the target is about: the experiment's first, or the accuracy of classes, or the loss."""
    evaluated = {measurement.name for measurement in run.measurements() if measurement.part != "train"}
    named = [getattr(metric, "name", metric) for metric in run.experiment.training.metrics[:1]]
    return next((str(name) for name in named if name in evaluated), None) or main_metric(evaluated) or "loss"


def _evaluated(run: Run) -> Points:
    """Return the evaluations of a run's evaluation part, by training time."""
    metric = _metric(run)
    evaluations = [
        measurement
        for measurement in run.measurements()
        if measurement.part != "train" and measurement.name == metric and not measurement.worker
    ]
    return sorted((evaluation.seconds, evaluation.value) for evaluation in evaluations)


MOST_SHARES = 6
"""Maximum number of groups of settings that are drawn, by highest speedup."""
MOST_BANDS = 3
"""With more curves than this, only the band of the curve below the pointer is drawn: all would hide each other."""


def forecast_speedup_plot(rows: Sequence[Row], styles: PlotStyles, hardware: str) -> LineChart | None:
    """Return the speedup over the workers on logarithmic axes, with intervals; rings show where it levels off."""
    if not (curves := scaling_curves(rows, styles)):
        return None
    families, counts = dict(scaling_families(rows)), _counts(rows)

    def with_ring(line: ChartLine) -> ChartLine:
        first = find_knee(families[line.label]).first if line.label in families else None
        ringed = [at for at, workers in enumerate(line.x) if first is not None and workers == first.workers]
        return replace(line, spread="band", rings=ringed)

    return LineChart(
        title=f"speedup T1/Tn ({summary.clock_names(rows)}, {hardware})",
        x_label="workers",
        lines=[
            reference_line("ideal: number of workers", [1, counts[-1]], [1, counts[-1]]),
            *map(with_ring, _worker_lines(curves, 1.0, _predicted_point)),
        ],
        x_log=2,
        y_log=2,
        x_ticks=counts,
    )


def scaling_plot(points: Sequence[ScalingPoint], title: str, scale: float) -> LineChart:
    """Return T1/Tn over the workers on a logarithmic axis: measured points full, predicted ones hollow.

    `scale` is the value of one worker; where that is 1, the ideal is the number of workers, else it stays.
    """
    counts, is_speedup = _counts(points), scale == 1.0
    lines = [reference_line("ideal", [1, counts[-1]], [scale, counts[-1] if is_speedup else scale])]
    for color, fill, clock in ((SERIES[0], "full", summary.MEASURED), (SERIES[1], "none", summary.PREDICTED)):
        drawn = [
            ChartPoint(
                point.workers,
                scale * point.ratio,
                f"{plural(point.workers, 'worker')}: {duration(point.seconds)} {clock}",
            )
            for point in points
            if point.clock == clock
        ]
        if drawn:
            dash = (5, 4) if clock == summary.PREDICTED else ()
            lines.append(ChartLine.of(clock, drawn, color=color, dash=dash, fill=fill))
    return LineChart(
        title=title,
        x_label="workers",
        unit="" if is_speedup else "%",
        lines=lines,
        x_log=2,
        y_log=2 if is_speedup else 0,
        x_ticks=counts,
        y_range=(None, None) if is_speedup else (0, None),
    )


def has_bands(rows: Sequence[Row]) -> bool:
    return len(scaling_families(rows)) <= MOST_BANDS


def share_plots(rows: Sequence[Row]) -> list[ShareChart]:
    """Return, for each group of settings, the shares of the time over the workers."""
    families = [(name, group) for name, group in scaling_families(rows) if len(group) > 1]
    highest = sorted(families, key=lambda family: -max(row.speedup or 0.0 for row in family[1]))[:MOST_SHARES]
    return [
        ShareChart(
            title=name or "all settings",
            clock=summary.clock_names(group),
            bars=[
                (plural(row.workers, "worker"), {kind: share for kind, share in row.shares.items() if share})
                for row in group
            ],
        )
        for name, group in families
        if (name, group) in highest
    ]


def speedup_bounds(row: Row) -> tuple[float, float]:
    """Return the speedup at both ends of the interval, for the predicted T1."""
    low, high = row.interval or (row.seconds.mean or 1.0,) * 2
    single = (row.speedup or 1.0) * (row.seconds.mean or 1.0)
    return single / high, single / low


def _predicted_point(label: str, row: Row) -> ChartPoint:
    low, high = speedup_bounds(row)
    seconds = row.seconds.mean or 0.0
    around = f" {interval(*row.interval, seconds)}" if row.interval else ""
    bounds = f" [{ratio(low)}-{ratio(high)}]" if row.interval else ""
    times = f"{duration(seconds)}{around} {row.clock}"
    note = f"{label}\n{plural(row.workers, 'worker')}: {ratio(row.speedup)}{bounds}, {times}"
    return ChartPoint(row.workers, row.speedup or 1.0, note, low, high)


MOST_LEARNING_CURVES = 8


def probe_plot(assessments: Sequence[Assessment], metric: str, target: float) -> LineChart | None:
    """Return the metric after short runs over the samples they saw, one line a setting, with the target as a line."""
    learning = {assessment.candidate.curve_key: assessment for assessment in reversed(assessments) if assessment.probes}
    shown = list(reversed(learning.values()))[:MOST_LEARNING_CURVES]
    if not shown:
        return None
    scale, unit = metric_scale(metric)

    staying = {assessment.candidate.curve_key for assessment in assessments if not assessment.dropped}

    def line(at: int, assessment: Assessment) -> ChartLine:
        color, marker = series(at)
        left = assessment.candidate.curve_key not in staying
        name = describe_candidate(assessment.candidate)
        return ChartLine.of(
            f"{name}, left the search" if left else name,
            [
                ChartPoint(
                    probe.samples,
                    probe.value * scale,
                    f"{name}\n{plural(probe.samples, 'sample')}: {metric_value(metric, probe.value)}",
                )
                for probe in assessment.probes
            ],
            color=color,
            dash=(2, 3) if left else (),
            markers=[marker] * len(assessment.probes),
        )

    return LineChart(
        x_label="training samples seen by all replicas",
        title=f"validation {one_line(metric)}" + (f" ({unit})" if unit else ""),
        unit=unit,
        lines=[line(*each) for each in enumerate(shown)],
        x_log=10,
        target=target * scale,
    )


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
    """Return the groups that fit into a plot, preferring the fastest and the most accurate ones."""
    fastest = {name: min(group, key=mean_seconds) for name, group in groups.items()}
    kept = {id(row) for row in choose_rows(list(fastest.values()), MOST_GROUPS)}
    return {name: group for name, group in groups.items() if id(fastest[name]) in kept}


def devices_plot(groups: Groups, styles: PlotStyles) -> BarTable | None:
    """Return training times and metrics as bars: a row for each setting, in it a bar for each device."""
    rows = [row for group in groups.values() for row in group]
    if not rows:
        return None
    metric = rows_metric(rows)
    scores = {id(row): row.metrics.get(metric, Spread()) for row in rows}
    colors = styles.field_colors("device", list(dict.fromkeys(map(_device, rows))))
    longest = max(map(mean_seconds, rows))
    highest = 1.0 if metric.endswith("accuracy") else max(score.mean or 0.0 for score in scores.values()) or 1.0

    def bar(row: Row, share: float, text: str) -> BarPart:
        return BarPart(series=list(colors).index(_device(row)), begin=0.0, end=share, text=text, note=row.label)

    def time_bar(row: Row) -> BarPart:
        gained = f"{ratio(row.factor_against_cpu)} × cpu" if row.factor_against_cpu is not None else ""
        return bar(row, mean_seconds(row) / longest, joined(row.seconds.written(duration), gained))

    def score_bar(row: Row) -> BarPart:
        score = scores[id(row)]
        return bar(row, max(0.0, score.mean or 0.0) / highest, score.written(partial(metric_value, metric)))

    return BarTable(
        title="the same settings on each device",
        measures=[f"training time ({summary.clock_names(rows)})", f"{common_part(rows)} {one_line(metric)}".strip()],
        zeros=[0.0, 0.0],
        series=list(colors.items()),
        rows=[(name, [list(map(time_bar, group)), list(map(score_bar, group))]) for name, group in groups.items()],
    )


def _device(row: Row) -> str:
    return one_line(row.experiment.machine.device)


COLORS = {"train": GREEN, "validation": BLUE, "test": ORANGE}
MICRO = 1e6


def fold_scores_plot(run: Run, metric: str) -> StripChart | None:
    """Return one metric of all folds: a strip of points for each part, with the mean and its 95% interval."""
    factor, unit = metric_scale(metric)
    strips = [strip for part in PARTS if (strip := _strip(run, part, metric, factor)) is not None]
    if not strips:
        return None
    return StripChart(title=one_line(metric), unit=unit, strips=strips)


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


def fold_timeline(run: Run) -> LaneChart | None:
    """Return the times of the folds on each core, one lane per core; None if no cores are known."""
    folds: list[RecordedFold] = run.result["folds"]
    cores = sorted({core for fold in folds for core in fold["cores"]})
    begin = min(fold["began"] for fold in folds)
    if not cores or max(fold["ended"] for fold in folds) <= begin:
        return None
    boxes = [(fold, core) for fold in folds for core in fold["cores"]]
    kinds = [("fold", BLUE)]
    if any(fold["status"] == "failed" for fold in folds):
        kinds.append(("failed fold", RED))
    return LaneChart(
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


def _strip(run: Run, part: str, metric: str, factor: float) -> Strip | None:
    scored = [fold for fold in run.result["folds"] if metric in fold["metrics"].get(part, {})]
    if not scored:
        return None
    spread: dict[str, Any] = run.result.get("spread", {}).get(part, {}).get(metric, {})
    ends = {end: spread[end] * factor for end in ("mean", "low", "high") if spread.get(end) is not None}
    values = [fold["metrics"][part][metric] for fold in scored]
    about = f"mean {metric_value(metric, spread.get('mean'))}, 95% interval {mean_interval(metric, spread)}"
    return Strip(
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
KIND_LABELS = [(name, KIND_COLORS[kind]) for kind, name in summary.KIND_NAMES.items()]


def timeline_plot(run: Run, until: float | None = None) -> LaneChart | None:
    """Return the first steps of a run, one lane per worker; None if no step was recorded.

    The time axis ends with the steps, or after `until` seconds to give several timelines the same scale.
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
    """Return each worker's predicted first steps above the measured ones, both from the same start."""
    both = [_columns(first_steps(run.spans())) for run in (virtual, real)]
    workers = sorted(set(both[0]["worker"]) & set(both[1]["worker"]))[:MOST_LANES]
    if not workers:
        return None
    rows = [{worker: 2 * at + below for at, worker in enumerate(workers)} for below in (0, 1)]
    parts = [_in_rows(spans, places) for spans, places in zip(both, rows, strict=True)]
    names = (summary.PREDICTED, summary.MEASURED)
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
    shown = [span for span in spans if span.kind in summary.KINDS]
    return {
        "worker": [span.worker for span in shown],
        "kind": [summary.KINDS.index(span.kind) for span in shown],
        "at": [round((span.at - begin) * MICRO) for span in shown],
        "length": [round(span.seconds * MICRO) for span in shown],
    }


def _in_rows(spans: Spans, rows: Mapping[int, int]) -> dict[str, list[int]]:
    """Return the spans of these workers, with the row of each instead of its worker."""
    kept = [row for row in zip(*(spans[name] for name in COLUMNS), strict=True) if row[0] in rows]
    return {name: [rows[row[0]] if name == "worker" else row[at] for row in kept] for at, name in enumerate(COLUMNS)}
