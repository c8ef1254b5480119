"""What a page says of several runs, by setting: plain values, ready for the template."""

import math
from collections.abc import Sequence
from typing import Any

from tenfold.report import clocks, summary
from tenfold.report.formatting import count, duration, measure, moment, multiple, several
from tenfold.report.pages.sections import number
from tenfold.report.plots import device_plots as devices
from tenfold.report.plots import run_plots as plots
from tenfold.report.plots import scaling, timeline
from tenfold.report.plots.styles import Looks
from tenfold.report.plots.svg import INK
from tenfold.report.results.comparison import Comparison
from tenfold.report.results.sheet import Sheet
from tenfold.report.rows import Row
from tenfold.report.selection import best, drawn, seconds, telling, worth
from tenfold.runs import Run

MOST_CURVES = 8
MOST_NAMED = 12


def facts(runs: Sequence[Run]) -> list[str]:
    """Return what is the same for all runs, and when they were begun."""
    told = [{fact(run) for run in runs} for fact in (summary.model, summary.data)]
    began = list(dict.fromkeys(moment(one) for one in sorted(run.created for run in runs)))
    return [*(one.pop() for one in told if len(one) == 1), " to ".join(dict.fromkeys((began[0], began[-1])))]


def headline(comparison: Comparison) -> list[dict[str, str]]:
    """Return the few numbers that matter most, each with its name and the setting that reached it."""
    rows, runs = comparison.rows, comparison.runs
    numbers = []
    timed = [row for row in rows if row.seconds.values]
    if timed:
        fastest = min(timed, key=seconds)
        numbers.append(number(f"shortest training, {fastest.clock}", duration(seconds(fastest)), fastest.label))
    if faster := [row for row in rows if row.speedup is not None and row.workers > 1]:
        top = max(faster, key=lambda row: row.speedup or 0.0)
        numbers.append(number(f"highest speedup, {top.clock}", f"{top.speedup:.2f}", top.label))
    if others := [row for row in rows if row.factor_against_cpu is not None]:
        top = max(others, key=lambda row: row.factor_against_cpu or 0.0)
        numbers.append(number(f"highest factor against cpu, {top.clock}", multiple(top.factor_against_cpu), top.label))
    scored = [row for row in rows if math.isfinite(worth(row))]
    if scored:
        top = max(scored, key=worth)
        name, score = ("accuracy", top.accuracy) if top.accuracy.values else ("loss", top.loss)
        word = "best" if name == "accuracy" else "lowest"
        numbers.append(number(f"{word} {summary.part(top.runs[0])} {name}", measure(name, score.mean), top.label))
    finished = sum(run.status == "finished" for run in runs)
    ended = "all finished" if finished == len(runs) else f"{finished} finished"
    return [*numbers, number("settings", count(len(rows)), f"{several(len(runs), 'run')}, {ended}")]


def table(comparison: Sheet, looks: Looks) -> dict[str, Any]:
    """Return the table of settings, each with its colour, and what is to be known about it."""
    names, cells = comparison.cells()
    colours = [looks.of(row).colour.replace(INK, "currentColor") for row in comparison.rows]
    told = [column.words for column in comparison.columns()]
    return {"columns": list(zip(names, told, strict=True)), "rows": list(zip(colours, cells, strict=True))}


def figures(comparison: Comparison) -> dict[str, Any]:
    """Return the plots of several runs and what is said below them."""
    rows, looks = comparison.rows, Looks(comparison.rows)
    groups = devices.groups(rows)
    side_by_side = devices.chosen(groups)
    shown = drawn(rows, MOST_CURVES)
    series = [looks.series(row) for row in shown]
    names = plots.metric_names(comparison.runs)
    return {
        "scaling": [svg for draw in (scaling.speedup, scaling.efficiency) if (svg := draw(rows, looks))],
        "devices": devices.drawing(side_by_side, looks),
        "devices_left_out": _left_out(list(groups), list(side_by_side)),
        "tradeoff": scaling.tradeoff(rows, looks),
        "best": [(row.label, *_time_and_score(row)) for row in best(rows)],
        "curves": {over: [svg for name in names if (svg := plots.curves(series, name, over))] for over in plots.OVER},
        "with_training": len(shown) <= plots.MOST_WITH_TRAINING,
        "left_out": _left_out([row.label for row in rows], [row.label for row in shown]),
        "time_split": plots.time_split([(row.label, row.times) for row in rows if row.times], clocks.of(rows)),
        "timelines": _timelines(rows),
    }


def foretold(rows: Sequence[Row]) -> list[str]:
    """Return what is to be known about the predictions among these settings."""
    return summary.reasons([(row.label, [why for run in row.runs for why in _reasons(run)]) for row in rows])


def _reasons(run: Run) -> list[str]:
    return [str(reason) for reason in run.result.get("reasons") or []]


def runs(comparison: Comparison) -> list[tuple[Run, str]]:
    """Return every run with the name of its setting, in the order of their numbers."""
    found = [(run, row.label) for row in comparison.rows for run in row.runs]
    return sorted(found, key=lambda pair: pair[0].id)


def _time_and_score(row: Row) -> tuple[str, str]:
    name, score = ("accuracy", row.accuracy) if row.accuracy.values else ("loss", row.loss)
    return f"{duration(row.seconds.mean)} {row.clock}", measure(name, score.mean)


def _left_out(names: Sequence[str], shown: Sequence[str]) -> str:
    """Return which settings are not drawn, and why."""
    labels = [name for name in names if name not in shown]
    if not labels:
        return ""
    more = f", and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
    return (
        f"{len(shown)} of {len(names)} settings are drawn. Left out, as they are neither among the fastest nor among "
        f"the most accurate: {'; '.join(labels[:MOST_NAMED])}{more}."
    )


def _timelines(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the first steps of the most telling settings, all on one scale of time, with what each is."""
    found = [(why, row, timeline.length(timeline.first_steps(row.runs[0].spans()))) for why, row in telling(rows)]
    until = max((seconds for _, _, seconds in found), default=0.0)
    drawings = [(timeline.timeline(row.runs[0], until), row, why) for why, row, _ in found]
    return [(f"{row.label} (run {row.runs[0].id}): {why}", svg) for svg, row, why in drawings if svg]
