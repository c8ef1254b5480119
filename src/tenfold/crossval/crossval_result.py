"""The result of a cross-validation, read from its run."""

from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
from torch import nn

from tenfold.common.html_views import facts_table, short_number, values_table
from tenfold.common.metric_table import LOSS, main_metric
from tenfold.common.part_names import PARTS
from tenfold.common.registry import suggest
from tenfold.crossval.combine_folds import interval
from tenfold.crossval.ensemble import AVERAGE, Vote
from tenfold.errors import ExperimentError, StoreError
from tenfold.runs import Run, tensor_file
from tenfold.runs.fold_name import fold_name
from tenfold.runs.store import CROSSVAL
from tenfold.runs.stored_predictions import Predictions


class CrossValidation:
    """The result of a cross-validation: its metrics over the folds, and the models of the folds.

    `CrossValidation(tenfold.open_run(12))` reads a recorded one.
    """

    def __init__(self, run: Run) -> None:
        if run.kind != CROSSVAL:
            raise StoreError(f"run {run.id} is not a cross-validation: its kind is '{run.kind}'")
        self.run = run
        """The recorded run."""

    @property
    def folds(self) -> list[dict[str, Any]]:
        """One dictionary per fold: its metrics on all parts, times, cores, status and error."""
        return list(self.run.result.get("folds", []))

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The folds that failed, as in `folds`; empty if the cross-validation is complete."""
        return [fold for fold in self.folds if fold["status"] == "failed"]

    @property
    def metric(self) -> str:
        """The metric of mean, std, confidence and the best fold: the first of the experiment, else the loss."""
        return main_metric(self._names("validation")) or LOSS

    def scores(self, metric: str | None = None, part: str = "validation") -> list[float]:
        """Return the values of a metric over the finished folds, on one part: train, validation or test."""
        if part not in PARTS:
            raise ExperimentError(f"unknown part '{part}'; {suggest(part, PARTS)}")
        name, known = metric or self.metric, self._names(part)
        if known and name not in known:
            raise ExperimentError(f"run {self.run.id} has no metric '{name}'; {suggest(name, known)}")
        return [fold["metrics"][part][name] for fold in self.folds if name in fold["metrics"].get(part, {})]

    @property
    def accuracies(self) -> list[float]:
        """The accuracy of each fold on its validation part; empty if accuracy was not measured."""
        return self.scores("accuracy") if "accuracy" in self._names("validation") else []

    @property
    def mean(self) -> float:
        """The mean of `metric` over the folds' validation parts; NaN if no fold has finished."""
        return fmean(self.scores() or [float("nan")])

    @property
    def std(self) -> float:
        """The standard deviation of `metric` over the folds, with k - 1; NaN for a single fold."""
        return stdev(self.scores()) if len(self.scores()) > 1 else float("nan")

    def confidence(self, level: float = 0.95) -> tuple[float, float]:
        """Return Student's confidence interval of the mean; (NaN, NaN) for a single fold."""
        if not 0 < level < 1:
            raise ExperimentError(f"level = {level:g}: should be between 0 and 1, such as 0.95")
        return interval(self.scores(), level) or (float("nan"), float("nan"))

    @property
    def seconds(self) -> float | None:
        """Measured training time, without evaluation, of the folds that the busiest core trained."""
        return self.run.seconds

    @cached_property
    def runs(self) -> list[Run]:
        """The run of every fold that was started."""
        return [self.run.other(fold["run"]) for fold in self.folds if fold["run"] is not None]

    @property
    def predictions(self) -> Predictions:
        """Each training sample with the outputs of the model that was validated on it; see `Run.predictions`."""
        return self.run.predictions

    @property
    def best(self) -> Run:
        """The run of the fold with the best validation metric; `best.model` is its network."""
        if "models" not in self.run.result:
            raise StoreError(f"run {self.run.id} is {self.run.status}; `tenfold resume {self.run.id}` resumes it")
        return self.run.other(self.folds[self.run.result["models"]["best"]["fold"] - 1]["run"])

    @cached_property
    def average_model(self) -> nn.Module:
        """A network whose weights are the mean of all folds' weights."""
        return self.run.other(self.run.id, weights=tensor_file.load_weights(self.run.path / AVERAGE)).model

    @cached_property
    def vote(self) -> nn.Module:
        """A network that averages the outputs of all folds' networks."""
        training, classes = self.run.experiment.training, self.run.facts["data"]["classes"]
        return Vote([run.model for run in self.runs if run.status == "finished"], training, classes).eval()

    def as_sklearn(self) -> dict[str, Any]:
        """Return the dictionary that `sklearn.model_selection.cross_validate` returns.

        What scikit-learn calls test is the fold's validation part. A single metric is named test_score and train_score,
        several are named test_<metric> and train_<metric>; without a metric the score is the negative loss. Failed
        folds have NaN.
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

    def _names(self, part: str) -> list[str]:
        """Return the names of the metrics measured on a part, also before the run has ended."""
        return list(dict.fromkeys(name for fold in self.folds for name in fold["metrics"].get(part, {})))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the mean over the folds, and a row for each fold."""
        facts = [("status", self.run.status), ("training", f"{self.seconds:.3g} s measured" if self.seconds else "")]
        if len(self.scores()) > 1:
            low, high = (short_number(self.metric, value) for value in self.confidence())
            mean, std = short_number(self.metric, self.mean), short_number(self.metric, self.std)
            facts.insert(0, (f"validation {self.metric}", f"{mean} ± {std}, 95% in {low} to {high}"))
        names = [(part, name) for part in PARTS for name in self._names(part)]
        rows = [
            [fold_name(fold["fold"], fold["repeat"], fold["node"]), fold["status"]]
            + [short_number(name, fold["metrics"].get(part, {}).get(name)) for part, name in names]
            for fold in self.folds
        ]
        view = facts_table(f"cross-validation {self.run.id}: {self.run.title}, {len(self.folds)} folds", facts)
        return view + values_table(["fold", "status", *(f"{part} {name}" for part, name in names)], rows)

    def __repr__(self) -> str:
        if not self.scores() or self.seconds is None:
            return f"<CrossValidation {self.run.id} {self.run.title}: {self.run.status}>"
        low, high = self.confidence()
        return (
            f"<CrossValidation {self.run.id} {self.run.title}: {len(self.scores())} folds, {self.metric} "
            f"{self.mean:.4g} ± {self.std:.2g}, 95% in {low:.4g} to {high:.4g}, {self.seconds:.3g} s>"
        )
