"""Plots of a cross-validation: scores of the folds, and which core trained which fold."""

from typing import Any

from tenfold.common.part_names import PARTS
from tenfold.errors import StoreError
from tenfold.report.formatting import metric_scale, metric_value, one_line
from tenfold.report.plots import palette
from tenfold.report.plots.charts import LaneChart, Strip, StripChart
from tenfold.report.tables.fold_tables import PART_NAMES, RecordedFold, name_of
from tenfold.runs import Run

COLOURS = {"train": palette.GREEN, "validation": palette.BLUE, "test": palette.ORANGE}
MICRO = 1e6


def fold_scores_plot(run: Run, metric: str) -> StripChart | None:
    """Return one metric of all folds: a strip of points for each part, with the mean and its 95% interval."""
    factor, unit = metric_scale(metric)
    strips = [strip for part in PARTS if (strip := _strip(run, part, metric, factor)) is not None]
    if not strips:
        return None
    return StripChart(title=one_line(metric), unit=unit, strips=strips)


def fold_runs(run: Run) -> list[Run]:
    """Return the recorded runs of a cross-validation's folds."""
    found = []
    for fold in run.result.get("folds") or []:
        try:
            other = run.other(fold["run"]) if fold["run"] is not None else None
        except StoreError:
            other = None
        if other is not None and other.facts.get("crossval", {}).get("parent") == run.id:
            found.append(other)
    return found


def fold_timeline(run: Run) -> LaneChart | None:
    """Return which core worked on which fold and when, one lane for each core; None where no cores are known."""
    folds: list[RecordedFold] = run.result["folds"]
    cores = sorted({core for fold in folds for core in fold["cores"]})
    begin = min(fold["began"] for fold in folds)
    if not cores or max(fold["ended"] for fold in folds) <= begin:
        return None
    boxes = [(fold, core) for fold in folds for core in fold["cores"]]
    kinds = [("fold", palette.BLUE)]
    if any(fold["status"] == "failed" for fold in folds):
        kinds.append(("failed fold", palette.RED))
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
    return Strip(
        name=PART_NAMES.get(part, part),
        colour=COLOURS[part],
        values=[value * factor for value in values],
        notes=[f"{name_of(fold)}: {metric_value(metric, value)}" for fold, value in zip(scored, values, strict=True)],
        about=_about_mean(spread, metric),
        **ends,
    )


def _about_mean(spread: dict[str, Any], metric: str) -> str:
    if spread.get("mean") is None:
        return ""
    text = f"mean {metric_value(metric, spread['mean'])}"
    if spread.get("low") is None:
        return text
    return f"{text}, 95% interval {metric_value(metric, spread['low'])} to {metric_value(metric, spread['high'])}"
