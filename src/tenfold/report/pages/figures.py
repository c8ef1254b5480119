"""The numbers behind a page's interactive plots, which its scripts draw; a report carries them inside."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from tenfold.report import clocks, summary
from tenfold.report.curves import Columns, Curves
from tenfold.report.lanes import Lanes
from tenfold.report.plots import palette
from tenfold.report.plots.charts import Chart, chart_data
from tenfold.report.plots.styles import Style
from tenfold.report.rows import Row
from tenfold.runs import Run, Started
from tenfold.runs.storage.follower import Follower

ALONE = Style(palette.SERIES[0])
"""How a single run is drawn."""


def page_figures(
    figures: Sequence[dict[str, Any]],
    runs: Iterable[clocks.HasClock],
    charts: Mapping[str, Chart | None] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return everything that the scripts of a page draw: the runs' figures, charts by name, colours and names."""
    return {
        "figures": list(figures),
        "clock": clocks.clock_names(runs),
        "plots": chart_data(charts or {}),
        "kinds": [
            {"kind": kind, "name": name, "colour": palette.KIND_COLOURS[kind]}
            for kind, name in summary.KIND_NAMES.items()
        ],
        **more,
    }


def run_figure(run: Run, label: str = "", style: Style = ALONE) -> dict[str, Any]:
    """Return the figure of a run as it is in the store now."""
    with closing(Follower(run.store)) as follower:
        events, _ = follower.events(run.id)
    curves, lanes = Curves(), Lanes()
    curves.add(events)
    lanes.add(events)
    return {
        **describe_figure(run, label, style),
        "curves": curves.between(),
        "lanes": lanes.between(),
        "times": run.times or lanes.times(),
    }


def describe_figure(run: Run, label: str = "", style: Style = ALONE) -> dict[str, Any]:
    """Return what a figure says of a run apart from its measurements: name, colour, length of an epoch, target."""
    started = next((event for event in run.lifecycle() if isinstance(event, Started)), None)
    training = run.experiment.training
    return {
        "id": run.id,
        "label": label,
        "status": run.status,
        "clock": run.clock,
        "colour": style.colour or None,
        "dash": style.dash,
        "epochLength": started.steps_per_epoch if started else 0,
        "samples": started.train_samples if started else 0,
        "epochs": training.epochs,
        "target": training.target,
        "marks": _lost_workers(run),
    }


def mean_figure(row: Row, style: Style) -> dict[str, Any]:
    """Return the figure of a setting: the means over its repeats at the steps that all of them have measured."""
    each = [run_figure(run, row.label, style) for run in row.runs]
    return {**each[0], "curves": mean_curves([one["curves"] for one in each]), "lanes": None, "repeats": len(each)}


def mean_curves(repeats: Sequence[Sequence[Columns]]) -> list[Columns]:
    """Return the means of repeated curves at the steps that all of them have."""
    if len(repeats) == 1:
        return list(repeats[0])
    found: dict[tuple[str, str, int], dict[int, list[tuple[float, float]]]] = {}
    for curves in repeats:
        for curve in curves:
            steps = found.setdefault((curve["name"], curve["part"], curve["worker"]), {})
            for step, seconds, value in zip(curve["step"], curve["seconds"], curve["value"], strict=True):
                steps.setdefault(step, []).append((seconds, value))
    means = []
    for (name, part, worker), steps in found.items():
        whole = {step: points for step, points in sorted(steps.items()) if len(points) == len(repeats)}
        columns = [list(zip(*points, strict=True)) for points in whole.values()]
        means.append(
            {
                "name": name,
                "part": part,
                "worker": worker,
                "step": list(whole),
                "seconds": [sum(seconds) / len(repeats) for seconds, _ in columns],
                "value": [sum(values) / len(repeats) for _, values in columns],
            }
        )
    return means


def _lost_workers(run: Run) -> list[dict[str, float]]:
    """Return where a run lost workers: after the last epoch that was not repeated."""
    ends = {row["epoch"]: row for row in run.history} if run.result.get("lost") else {}
    found = [ends.get(loss["epoch"] - 1) for loss in run.result.get("lost") or []]
    return [{key: row[key] for key in ("epoch", "step", "seconds")} for row in found if row is not None]
