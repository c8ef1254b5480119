"""From the folds to the whole: the result's numbers, and the models put together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tenfold.crossval import statistics
from tenfold.crossval.fold import OUTPUTS
from tenfold.crossval.layout import Place, mode_of
from tenfold.crossval.models import average, combined, voice
from tenfold.machine import devices
from tenfold.runs import checkpoint
from tenfold.training import all_targets, choose_loss, choose_metrics, evaluate, measure
from tenfold.workers.task import Task, make_network

AVERAGE = "average.pt"
"""The file of the average of all models."""
Entry = dict[str, Any]


def entry(place: Place, run: int | None, about: dict[str, Any], seconds: float = 0.0, *, error: str = "") -> Entry:
    """Return what the whole's result tells of one fold."""
    return {
        "fold": place.fold,
        "repeat": place.repeat,
        "node": place.node,
        "run": run,
        "status": "failed" if error else "finished",
        "error": error,
        "metrics": about.get("metrics", {"train": {}, "validation": {}, "test": {}}),
        "seconds": seconds,
        "began": about["began"],
        "ended": about["ended"],
        "cores": about["cores"],
        "threads": about["threads"],
        "train_samples": len(place.train),
        "validation_samples": len(place.validation),
    }


def result_of(task: Task, entries: Sequence[Entry], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of the whole but for its models; `results` are those of the folds that finished."""
    done = [one["crossval"] for one in results]
    seconds = max(one["ended"] for one in done) - min(one["first_step"] for one in done)
    spread = statistics.spread(entries)
    cores = {core for one in entries for core in one["cores"]}
    samples = sum(one["samples"] for one in results)
    kinds = sorted({kind for one in results for kind in one["times"]})
    return {
        "part": "validation",
        "metrics": {name: values["mean"] for name, values in spread["validation"].items()},
        "seconds": seconds,
        "times": {kind: fmean(one["times"].get(kind, 0.0) for one in results) for kind in kinds},
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
        "mode": mode_of(task.experiment),
        "folds": list(entries),
        "spread": spread,
    }


def rank(metrics: dict[str, float]) -> tuple[float, float]:
    """Return what is the smaller the better a model is: by its accuracy where there is one, then by its loss."""
    loss = metrics["loss"]
    return -metrics.get("accuracy", 0.0), math.inf if math.isnan(loss) else loss


@dataclass(frozen=True)
class Models:
    """The models of the folds that finished, in files."""

    task: Task
    """The whole."""
    folders: Sequence[Path]
    samples: Sequence[int]
    """What each has learnt from."""

    def average(self, path: Path) -> dict[str, float]:
        """Save the mean of all weights, and return how it does on the test part."""
        task, training = self.task, self.task.experiment.training
        network = make_network(task)
        weights = [dict(checkpoint.load(folder / "model.pt")) for folder in self.folders]
        checkpoint.save(average(network, weights, self.samples), path)
        if task.splits.test is None:
            return {}
        network = network.to(devices.resolve(task.experiment.machine.device))
        return evaluate(network, task.splits.test, *self._measures(), precision=training.precision)

    def vote(self) -> dict[str, float]:
        """Return how all models together do on the test part."""
        splits = self.task.splits
        if splits.test is None:
            return {}
        outputs = [checkpoint.load(folder / OUTPUTS) for folder in self.folders]
        together = combined(outputs, voice(self.task.experiment.training, splits.classes))
        return measure(together, all_targets(splits.test), *self._measures())

    def _measures(self) -> tuple[Any, Any]:
        training, classes = self.task.experiment.training, self.task.splits.classes
        return choose_loss(training, classes), choose_metrics(training, classes)
