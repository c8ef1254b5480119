"""From the results of the folds to the result of the cross-validation: sums, means and their spread."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from tenfold.common.metric_table import LOSS
from tenfold.common.part_names import PARTS
from tenfold.crossval.fold_experiment import resolve_fold_mode
from tenfold.crossval.fold_splits import FoldSplit
from tenfold.workers.task import Task

FoldEntry = dict[str, Any]
"""One fold in the result of the cross-validation, as JSON."""


def fold_entry(
    split: FoldSplit, run: int | None, about: dict[str, Any], seconds: float = 0.0, *, error: str = ""
) -> FoldEntry:
    """Return the entry of one fold; `about` is the "crossval" part of its result."""
    return {
        "fold": split.fold,
        "repeat": split.repeat,
        "node": split.node,
        "run": run,
        "status": "failed" if error else "finished",
        "error": error,
        "metrics": about.get("metrics", {"train": {}, "validation": {}, "test": {}}),
        "seconds": seconds,
        "began": about["began"],
        "ended": about["ended"],
        "cores": about["cores"],
        "threads": about["threads"],
        "train_samples": len(split.train),
        "validation_samples": len(split.validation),
    }


def combine_results(task: Task, entries: Sequence[FoldEntry], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of the cross-validation, without its models; `results` are those of the finished folds.

    As for a single training, "seconds" is training time only. The folds that one core trains in turn add up, and the
    time is that of the busiest core; "times" are means over the cores.
    """
    seconds = max(_per_core(results, [one["seconds"] for one in results]))
    spread = summarize_folds(entries)
    cores = {core for one in entries for core in one["cores"]}
    samples = sum(one["samples"] for one in results)
    kinds = sorted({kind for one in results for kind in one["times"]})
    return {
        "part": "validation",
        "metrics": {name: values["mean"] for name, values in spread["validation"].items()},
        "seconds": seconds,
        "times": {kind: fmean(_per_core(results, [one["times"].get(kind, 0.0) for one in results])) for kind in kinds},
        "epochs": max(one["epochs"] for one in results),
        "steps": sum(one["steps"] for one in results),
        "samples": samples,
        "samples_per_second": samples / seconds if seconds else None,
        "bytes_moved": sum(one["bytes_moved"] for one in results),
        "workers": task.workers,
        # as if the workers shared all cores that were in use, so that tables of speedups count these
        "threads": max(1, len(cores) // task.workers),
        "best_epoch": None,
        "stopped_early": any(one["stopped_early"] for one in results),
        "mode": resolve_fold_mode(task.experiment),
        "folds": list(entries),
        "spread": spread,
        **({"start_copy_seconds": task.splits.copy_seconds} if task.splits.copy_seconds else {}),
    }


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return Student's confidence interval of the mean, mean +- t s / sqrt(k); None for fewer than two values.

    s is the standard deviation of the k values (with k - 1), t the quantile (1 + level) / 2 of Student's distribution
    with k - 1 degrees of freedom. The folds' training parts overlap, so their results are not independent and the
    interval is somewhat too narrow (Bengio & Grandvalet 2004, "No unbiased estimator of the variance of k-fold
    cross-validation").
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean = fmean(values)
    reach = float(stdtrit(len(values) - 1, (1 + level) / 2)) * stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, std (with k - 1), and the ends of the 95% interval as low and high; None for too few values."""
    low, high = interval(values) or (None, None)
    return {
        "mean": fmean(values) if values else None,
        "std": stdev(values) if len(values) > 1 else None,
        "low": low,
        "high": high,
    }


def summarize_folds(folds: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the summary of every metric on every part, over the finished folds."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for part in PARTS:
        rows = [fold["metrics"].get(part, {}) for fold in folds if fold["status"] == "finished"]
        names = dict.fromkeys(name for row in rows for name in row)
        found[part] = {name: summary([row[name] for row in rows if name in row]) for name in names}
    return found


def best_first(metrics: dict[str, float], *, metric: str, lower: bool) -> tuple[float, float]:
    """Return a sort key that puts the best model first: by this metric, then by the loss; what is no number is last."""
    values = metrics.get(metric, math.nan), metrics.get(LOSS, math.nan)
    signed = values[0] if lower else -values[0], values[1]
    return tuple(math.inf if math.isnan(value) else value for value in signed)  # type: ignore[return-value]


def _per_core(results: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[float]:
    """Return for each core the sum of the seconds of its folds; folds that train together count once."""
    cores: dict[int, dict[float, float]] = {}
    for result, own in zip(results, seconds, strict=True):
        about = result["crossval"]
        for core in about["cores"]:
            by_start = cores.setdefault(core, {})  # only folds that train together begin at the very same moment
            by_start[about["began"]] = max(by_start.get(about["began"], 0.0), own)
    return [sum(by_start.values()) for by_start in cores.values()]
