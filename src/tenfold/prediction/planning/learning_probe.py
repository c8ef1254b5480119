"""Short training runs of a setting: how good it is after a given number of samples."""

import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from tenfold.cluster.time_prediction import TimePrediction
from tenfold.common.metric_traits import LOSS, main_metric
from tenfold.data import Part, Splits
from tenfold.data.splitting import draw
from tenfold.engines import Engine, Outcome
from tenfold.engines.processes import Processes, Serial
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.prediction.planning.learning_curve import SEED_ERROR, Point
from tenfold.prediction.virtual_engine import Virtual, check_memory
from tenfold.runs import Emit, Event, Metric, Stopwatch
from tenfold.runs.checkpoint import Resumption
from tenfold.training import choose_metrics
from tenfold.training.measures import require_direction
from tenfold.workers.task import Resolved, Task

ENOUGH, LEAST_SHARE, LARGEST_SHARE = 1000, 1 / 6, 1 / 3
"""Samples of a validation part where the experiment has none: as many, within these shares of the training part."""
CHANCE = 0.3
"""Relative variance of the wrong answers of equal runs on the same part, times their number; the same samples are hard
for all of them, so it is less than 1."""
OTHER_ERROR = 0.1
"""Relative standard error of a gap that is not a share of samples."""
SELDOM = 1_000_000


@dataclass(frozen=True)
class Probe:
    """A short training run and its outcome."""

    samples: int
    """Samples that all replicas together saw."""
    steps: int
    metric: str
    values: tuple[float, ...]
    """The metric on the validation part after every epoch."""
    seconds: float
    """Measured seconds of training."""
    weights: dict[str, Tensor]
    first_seconds: float | None = None
    """Those of its first epoch, whose first steps are slow; None for a run of one epoch or less."""
    seed: int = 0
    epochs: int = 0
    """Whole epochs; 0 for a part of one."""
    threads: int = 1
    start: float = 0.0
    """Measured seconds before the first step."""
    evaluation: float = 0.0
    """Measured seconds of one evaluation of the validation part."""
    save: float = 0.0
    """Measured seconds of one checkpoint."""
    cold: bool = False
    """Whether it was the first on its device, so that its seconds say little about others."""
    lower_is_better: bool = False
    """Whether lower values of the metric are better."""

    @property
    def value(self) -> float:
        """The best that the metric was after an epoch, since a run stops at the target."""
        return (min if self.lower_is_better else max)(self.values)

    @property
    def gap(self) -> float:
        """How far that is from perfect."""
        return gap_of(self.value, lower=self.lower_is_better)

    def epoch_seconds(self, steps: int) -> tuple[float, float]:
        """Return the seconds of training for its first epoch, of `steps` steps, and for each further one."""
        if self.first_seconds is None:
            each = steps * self.seconds / self.steps
            return each, each
        return self.first_seconds, (self.seconds - self.first_seconds) / (self.epochs - 1)

    def epochs_to(self, gap: float) -> int | None:
        """Return after how many epochs the gap was first as small as this; None if it never was."""
        near = (
            epochs for epochs, value in enumerate(self.values, 1) if gap_of(value, lower=self.lower_is_better) <= gap
        )
        return next(near, None)


def gap_of(value: float, *, lower: bool) -> float:
    """Return how far a metric is from perfect: itself where lower is better, otherwise 1 minus the metric."""
    return value if lower else 1 - value


def target_gap(experiment: Experiment, classes: int | None, target: float) -> tuple[str, float]:
    """Return the metric of a target and the gap that it allows; raise ExperimentError for a target beyond reach."""
    metric = main_metric(choose_metrics(experiment.training, classes)) or LOSS
    lower = require_direction(experiment.training, metric, f"a target of {target:g}")
    gap = gap_of(target, lower=lower)
    if gap <= 0 or not math.isfinite(gap):
        bounds = "above 0" if lower else "below 1"
        raise ExperimentError(f"a target of {target:g} for {metric} cannot be planned for; it should be {bounds}")
    return metric, gap


def validation_share(samples: int) -> float:
    """Return the share of `samples` training samples that a plan holds out if the experiment holds out none."""
    return round(min(LARGEST_SHARE, max(LEAST_SHARE, ENOUGH / samples)), 4)


def point_of(probe: Probe, validation: Part, classes: int | None) -> Point:
    """Return a probe as a point of a learning curve, by how far other runs on this validation part may be from it."""
    batch = probe.samples / probe.steps
    if classes is not None and probe.metric == "accuracy":
        chance = chance_error(probe.metric, probe.gap, validation, classes)
        return Point(probe.samples, max(probe.gap, 0.5 / len(validation)), math.hypot(chance, SEED_ERROR), batch)
    return Point(probe.samples, max(probe.gap, 1e-12), OTHER_ERROR, batch)


def chance_error(metric: str, gap: float, validation: Part, classes: int | None) -> float:
    """Return by how much the gap of equal runs differs because few wrong answers decide, relative."""
    is_share = classes is not None and metric == "accuracy"
    return math.sqrt(CHANCE / (gap * len(validation) + 1)) if is_share else 0.0


def train_probe(
    experiment: Experiment, splits: Splits, samples: int, predict: Callable[[Task], TimePrediction]
) -> Probe:
    """Train a setting with its full schedule over about `samples` samples: a part of an epoch, or whole epochs.

    Replicas learn what those of a real run would, and save checkpoints as it does. `predict` is asked for the order in
    which the workers of an asynchronous strategy take turns.
    """
    whole = len(splits.train)
    epochs = max(1, round(samples / whole))
    short = experiment.replace(
        epochs=epochs, target=None, patience=None, evaluate_every=1.0, log_every=SELDOM, on_failure="end"
    )
    resolved = Resolved.of(short)
    some = replace(splits, train=_some(splits, samples)) if samples < whole else splits
    task = Task.of(resolved, some.to(resolved.device), _threads(short))
    check_memory(task)
    events: list[Event] = []
    engine: Engine = Serial() if task.workers == 1 else _Replicas(predict(task) if task.strategy.asynchronous else None)
    with tempfile.TemporaryDirectory(prefix="tenfold-plan-") as folder:
        outcome = engine.run(replace(task, checkpoints=Path(folder)), Stopwatch(), events.append)
    metric = main_metric(choose_metrics(short.training, splits.classes)) or LOSS
    times, measured = outcome.result["times"], _by_epoch(events, metric)
    return Probe(
        samples=len(some.train) * epochs,
        steps=outcome.result["steps"],
        metric=metric,
        values=tuple(measurement.value for measurement in measured),
        seconds=outcome.result["seconds"],
        weights=outcome.weights,
        first_seconds=measured[0].seconds if epochs > 1 else None,
        seed=short.training.seed,
        epochs=epochs if some is splits else 0,
        threads=task.threads,
        start=times.get("start", 0.0),
        evaluation=times.get("evaluate", 0.0) / epochs,
        save=times.get("save", 0.0) / epochs,
        lower_is_better=require_direction(short.training, metric, "a plan"),
    )


def _by_epoch(events: Iterable[Event], metric: str) -> list[Metric]:
    """Return what a metric was on the validation part after each epoch."""
    measured = [
        event for event in events if isinstance(event, Metric) and (event.part, event.name) == ("validation", metric)
    ]
    return list({item.epoch: item for item in sorted(measured, key=lambda one: one.epoch)}.values())


class _Replicas(Virtual):
    """The replicas of a virtual cluster with the times that this machine takes for them."""

    def __init__(self, prediction: TimePrediction | None) -> None:
        self._prediction = prediction

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end."""
        return Processes.run(self, task, stopwatch, emit, resumption)


def _threads(experiment: Experiment) -> int:
    """Return the threads of each replica; a single one beside busy programs, where threads wait for each other."""
    if cores.load_is_high():
        return 1
    return cores.share(cores.budget(), experiment.parallel.workers, experiment.machine.threads, oversubscribe=True)


def _some(splits: Splits, samples: int) -> Part:
    """Return `samples` training samples, the same for all settings, with the proportions of the classes."""
    train = splits.train
    targets = train.targets if splits.classes is not None else None
    kept, _ = draw(len(train), max(1, samples), targets, np.random.default_rng(0))
    return train.subset(kept)
