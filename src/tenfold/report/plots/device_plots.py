"""The same settings on several devices, like for like: how long each takes, and what it learns in that time."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from tenfold.report import clocks, summary
from tenfold.report.differences import spoken
from tenfold.report.formatting import duration, measure, multiple, plain
from tenfold.report.plots.run_plots import cut
from tenfold.report.plots.styles import Looks
from tenfold.report.plots.svg import COMPACT_LEGEND, INK, WIDE, draw
from tenfold.report.rows import CPU, Row, Spread
from tenfold.report.selection import drawn, seconds
from tenfold.report.tables.columns import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_GROUPS = 12
BAR = 0.22
"""Inches for one bar with its text."""
ROOM = 0.35
"""How much longer than its longest bar an axis is, for the text at the bar's end."""
Groups = Mapping[str, Sequence[Row]]


def groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the settings that were timed on several devices, by what their rows have in common; cpu comes first."""
    found: dict[str, list[Row]] = {}
    mixed = len({row.clock for row in rows}) > 1
    for row in rows:
        if "device" in row.settings and row.seconds.mean:
            others = spoken({name: value for name, value in row.settings.items() if name != "device"})
            name = ", ".join(one for one in (others, row.clock if mixed else "") if one)
            found.setdefault(name or plain(row.experiment.title), []).append(row)
    return {
        name: sorted(group, key=lambda row: _device(row) != CPU)
        for name, group in found.items()
        if len({_device(row) for row in group}) > 1
    }


def chosen(found: Groups) -> Groups:
    """Return as many groups as a plot can hold: those whose fastest rows are the fastest or the most accurate."""
    fastest = {name: min(group, key=seconds) for name, group in found.items()}
    kept = {id(row) for row in drawn(list(fastest.values()), MOST_GROUPS)}
    return {name: group for name, group in found.items() if id(fastest[name]) in kept}


def drawing(found: Groups, looks: Looks) -> str:
    """Return training time and accuracy beside each other: a group of bars for a setting, a colour for a device."""
    if not found:
        return ""
    places, rows = _places(found)
    scale, unit = unit_of(max(map(seconds, rows)))
    classes = any(row.accuracy.values for row in rows)
    percent = 100.0 if classes else 1.0
    part = summary.part_of_any(run for row in rows for run in row.runs)

    def score(row: Row) -> Spread:
        return row.accuracy if classes else row.loss

    def scored(row: Row) -> str:
        return measure("accuracy" if classes else "loss", score(row).mean)

    def paint(figure: "Figure") -> None:
        times, scores = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        bars = list(zip(places, rows, strict=True))
        for device, colour in looks.apart("device", list(dict.fromkeys(map(_device, rows)))).items():
            own = [(at, row) for at, row in bars if _device(row) == device]
            _bars(times, own, device, colour, lambda row: row.seconds, scale, _time)
            _bars(scores, own, device, colour, score, percent, scored)
        _logarithmic(times, [seconds(row) * scale for row in rows])
        times.set_xlabel(f"training time ({unit}, {clocks.of(rows)})")
        scores.margins(x=ROOM)
        if classes:
            scores.set_xticks(range(0, 101, 20))
        scores.set_xlabel(f"{part} accuracy (%)" if classes else f"{part} loss")
        middles = [fmean(at for at, row in bars if any(row is one for one in group)) for group in found.values()]
        times.set_yticks(middles, [cut(name) for name in found])
        times.set_ylim(places[-1] + 0.8, -0.8)
        for axes in (times, scores):
            axes.grid(visible=False, axis="y")
        figure.legend(*times.get_legend_handles_labels(), loc="outside upper left", ncols=7, **COMPACT_LEGEND)

    return draw("devices", "training time and accuracy on each device", (WIDE, 1.0 + BAR * (places[-1] + 1.6)), paint)


def _places(found: Groups) -> tuple[list[float], list[Row]]:
    """Return where each bar is, from above, and its row; between groups there is a gap."""
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
    """Draw one device's bars, each with its text at the end, behind the spread where there is one."""
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
    return plain(row.experiment.machine.device)


def _time(row: Row) -> str:
    gained = f", {multiple(row.factor_against_cpu)} × cpu" if row.factor_against_cpu is not None else ""
    return f"{duration(row.seconds.mean)}{gained}"
