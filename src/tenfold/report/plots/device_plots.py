"""Plots of the same settings on several devices: training time, and how good the model is."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from tenfold.report import clocks, summary
from tenfold.report.differences import describe_settings
from tenfold.report.formatting import metric_value, one_line, ratio
from tenfold.report.plots.styles import PlotStyles
from tenfold.report.plots.svg import INK, PHONE, draw_both, legend_above, shorten
from tenfold.report.rows import CPU, Row, Spread
from tenfold.report.selection import choose_rows, mean_seconds, rows_metric
from tenfold.report.tables.columns import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_GROUPS = 12
BAR = 0.22
"""Inches for one bar with its text."""
ROOM = 0.35
"""How much longer an axis is than its longest bar, to make room for the text at its end."""
Groups = Mapping[str, Sequence[Row]]


def device_groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the settings that were timed on several devices, by their common fields; the CPU comes first."""
    found: dict[str, list[Row]] = {}
    mixed = len({row.clock for row in rows}) > 1
    for row in rows:
        if "device" in row.settings and row.seconds.mean:
            others = describe_settings({name: value for name, value in row.settings.items() if name != "device"})
            name = ", ".join(one for one in (others, row.clock if mixed else "") if one)
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


def device_plot(found: Groups, styles: PlotStyles) -> str:
    """Return training times and metrics as bars: one group for each setting, one colour for each device."""
    if not found:
        return ""
    places, rows = _places(found)
    scale, unit = time_unit(max(map(mean_seconds, rows)))
    metric = rows_metric(rows)
    percent = 100.0 if metric == "accuracy" else 1.0
    part = summary.first_part(run for row in rows for run in row.runs)

    def score(row: Row) -> Spread:
        return row.metrics.get(metric, Spread())

    def score_text(row: Row) -> str:
        return metric_value(metric, score(row).mean)

    def time_text(row: Row) -> str:
        gained = f", {ratio(row.factor_against_cpu)} × cpu" if row.factor_against_cpu is not None else ""
        return f"{(row.seconds.mean or 0.0) * scale:.3g} {unit}{gained}"

    def size(width: float) -> tuple[float, float]:
        height = BAR * (places[-1] + 1.6)
        return (width, 1.0 + height) if width != PHONE else (width, 1.9 + 2 * (height + BAR * len(found)))

    def paint(figure: "Figure", width: float) -> None:
        if width == PHONE:
            times, scores = figure.subplots(2, 1)
        else:
            times, scores = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        bars = list(zip(places, rows, strict=True))
        for device, colour in styles.field_colours("device", list(dict.fromkeys(map(_device, rows)))).items():
            own = [(at, row) for at, row in bars if _device(row) == device]
            _bars(times, own, device, colour, lambda row: row.seconds, scale, time_text)
            _bars(scores, own, device, colour, score, percent, score_text)
        _logarithmic(times, [mean_seconds(row) * scale for row in rows])
        times.set_xlabel(f"training time ({unit}, {clocks.clock_names(rows)})")
        scores.margins(x=ROOM)
        if percent == 100:
            scores.set_xticks(range(0, 101, 20))
        scores.set_xlabel(f"{part} accuracy (%)" if percent == 100 else f"{part} {one_line(metric)}")
        for axes in (times, scores):
            axes.grid(visible=False, axis="y")
            axes.set_ylim(places[-1] + 0.8, -0.8 - 0.6 * (width == PHONE))
        middles = [fmean(at for at, row in bars if any(row is one for one in group)) for group in found.values()]
        if width != PHONE:
            times.set_yticks(middles, [shorten(name) for name in found])
        else:
            tops = [min(at for at, row in bars if any(row is one for one in group)) for group in found.values()]
            for axes in (times, scores):
                axes.set_yticks([])
                left = axes.get_xlim()[0]
                for top, name in zip(tops, found, strict=True):
                    axes.text(left, top - 0.5, shorten(name), fontsize=8, ha="left", va="bottom")
        legend_above(figure, width)

    return draw_both("devices", f"training time and {one_line(metric)} on each device", size, paint)


def _places(found: Groups) -> tuple[list[float], list[Row]]:
    """Return the position of each bar, from the top, and its row, with gaps between the groups."""
    places: list[float] = []
    for group in found.values():
        begin = places[-1] + 1.6 if places else 0.0
        places += [begin + at for at in range(len(group))]
    return places, [row for group in found.values() for row in group]


def _bars(
    axes: "Axes",
    own: Sequence[tuple[float, Row]],
    device: str,
    colour: str,
    spread: Callable[[Row], Spread],
    scale: float,
    text: Callable[[Row], str],
) -> None:
    """Draw the bars of one device, each with its text at the end and its deviation."""
    spreads = [spread(row) for _, row in own]
    errors = [(one.deviation or 0.0) * scale for one in spreads]
    drawn_bars = axes.barh(
        [at for at, _ in own],
        [(one.mean or 0.0) * scale for one in spreads],
        height=0.86,
        color=colour,
        label=device,
        xerr=errors if any(errors) else None,
        error_kw={"ecolor": INK, "elinewidth": 0.8, "capsize": 2, "capthick": 0.8},
    )
    axes.bar_label(drawn_bars, [text(row) for _, row in own], padding=3, fontsize=8)


def _logarithmic(axes: "Axes", values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = 10.0 ** math.floor(math.log10(min(values) / 2)), max(values)
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** ROOM)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 1000 else (1,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _device(row: Row) -> str:
    return one_line(row.experiment.machine.device)
