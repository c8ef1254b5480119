"""From the results of the folds to the result of the cross-validation."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from tenfold.crossval import fold_statistics
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
    spread = fold_statistics.summarize_folds(entries)
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


def best_first(metrics: dict[str, float]) -> tuple[float, float]:
    """Return a sort key that puts the best model first: by accuracy if there is one, then by loss."""
    loss = metrics["loss"]
    return -metrics.get("accuracy", 0.0), math.inf if math.isnan(loss) else loss


def _per_core(results: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[float]:
    """Return for each core the sum of the seconds of its folds; folds that train together count once."""
    cores: dict[int, dict[float, float]] = {}
    for result, own in zip(results, seconds, strict=True):
        about = result["crossval"]
        for core in about["cores"]:
            by_start = cores.setdefault(core, {})  # only folds that train together begin at the very same moment
            by_start[about["began"]] = max(by_start.get(about["began"], 0.0), own)
    return [sum(by_start.values()) for by_start in cores.values()]
