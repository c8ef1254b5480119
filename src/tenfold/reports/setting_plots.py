"""Plots of several settings: speedup and efficiency over the workers, and quality against training time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from tenfold.common.metric_traits import main_metric
from tenfold.prediction.planning.evidence import Assessment, describe_candidate
from tenfold.reports import summary
from tenfold.reports.charts import (
    SERIES,
    ChartLine,
    ChartPoint,
    LineChart,
    PlotStyles,
    ShareChart,
    Style,
    series,
)
from tenfold.reports.comparison_rows import Row, choose_rows, direction, mean_seconds, pareto_front, rows_metric
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
from tenfold.reports.tables import common_part, reached_by, time_unit
from tenfold.runs import Run

MOST_LINES = 12
BASELINE = "1 worker: the baseline"
Curve = tuple[str, Style, list[Row]]


def scaling_curves(rows: Sequence[Row], styles: PlotStyles) -> list[Curve]:
    """Return the rows that have a speedup, grouped into curves that differ only in the workers, each with its name.

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
    """Return the speedup over the number of workers, with the ideal line; None where there is no speedup."""
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
    """Return where the axis of an accuracy begins, if lower values would leave no room for those near the target."""
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
"""How many groups of settings are drawn, those with the highest speedups."""
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
