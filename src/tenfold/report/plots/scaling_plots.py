"""Plots of several settings: speedup and efficiency over the workers, and quality against training time."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

from tenfold.report import clocks
from tenfold.report.formatting import duration, grouped, joined, metric_scale, metric_value, one_line, plural, ratio
from tenfold.report.plots.charts import ChartLine, LineChart
from tenfold.report.plots.styles import PlotStyles, Style
from tenfold.report.row_ranking import direction, mean_seconds, pareto_front, rows_metric
from tenfold.report.rows import Row
from tenfold.report.tables.columns import common_part, time_unit

MOST_LINES = 12
Curve = tuple[str, Style, list[Row]]
Measured = tuple[float | None, float | None]
"""A value and its deviation."""


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
    return [(name, styles.style(group[0]), group) for name, group in families.items() if name in highest]


def speedup_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the speedup over the number of workers, with the ideal line; None where there is no speedup."""
    cores = sorted({(row.workers, row.speedup / row.efficiency) for row in rows if row.speedup and row.efficiency})

    def ideal(widest: int) -> list[ChartLine]:
        lines = [reference_line("ideal: number of workers", [1, widest], [1, widest])]
        if any(times < workers for workers, times in cores):
            x, y = zip(*cores, strict=True)
            lines.append(reference_line("ideal: number of cores", x, y, dash=(2, 3)))
        return lines

    def times(row: Row) -> Measured:
        return row.speedup, row.speedup_deviation

    def top(highest: float, widest: int) -> float:
        return max(highest, min(widest, 2 * highest)) * 1.06

    label = f"speedup T1/Tn ({clocks.clock_names(rows)})"
    return _over_workers(scaling_curves(rows, styles), label, 1.0, "", times, ideal, top)


def efficiency_plot(rows: Sequence[Row], styles: PlotStyles) -> LineChart | None:
    """Return the efficiency over the number of workers: 100% where every core contributes as much as the first."""

    def percent(row: Row) -> Measured:
        if row.efficiency is None or row.speedup is None:
            return None, None
        factor = 100 * row.efficiency / row.speedup
        return row.speedup * factor, row.speedup_deviation * factor if row.speedup_deviation is not None else None

    def ideal(widest: int) -> list[ChartLine]:
        return [reference_line("ideal", [1, widest], [100, 100])]

    label = f"efficiency (%, {clocks.clock_names(rows)})"
    curves = scaling_curves(rows, styles)
    return _over_workers(curves, label, 100.0, "%", percent, ideal, lambda highest, _: highest * 1.12)


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
    about = percent or direction(timed, metric)
    best = {id(row): str(number) for number, row in enumerate(pareto_front(timed), 1)}
    names = [styles.legend_name(row) for row in timed]
    ordered = sorted(zip(names, timed, strict=True), key=lambda pair: (names.index(pair[0]), mean_seconds(pair[1])))
    return LineChart(
        title=_scored(timed, one_line(metric) + (f" ({about})" if about else "")),
        x_label=f"training time ({unit}, {clocks.clock_names(timed)})",
        unit=percent,
        lines=[
            _points(name, [row for _, row in group], styles, metric, (factor, scale), best)
            for name, group in groupby(ordered, key=lambda pair: pair[0])
        ],
        keys=[(marker, name) for marker, name in styles.marker_keys() if name not in names],
    )


def _scored(rows: Sequence[Row], metric: str) -> str:
    """Return a metric with the part that it is about, where this is not the test part."""
    part = common_part(rows)
    return metric if part in ("test", "") else f"{part} {metric}"


def reference_line(label: str, x: Sequence[float], y: Sequence[float], dash: Sequence[float] = ()) -> ChartLine:
    """Return a line to compare others with."""
    return ChartLine(label=label, x=list(x), y=list(y), dash=dash, reference=True)


def _points(
    name: str,
    rows: Sequence[Row],
    styles: PlotStyles,
    metric: str,
    scales: tuple[float, float],
    best: dict[int, str],
) -> ChartLine:
    """Return the settings of one colour and fill as points, with their deviations in the metric."""
    factor, scale = scales
    style = styles.style(rows[0])
    scores = [row.metrics[metric] for row in rows]
    spreads = [((one.mean or 0.0) * scale, (one.deviation or 0.0) * scale) for one in scores]
    deviating = any(apart for _, apart in spreads)
    return ChartLine(
        label=name,
        x=[mean_seconds(row) * factor for row in rows],
        y=[value for value, _ in spreads],
        notes=[_tradeoff_note(row, metric) for row in rows],
        colour=style.colour,
        joined=False,
        markers=[styles.style(row).marker for row in rows],
        fill=style.fill,
        low=[value - apart for value, apart in spreads] if deviating else (),
        high=[value + apart for value, apart in spreads] if deviating else (),
        numbers=[best.get(id(row), "") for row in rows],
    )


def _tradeoff_note(row: Row, metric: str) -> str:
    """Return the setting with its time and metric, and the deviations of both."""
    score = row.metrics[metric].written(partial(metric_value, metric))
    return f"{row.label}\n{row.seconds.written(duration)} {row.clock}, {one_line(metric)} {score}"


def _over_workers(
    found: Sequence[Curve],
    title: str,
    alone: float,
    unit: str,
    value: Callable[[Row], Measured],
    ideal: Callable[[int], list[ChartLine]],
    top: Callable[[float, int], float],
) -> LineChart | None:
    if not found:
        return None
    widest = max(row.workers for _, _, group in found for row in group)
    highest = max((value(row)[0] or 0.0) + (value(row)[1] or 0.0) for _, _, group in found for row in group)

    def line(label: str, style: Style, group: Sequence[Row]) -> ChartLine:
        values = [(1, alone, 0.0), *((row.workers, value(row)[0] or 0.0, value(row)[1] or 0.0) for row in group)]
        notes = ["1 worker: the baseline", *(_scaling_note(label, row, *value(row), unit) for row in group)]
        deviating = any(apart for _, _, apart in values)
        return ChartLine(
            label=label,
            x=[workers for workers, _, _ in values],
            y=[height for _, height, _ in values],
            notes=notes,
            colour=style.colour,
            dash=style.dash,
            fill=style.fill,
            low=[height - apart for _, height, apart in values] if deviating else (),
            high=[height + apart for _, height, apart in values] if deviating else (),
        )

    return LineChart(
        title=title,
        x_label="workers",
        unit=unit,
        lines=[*ideal(widest), *(line(*one) for one in found)],
        x_ticks=sorted({1, *(row.workers for _, _, group in found for row in group)}),
        y_range=(0, top(max(highest, alone), widest)),
    )


def _scaling_note(label: str, row: Row, value: float | None, deviation: float | None, unit: str) -> str:
    text = f"{value or 0.0:.0f}{unit}" if unit else ratio(value)
    if deviation is not None:
        text += f" ± {f'{deviation:.0f}{unit}' if unit else ratio(deviation)}"
    seconds = f"{duration(row.seconds.mean)} {row.clock}"
    return f"{label}\n{plural(row.workers, 'worker')}: {text}, {seconds}"
