"""Plots of the same settings on several devices: training time, and how good the model is."""

from collections.abc import Mapping, Sequence
from functools import partial

from tenfold.report import clocks
from tenfold.report.formatting import duration, joined, metric_value, one_line, ratio
from tenfold.report.plots.charts import Bar, BarChart
from tenfold.report.plots.styles import PlotStyles
from tenfold.report.row_ranking import choose_rows, mean_seconds, rows_metric
from tenfold.report.rows import CPU, Row, Spread
from tenfold.report.tables.columns import common_part

MOST_GROUPS = 12
Groups = Mapping[str, Sequence[Row]]


def device_groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the settings that were timed on several devices, by their common fields; the CPU comes first."""
    found: dict[str, list[Row]] = {}
    mixed = len({row.clock for row in rows}) > 1
    for row in rows:
        if "device" in row.settings and row.seconds.mean:
            name = joined(row.describe_without("device"), row.clock if mixed else "")
            found.setdefault(name or one_line(row.experiment.title), []).append(row)
    return {
        name: sorted(group, key=lambda row: _device(row) != CPU)
        for name, group in found.items()
        if len({_device(row) for row in group}) > 1
    }


def choose_groups(found: Groups) -> Groups:
    """Return as many groups as fit into a plot: those whose fastest rows are the fastest or the most accurate."""
    fastest = {name: min(group, key=mean_seconds) for name, group in found.items()}
    kept = {id(row) for row in choose_rows(list(fastest.values()), MOST_GROUPS)}
    return {name: group for name, group in found.items() if id(fastest[name]) in kept}


def device_plots(found: Groups, styles: PlotStyles) -> dict[str, BarChart]:
    """Return training times and metrics as bars, by name: one group for each setting, one colour for each device."""
    rows = [row for group in found.values() for row in group]
    if not rows:
        return {}
    metric = rows_metric(rows)
    part = common_part(rows)
    colours = styles.field_colours("device", list(dict.fromkeys(map(_device, rows))))

    def time_bar(row: Row) -> Bar:
        return _bar(row, row.seconds.mean, _time_text(row), colours)

    def score_bar(row: Row) -> Bar:
        score = row.metrics.get(metric, Spread())
        return _bar(row, score.mean, score.written(partial(metric_value, metric)), colours)

    return {
        "device-times": BarChart(
            title=f"training time ({clocks.clock_names(rows)})",
            groups=[(name, list(map(time_bar, group))) for name, group in found.items()],
        ),
        "device-scores": BarChart(
            title=f"{part} {one_line(metric)}".strip(),
            groups=[(_how_run(name, group[0]), list(map(score_bar, group))) for name, group in found.items()],
            longest=1.0 if metric.endswith("accuracy") else None,
        ),
    }


def _bar(row: Row, value: float | None, text: str, colours: Mapping[str, str]) -> Bar:
    device = _device(row)
    return Bar(label=device, value=value, text=text, colour=colours[device], note=f"{row.label}: {text}")


def _time_text(row: Row) -> str:
    gained = f"{ratio(row.factor_against_cpu)} × cpu" if row.factor_against_cpu is not None else ""
    return joined(row.seconds.written(duration), gained)


def _how_run(name: str, row: Row) -> str:
    """Return the name of a group with "real" or "simulated" in place of the clock, as scores are never predicted."""
    return name.removesuffix(row.clock) + clocks.HOW_RUN[row.clock] if name.endswith(row.clock) else name


def _device(row: Row) -> str:
    return one_line(row.experiment.machine.device)
