"""Combine the results of the folds into the result of the cross-validation: sums, means and deviations."""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tenfold.common import PARTS
from tenfold.common.metric_traits import LOSS, main_metric
from tenfold.crossval.fold import OUTPUTS, FoldMode, FoldSplit
from tenfold.data.part import find_main_output, tree_combine
from tenfold.errors import ExperimentError, StoreError
from tenfold.experiment import Training
from tenfold.mixing.round import exact_round
from tenfold.registry import suggest
from tenfold.runs import Run, checkpoint, stored_predictions
from tenfold.runs.run import details_table, fold_name, short_number, values_table
from tenfold.runs.store import CROSSVAL
from tenfold.runs.stored_predictions import Predictions
from tenfold.training import FlatState, all_targets, choose_loss, choose_metrics, evaluate, measure
from tenfold.training.measures import AlignedMeasure, OutputKind, output_kind
from tenfold.training.network_call import plain_outputs
from tenfold.transport import average_in_rank_order, compute_shares
from tenfold.workers.task import Task, make_network

FoldEntry = dict[str, Any]
"""One fold in the result of the cross-validation, as JSON."""


def fold_entry(
    split: FoldSplit, run: int | None, about: dict[str, Any], seconds: float = 0.0, *, error: str = ""
) -> FoldEntry:
    """Return the result entry of one fold; `about` is the "crossval" part of its result."""
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

    As for a single training, "seconds" contains training time only: the sum over the folds of the busiest core.
    "times" are means over the cores.
    """
    seconds = max(_per_core(results, [result["seconds"] for result in results]))
    spread = summarize_folds(entries)
    cores = {core for entry in entries for core in entry["cores"]}
    samples = sum(result["samples"] for result in results)
    kinds = sorted({kind for result in results for kind in result["times"]})
    return {
        "part": "validation",
        "metrics": {name: values["mean"] for name, values in spread["validation"].items()},
        "seconds": seconds,
        "times": {
            kind: fmean(_per_core(results, [result["times"].get(kind, 0.0) for result in results])) for kind in kinds
        },
        "epochs": max(result["epochs"] for result in results),
        "steps": sum(result["steps"] for result in results),
        "samples": samples,
        "samples_per_second": samples / seconds if seconds else None,
        "bytes_moved": sum(result["bytes_moved"] for result in results),
        "workers": task.workers,
        # tables of speedups count all cores in use, as if the workers shared them
        "threads": max(1, len(cores) // task.workers),
        "best_epoch": None,
        "stopped_early": any(result["stopped_early"] for result in results),
        "mode": FoldMode.of(task.experiment).name,
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
    summaries: dict[str, dict[str, dict[str, float | None]]] = {}
    for part in PARTS:
        rows = [fold["metrics"].get(part, {}) for fold in folds if fold["status"] == "finished"]
        names = dict.fromkeys(name for row in rows for name in row)
        summaries[part] = {name: summary([row[name] for row in rows if name in row]) for name in names}
    return summaries


def best_first(metrics: dict[str, float], *, metric: str, lower: bool) -> tuple[float, float]:
    """Return a sort key that puts the best model first, by this metric and then by the loss; NaN comes last."""
    values = metrics.get(metric, math.nan), metrics.get(LOSS, math.nan)
    signed = values[0] if lower else -values[0], values[1]
    return tuple(math.inf if math.isnan(value) else value for value in signed)  # type: ignore[return-value]


def _per_core(results: Sequence[dict[str, Any]], seconds: Sequence[float]) -> list[float]:
    """Return for each core the sum of the seconds of its folds; folds that train together count once."""
    cores: dict[int, dict[float, float]] = {}
    for result, own in zip(results, seconds, strict=True):
        about = result["crossval"]
        for core in about["cores"]:
            by_start = cores.setdefault(core, {})  # only folds trained together have exactly the same start time
            by_start[about["began"]] = max(by_start.get(about["began"], 0.0), own)
    return [sum(by_start.values()) for by_start in cores.values()]


AVERAGE = "average.pt"
"""The file with the average of all models' weights."""


def combine_outputs(outputs: Sequence[Any], kind: OutputKind) -> Any:
    """Combine the outputs of several models into outputs of the form of a single model.

    Probabilities are averaged: for classes, the logarithm of their mean is returned; for a single logit, the logit of
    their mean. Numbers, and logits for each position of a sample, are averaged directly. If the models have several
    outputs, `kind` applies to the main one, and the others are averaged.
    """
    if not isinstance(outputs[0], Tensor):
        main = find_main_output(outputs[0])

        def combine(leaves: list[Tensor]) -> Any:
            return combine_outputs(leaves, kind if leaves[0] is main else "numbers")

        return tree_combine(combine, outputs)
    stacked = torch.stack(list(outputs))
    if kind == "classes" and stacked.ndim == 3:
        return stacked.log_softmax(-1).logsumexp(0) - math.log(len(stacked))
    if kind == "logit":
        return torch.logit(stacked.sigmoid().mean(0), eps=1e-7)
    return stacked.mean(0)


class Vote(nn.Module):
    """Several networks as one, which averages their probabilities or numbers."""

    def __init__(self, networks: Sequence[nn.Module], training: Training, classes: int | None) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.training_fields, self.classes = training, classes
        """Used to determine the kind of the outputs, see `output_kind`."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = [plain_outputs(network(*args, **kwargs)) for network in self.networks]
        kind = output_kind(self.training_fields, self.classes, find_main_output(outputs[0]))
        return combine_outputs(outputs, kind)


def average_weights(network: nn.Module, weights: Sequence[dict[str, Any]], samples: Sequence[int]) -> dict[str, Any]:
    """Return the mean of the models' weights, weighted by the number of samples each was trained on.

    As in any round, the whole state is averaged: for batch normalization, mean = avg(mean_i) and
    var = avg(var_i) + var(mean_i). `network` has the same architecture and is overwritten with the mean.
    """
    network.load_state_dict(weights[0])
    flat = FlatState(network)
    vectors = []
    for weight in weights:
        network.load_state_dict(weight)
        flat.batch_norm.variances_to_moments()
        vectors.append(flat.vector.clone())
    counts = compute_shares(exact_round(len(weights)), [float(count) for count in samples], 0)
    average_in_rank_order(vectors, counts, flat.vector)
    flat.batch_norm.moments_to_variances(replicas_are_equal=False)
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def save_average(task: Task, samples: dict[Path, int], path: Path) -> dict[str, float]:
    """Save the average of the weights in some folders of runs, and return its metrics on the test part.

    `samples` maps each folder to the number of samples that its model was trained on.
    """
    network = make_network(task).cpu()
    weights = [dict(checkpoint.load_tensors(folder / "model.pt")) for folder in samples]
    checkpoint.save_tensors(average_weights(network, weights, list(samples.values())), path)
    if task.splits.test is None:
        return {}
    network = network.to(task.device)
    return evaluate(network, task.splits.test, *_measures(task), precision=task.experiment.training.precision)


def measure_vote(task: Task, folders: Iterable[Path]) -> dict[str, float]:
    """Return the metrics, on the test part, of the vote of the models in some folders of runs."""
    splits, training = task.splits, task.experiment.training
    if splits.test is None:
        return {}
    folders, (loss, metrics) = list(folders), _measures(task)
    main_suffices = all(item.needs_tensor for item in (loss, *metrics.values()))
    outputs = [_test_outputs(folder, main_suffices=main_suffices) for folder in folders]
    if any(output is None for output in outputs):
        vote = Vote([_fold_network(task, folder) for folder in folders], training, splits.classes).to(task.device)
        return evaluate(vote, splits.test, loss, metrics, precision=training.precision)
    kind = output_kind(training, splits.classes, find_main_output(outputs[0]))
    return measure(combine_outputs(outputs, kind), all_targets(splits.test), loss, metrics)


def _fold_network(task: Task, folder: Path) -> nn.Module:
    network = make_network(task)
    network.load_state_dict(dict(checkpoint.load_tensors(folder / "model.pt")))
    return network


def _measures(task: Task) -> tuple[AlignedMeasure, dict[str, AlignedMeasure]]:
    training, classes = task.experiment.training, task.splits.classes
    return choose_loss(training, classes, task.splits.loss_unit), choose_metrics(training, classes)


def _test_outputs(folder: Path, *, main_suffices: bool) -> Any:
    """Return a fold's saved outputs on the test part; None if there are none.

    Stored predictions contain only the main output of a network, which is not always enough.
    """
    if (folder / OUTPUTS).exists():
        return checkpoint.load_tensors(folder / OUTPUTS)
    if not main_suffices:
        return None
    stored = stored_predictions.load(folder / stored_predictions.FILE, "test")
    return torch.from_numpy(stored.outputs) if stored is not None else None


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
        """The metric used for mean, std, confidence and the best fold: the experiment's first metric, or the loss."""
        return main_metric(self._names("validation")) or LOSS

    def scores(self, metric: str | None = None, part: str = "validation") -> list[float]:
        """Return the values of a metric over the finished folds, on one part: train, validation or test."""
        if part not in PARTS:
            raise ExperimentError(f"unknown part '{part}'; {suggest(part, PARTS)}")
        name, names = metric or self.metric, self._names(part)
        if names and name not in names:
            raise ExperimentError(f"run {self.run.id} has no metric '{name}'; {suggest(name, names)}")
        return [fold["metrics"][part][name] for fold in self.folds if name in fold["metrics"].get(part, {})]

    @property
    def accuracies(self) -> list[float]:
        """The accuracy of every fold on its validation part; empty if accuracy was not measured."""
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
        return self.run.other(self.run.id, weights=checkpoint.load_weights(self.run.path / AVERAGE)).model

    @cached_property
    def vote(self) -> nn.Module:
        """A network that averages the outputs of all folds' networks."""
        training, classes = self.run.experiment.training, self.run.metadata["data"]["classes"]
        return Vote([run.model for run in self.runs if run.status == "finished"], training, classes).eval()

    def as_sklearn(self) -> dict[str, Any]:
        """Return the dictionary that `sklearn.model_selection.cross_validate` returns.

        In scikit-learn's terms, "test" is the fold's validation part. A single metric is named test_score and
        train_score, several metrics test_<metric> and train_<metric>; without a metric, the score is the negative loss.
        Failed folds have NaN.
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
        """Return the names of the metrics measured on a part, even before the run has ended."""
        return list(dict.fromkeys(name for fold in self.folds for name in fold["metrics"].get(part, {})))

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays: the mean over the folds, and a row for each fold."""
        metadata = [("status", self.run.status), ("training", f"{self.seconds:.3g} s measured" if self.seconds else "")]
        if len(self.scores()) > 1:
            low, high = (short_number(self.metric, value) for value in self.confidence())
            mean, std = short_number(self.metric, self.mean), short_number(self.metric, self.std)
            metadata.insert(0, (f"validation {self.metric}", f"{mean} ± {std}, 95% in {low} to {high}"))
        names = [(part, name) for part in PARTS for name in self._names(part)]
        rows = [
            [fold_name(fold["fold"], fold["repeat"], fold["node"]), fold["status"]]
            + [short_number(name, fold["metrics"].get(part, {}).get(name)) for part, name in names]
            for fold in self.folds
        ]
        view = details_table(f"cross-validation {self.run.id}: {self.run.title}, {len(self.folds)} folds", metadata)
        return view + values_table(["fold", "status", *(f"{part} {name}" for part, name in names)], rows)

    def __repr__(self) -> str:
        if not self.scores() or self.seconds is None:
            return f"<CrossValidation {self.run.id} {self.run.title}: {self.run.status}>"
        low, high = self.confidence()
        return (
            f"<CrossValidation {self.run.id} {self.run.title}: {len(self.scores())} folds, {self.metric} "
            f"{self.mean:.4g} ± {self.std:.2g}, 95% in {low:.4g} to {high:.4g}, {self.seconds:.3g} s>"
        )
