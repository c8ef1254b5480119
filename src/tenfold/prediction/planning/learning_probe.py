"""Short training runs of a setting: how good it is after so many samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from tenfold.cluster.prediction import Prediction
from tenfold.data import Part, Splits
from tenfold.data.splitting import draw, split
from tenfold.engines.processes import Processes
from tenfold.engines.serial import Serial
from tenfold.engines.virtual import Virtual, check_memory
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.machine import cores, devices, threads
from tenfold.mixing.builders import make_strategy
from tenfold.prediction.planning.learning_curve import SEED_ERROR, Point
from tenfold.runs import Clock, Event
from tenfold.training import choose_metrics
from tenfold.training.measures import LOWER_IS_BETTER, target_metric
from tenfold.workers.task import Task

ENOUGH, LEAST_SHARE, LARGEST_SHARE = 1000, 1 / 6, 1 / 3
"""Samples held out to measure probes, where the experiment holds out nothing: as many, within these shares of all."""
OTHER_ERROR = 0.1
"""Relative standard error of a gap that is not a share of samples."""
SELDOM = 1_000_000


@dataclass(frozen=True)
class Probe:
    """A short training run and what came of it."""

    samples: int
    """Samples that all replicas together saw."""
    steps: int
    metric: str
    value: float
    """The metric on the validation part, after the last epoch."""
    seconds: float
    """Measured seconds of training."""
    weights: dict[str, Tensor]

    @property
    def gap(self) -> float:
        """How far the metric is from perfect."""
        return gap_of(self.metric, self.value)


def gap_of(metric: str, value: float) -> float:
    """Return how far a metric is from perfect: itself where lower is better, else what is missing to 1."""
    return value if metric in LOWER_IS_BETTER else 1 - value


def target_gap(experiment: Experiment, classes: int | None, target: float) -> tuple[str, float]:
    """Return the metric of a target and the gap that it allows; raise ExperimentError for a target beyond reach."""
    metric = target_metric(choose_metrics(experiment.training, classes))
    gap = gap_of(metric, target)
    if gap <= 0 or not math.isfinite(gap):
        bounds = "above 0" if metric in LOWER_IS_BETTER else "below 1"
        raise ExperimentError(f"a target of {target:g} for {metric} cannot be planned for; it should be {bounds}")
    return metric, gap


def probe_splits(splits: Splits, experiment: Experiment) -> Splits:
    """Return the data that probes train on and are measured on: never the test part."""
    if splits.validation is None:
        data = experiment.data
        share = min(LARGEST_SHARE, max(LEAST_SHARE, ENOUGH / len(splits.train)))
        whole = replace(splits, test=splits.test or splits.train)
        splits = split(whole, validation_fraction=share, stratify=data.stratify, seed=data.split_seed)
    return replace(splits, test=None, groups=None)


def watched_error(splits: Splits, metric: str, gap: float) -> float:
    """Return the relative standard error of a gap on the part that real runs watch, if it is not the probes' own."""
    if splits.validation is not None or splits.test is None:
        return 0.0
    is_share = splits.classes is not None and metric == "accuracy"
    return math.sqrt(1 / (gap * len(splits.test) + 1)) if is_share else OTHER_ERROR


def point_of(probe: Probe, validation: Part, classes: int | None) -> Point:
    """Return a probe as a point of a learning curve; an accuracy is as exact as its number of errors allows."""
    if classes is not None and probe.metric == "accuracy":
        errors = probe.gap * len(validation)
        gap = max(probe.gap, 0.5 / len(validation))
        return Point(probe.samples, gap, math.sqrt(1 / (errors + 1) + SEED_ERROR**2))
    return Point(probe.samples, max(probe.gap, 1e-12), OTHER_ERROR)


def train_probe(experiment: Experiment, splits: Splits, samples: int, predict: Callable[[Task], Prediction]) -> Probe:
    """Train a setting with its full schedule over about so many samples: a part of an epoch, or whole epochs.

    Replicas learn what those of a real run would. `predict` is asked for the order in which the workers of an
    asynchronous strategy take turns.
    """
    whole = len(splits.train)
    epochs = max(1, round(samples / whole))
    short = experiment.replace(
        epochs=epochs, target=None, patience=None, evaluate_every=1.0, log_every=SELDOM, on_failure="end"
    )
    device = devices.resolve(experiment.machine.device)
    some = replace(splits, train=_some(splits, samples)) if samples < whole else splits
    task = Task(short, some.to(device), _threads(short))
    check_memory(task)
    events: list[Event] = []
    asynchronous = make_strategy(short.division).asynchronous
    engine: Any = Serial() if task.workers == 1 else _Replicas(predict(task) if asynchronous else None)
    outcome = engine.run(task, Clock(), events.append)
    metrics = outcome.result["metrics"]
    metric = target_metric(choose_metrics(short.training, splits.classes))
    return Probe(
        samples=len(some.train) * epochs,
        steps=outcome.result["steps"],
        metric=metric,
        value=float(metrics[metric]),
        seconds=outcome.result["seconds"],
        weights=outcome.weights,
    )


class _Replicas(Virtual):
    """The replicas of a virtual cluster with the times that this machine takes for them."""

    def __init__(self, prediction: Prediction | None) -> None:
        Processes.__init__(self)
        self._prediction = prediction

    def run(self, task: Task, clock: Clock, emit: Any, resumption: Any = None) -> Any:
        """Train to the end."""
        return Processes.run(self, task, clock, emit, resumption)


def _threads(experiment: Experiment) -> int:
    """Return the threads of each replica; a single one beside busy programs, where threads wait for each other."""
    if threads.load_is_high():
        return 1
    return threads.share(cores.budget(), experiment.division.workers, experiment.machine.threads, oversubscribe=True)


def _some(splits: Splits, samples: int) -> Part:
    """Return so many training samples, the same for all settings, with the proportions of the classes."""
    train = splits.train
    targets = train.targets if splits.classes is not None else None
    kept, _ = draw(len(train), max(1, samples), targets, np.random.default_rng(0))
    return train.subset(kept)
