"""Plots of a sweep: how good its trials were, which values they had, and which field matters most."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tenfold.reports.formatting import field_value, metric_scale, one_line
from tenfold.reports.plots.charts import (
    BLUE,
    LAVENDER,
    OLIVE,
    Bar,
    BarChart,
    Chart,
    ChartLine,
    LineChart,
    ParallelAxis,
    ParallelChart,
    ParallelLine,
)
from tenfold.reports.results.sweep import TIMES, Sweep, Trial

FEWEST = 2
"""With fewer trials there is nothing to plot."""


def sweep_plots(sweep: Sweep) -> dict[str, Chart]:
    """Return the plots by name; none for a sweep without trials to compare."""
    scored = [trial for trial in sweep.trials if trial.value is not None and trial.status in ("finished", "pruned")]
    if len(scored) < FEWEST:
        return {}
    charts: dict[str, Chart] = {"history": _history(sweep, scored), "parallel": _parallel(sweep, scored)}
    if sweep.importance:
        charts["importance"] = _importance(sweep)
    return charts


def _history(sweep: Sweep, scored: Sequence[Trial]) -> LineChart:
    """Return the value of each trial, and the best so far."""
    scale, unit = (1, " s") if sweep.objective in TIMES else metric_scale(sweep.objective)
    better: Callable[..., float] = min if sweep.lower_is_better else max

    def points(status: str, label: str, color: str) -> ChartLine:
        some = [trial for trial in scored if trial.status == status]
        notes = [f"trial {trial.number}: {trial.label}, {sweep.written(trial.value)}" for trial in some]
        values = [scale * (trial.value or 0.0) for trial in some]
        return ChartLine(
            label=label, x=[trial.number for trial in some], y=values, notes=notes, color=color, joined=False
        )

    finished = [trial for trial in scored if trial.status == "finished"]
    best: list[float] = []
    for trial in finished:
        best.append(better([*best[-1:], scale * (trial.value or 0.0)]))
    lines = [ChartLine(label="best so far", x=[trial.number for trial in finished], y=best, reference=True)]
    lines.append(points("finished", "finished", BLUE))
    if any(trial.status == "pruned" for trial in scored):
        lines.append(points("pruned", "stopped", LAVENDER))
    title = f"{sweep.heading}{f' ({unit.strip()})' if unit else ''}"
    return LineChart(title=title, x_label="trial", lines=lines, unit=unit)


def _parallel(sweep: Sweep, scored: Sequence[Trial]) -> ParallelChart:
    """Return a line for each trial across an axis for each field, and one for its value."""
    columns = {name: [trial.values.get(name) for trial in scored] for name in sweep.space}
    places = {name: _places(values, log=sweep.space[name].endswith(":log")) for name, values in columns.items()}
    axes = [ParallelAxis(name=one_line(name), ticks=_ticks(columns[name], places[name])) for name in sweep.space]
    values = [trial.value or 0.0 for trial in scored]
    last = _places(values, log=False)
    ends = {min(values): min(last), max(values): max(last)}
    axes.append(ParallelAxis(name=sweep.heading, ticks=[(at, sweep.written(value)) for value, at in ends.items()]))
    order = sorted(values, reverse=sweep.lower_is_better)
    lines = [
        ParallelLine(
            places=[*(places[name][at] for name in sweep.space), last[at]],
            rank=order.index(values[at]) / max(1, len(values) - 1),
            faint=trial.status == "pruned",
            note=f"trial {trial.number} (run {trial.run}): {trial.label}, {sweep.heading} {sweep.written(trial.value)}",
        )
        for at, trial in enumerate(scored)
    ]
    return ParallelChart(title="values of each trial", axes=axes, lines=sorted(lines, key=lambda line: line.rank))


def _places(values: Sequence[Any], *, log: bool) -> list[float]:
    """Return where values are on an axis from 0 to 1: numbers by their size, others side by side."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = [math.log(value) if log else float(value) for value in values]
        low, high = min(numbers), max(numbers)
        return [(number - low) / (high - low) if high > low else 0.5 for number in numbers]
    names = sorted(set(map(str, values)))
    return [names.index(str(value)) / max(1, len(names) - 1) for value in values]


def _ticks(values: Sequence[Any], places: Sequence[float]) -> list[tuple[float, str]]:
    """Return what an axis says: all of a few values, or the ends."""
    ticks = dict(sorted(zip(places, map(field_value, values), strict=True)))
    return list(ticks.items()) if len(ticks) <= 5 else [min(ticks.items()), max(ticks.items())]


def _importance(sweep: Sweep) -> BarChart:
    shares = sorted(sweep.importance.items(), key=lambda pair: -pair[1])
    bars = [Bar(label=name, value=share, text=f"{share:.0%}", color=OLIVE) for name, share in shares]
    return BarChart(title="importance of each field", groups=[("", bars)], longest=1.0)
