"""A cross-validation as its user sees it: read from its run, nothing made up."""

from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
from torch import nn

from tenfold.common.registry import suggest
from tenfold.crossval import statistics
from tenfold.crossval.combine import AVERAGE
from tenfold.crossval.models import Vote, voice
from tenfold.errors import ExperimentError, StoreError
from tenfold.runs import Run, checkpoint
from tenfold.runs.store import FOLDED

Part = str
PARTS = ("train", "validation", "test")


class CrossValidation:
    """What came out of a cross-validation, and the models of its folds.

    `CrossValidation(tenfold.open_run(12))` reads one that was recorded.
    """

    def __init__(self, run: Run) -> None:
        if run.kind != FOLDED:
            raise StoreError(f"run {run.id} is no cross-validation but of the kind '{run.kind}'")
        self.run = run
        """The whole, as it is recorded."""

    @property
    def folds(self) -> list[dict[str, Any]]:
        """What is known of each fold: its metrics on all parts, times, cores, and what went wrong."""
        return list(self.run.result.get("folds", []))

    @property
    def metric(self) -> str:
        """What mean, std and confidence are about: accuracy, else the first metric, else the loss."""
        names = self._names("validation")
        return next((name for name in ["accuracy", *names] if name in names and name != "loss"), "loss")

    def scores(self, metric: str | None = None, part: Part = "validation") -> list[float]:
        """Return a metric of every fold that finished, on one part: train, validation or test."""
        if part not in PARTS:
            raise ExperimentError(f"unknown part '{part}'; {suggest(part, PARTS)}")
        name, known = metric or self.metric, self._names(part)
        if known and name not in known:
            raise ExperimentError(f"run {self.run.id} has no metric '{name}'; {suggest(name, known)}")
        return [fold["metrics"][part][name] for fold in self.folds if name in fold["metrics"].get(part, {})]

    @property
    def accuracies(self) -> list[float]:
        """Each fold's share of right answers on its validation part; empty where there are no classes."""
        return self.scores("accuracy") if "accuracy" in self._names("validation") else []

    @property
    def mean(self) -> float:
        """The mean over the folds of `metric` on their validation parts; NaN while none has finished."""
        return fmean(self.scores() or [float("nan")])

    @property
    def std(self) -> float:
        """The standard deviation over the folds, with k - 1; NaN for a single one."""
        return stdev(self.scores()) if len(self.scores()) > 1 else float("nan")

    def confidence(self, level: float = 0.95) -> tuple[float, float]:
        """Return Student's confidence interval of the mean; NaN at both ends for a single fold."""
        if not 0 < level < 1:
            raise ExperimentError(f"level = {level:g}: should be between 0 and 1, such as 0.95")
        return statistics.interval(self.scores(), level) or (float("nan"), float("nan"))

    @property
    def seconds(self) -> float | None:
        """Measured time from the first fold's first step to the last fold's end."""
        return self.run.seconds

    @cached_property
    def runs(self) -> list[Run]:
        """The run of every fold that was begun."""
        return [self.run.other(fold["run"]) for fold in self.folds if fold["run"] is not None]

    @property
    def best(self) -> Run:
        """The fold that did best on its validation part; `best.model` is its network."""
        if "models" not in self.run.result:
            raise StoreError(f"run {self.run.id} is {self.run.status}; `tenfold resume {self.run.id}` goes on with it")
        return self.run.other(self.folds[self.run.result["models"]["best"]["fold"] - 1]["run"])

    @cached_property
    def average_model(self) -> nn.Module:
        """The network whose weights are the mean of all folds' weights."""
        return self.run.other(self.run.id, weights=dict(checkpoint.load(self.run.path / AVERAGE))).model

    @cached_property
    def vote(self) -> nn.Module:
        """All folds' networks as one, which vote."""
        training, classes = self.run.experiment.training, self.run.facts["data"]["classes"]
        return Vote([run.model for run in self.runs if run.status == "finished"], voice(training, classes)).eval()

    def as_sklearn(self) -> dict[str, Any]:
        """Return the dictionary of `sklearn.model_selection.cross_validate`, with what it calls test: validation.

        One metric is test_score and train_score, several are test_<metric> and train_<metric>. Without a metric the
        score is the negative loss. A fold that failed has NaN.
        """
        results = {fold["run"]: self.run.other(fold["run"]).times for fold in self.folds if fold["run"] is not None}
        scored = {"fit_time": [fold["seconds"] for fold in self.folds]}
        scored["score_time"] = [results.get(fold["run"], {}).get("evaluate", 0.0) for fold in self.folds]
        names = [name for name in self._names("validation") if name != "loss"]
        for ours, theirs in (("validation", "test"), ("train", "train")):
            for name in names:
                key = f"{theirs}_{name}" if len(names) > 1 else f"{theirs}_score"
                scored[key] = [fold["metrics"][ours].get(name, np.nan) for fold in self.folds]
            if not names:
                scored[f"{theirs}_score"] = [-fold["metrics"][ours].get("loss", np.nan) for fold in self.folds]
        return {key: np.asarray(values, dtype=np.float64) for key, values in scored.items()}

    def _names(self, part: Part) -> list[str]:
        """Return what was measured on a part; the folds know it also before the whole has ended."""
        return list(dict.fromkeys(name for fold in self.folds for name in fold["metrics"].get(part, {})))

    def __repr__(self) -> str:
        if not self.scores() or self.seconds is None:
            return f"<CrossValidation {self.run.id} {self.run.title}: {self.run.status}>"
        low, high = self.confidence()
        return (
            f"<CrossValidation {self.run.id} {self.run.title}: {len(self.scores())} folds, {self.metric} "
            f"{self.mean:.4g} ± {self.std:.2g}, 95% in {low:.4g} to {high:.4g}, {self.seconds:.3g} s>"
        )
