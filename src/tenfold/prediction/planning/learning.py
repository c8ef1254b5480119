"""Learning curves, the epochs derived from them, and the short training runs that are their points.

A curve is the gap to a perfect metric as a function of the samples of a whole run; each point is a run with its full
schedule. In logarithms the curves of all settings are lines of the same slope and different heights; points of longer
runs have more weight, because the slope changes slowly along a curve. The samples are effective samples: a run of few
steps learns less from its samples than a run of many small steps (see `effective_samples`).
"""

import math
import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple, TypeVar

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
from tenfold.prediction.virtual_engine import Virtual, check_memory
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.events import Emit, Event, Metric, Stopwatch
from tenfold.training import choose_metrics
from tenfold.training.measures import require_direction
from tenfold.workers.task import Resolved, Task

Key = TypeVar("Key", bound=Hashable)

SLOPE, SLOPE_DEVIATION = 0.5, 0.25
"""The prior mean of the slope: errors fall with about the square root of the samples."""
SEED_ERROR = 0.06
"""By how much the gap of equal runs differs from seed to seed, relative."""
BEND = 0.1
"""How far a curve may leave its line for each doubling of the samples, relative."""
FEW_STEPS = 128
"""A run of this many steps learns from its samples what a run of very many steps learns from half of them."""
ASSUMED = 4
"""The weight of the assumed noise of equal runs, in runs, when it is combined with measured noise."""


@dataclass(frozen=True)
class Point:
    """The gap that a run was left with."""

    samples: float
    """Samples that all replicas together saw during the run."""
    gap: float
    """How far the metric is from perfect: 1 - accuracy, or the loss itself."""
    error: float
    """Standard error of the measured gap, relative."""
    batch: float = 0.0
    """Samples of one step of all replicas together; 0: very few."""


def effective_samples(samples: float, batch: float) -> float:
    """Return how many samples a run of very small steps would need to learn as much as from these in steps of a batch.

    For a given gap a run needs a minimum of steps and a minimum of samples, and more of one if it has fewer of the
    other: (steps / fewest steps - 1) (samples / fewest samples - 1) = 1 (McCandlish et al. 2018).
    """
    return samples / (1 + FEW_STEPS * batch / samples)


@dataclass(frozen=True)
class LearningCurve:
    """The line of one setting: log gap = height - slope (log effective samples - center)."""

    height: float
    slope: float
    center: float
    height_error: float
    slope_error: float
    shortest: float
    longest: float
    """The smallest and largest number of samples among its points."""
    batch: float

    def gap(self, samples: float) -> float:
        """Return the gap that a run over `samples` samples is expected to have."""
        return math.exp(self.height - self.slope * self._from_center(samples))

    def error(self, samples: float) -> float:
        """Return the standard error of the logarithm of the expected gap: how uncertain the curve is there."""
        by_slope = self._from_center(samples) * self.slope_error
        return math.sqrt(self.height_error**2 + by_slope**2 + self._beyond(samples) ** 2)

    def own_error(self, samples: float) -> float:
        """Return the part of the error that other settings do not share, which all have the same slope."""
        return math.hypot(self.height_error, self._beyond(samples) / 2)

    def _from_center(self, samples: float) -> float:
        return math.log(effective_samples(samples, self.batch)) - self.center

    def _beyond(self, samples: float) -> float:
        return max(0.0, math.log2(samples / self.longest), math.log2(self.shortest / samples)) * BEND

    def samples_to(self, gap: float) -> float:
        """Return the samples after which a run is expected to have this gap."""
        needed = math.exp(min(300.0, self.center + (self.height - math.log(gap)) / self.slope))
        return (
            needed + math.sqrt(needed**2 + 4 * needed * FEW_STEPS * self.batch)
        ) / 2  # `effective_samples`, solved for the samples


def noise_factor(groups: Iterable[Sequence[Point]]) -> float:
    """Return how noisy equal runs are relative to the errors of their points; each group differs in the seed only.

    The root of the mean squared deviation, in standard errors, where what is assumed counts as much as ASSUMED further
    runs.
    """
    squares, freedom = float(ASSUMED), float(ASSUMED)
    for group in groups:
        logs = [math.log(point.gap) for point in group]
        mean = sum(logs) / len(logs)
        squares += sum(((log - mean) / point.error) ** 2 for log, point in zip(logs, group, strict=True))
        freedom += len(logs) - 1
    return math.sqrt(squares / freedom)


def fit_curves(points: Mapping[Key, Sequence[Point]]) -> dict[Key, LearningCurve]:
    """Fit a line to the points of every setting, with one slope for all, by weighted least squares.

    The weight of a point is 1 / (error^2 + (BEND log2(longest / samples))^2). The slope is that of all settings
    together and of what was assumed before, each weighted by how well it is known.
    """
    weighted = {key: [(*_logs(item), _weight(item, some)) for item in some] for key, some in points.items() if some}
    centers = {key: _means(some) for key, some in weighted.items()}
    precision, pull = 1 / SLOPE_DEVIATION**2, SLOPE / SLOPE_DEVIATION**2
    for key, some in weighted.items():
        x_mean, y_mean = centers[key]
        precision += sum(w * (x - x_mean) ** 2 for x, _, w in some)
        pull -= sum(w * (x - x_mean) * (y - y_mean) for x, y, w in some)
    slope = max(0.05, pull / precision)
    return {
        key: LearningCurve(
            height=centers[key][1],
            slope=slope,
            center=centers[key][0],
            height_error=math.sqrt(1 / sum(w for *_, w in some)),
            slope_error=math.sqrt(1 / precision),
            shortest=min(point.samples for point in points[key]),
            longest=max(point.samples for point in points[key]),
            batch=max(point.batch for point in points[key]),
        )
        for key, some in weighted.items()
    }


def _logs(point: Point) -> tuple[float, float]:
    return math.log(effective_samples(point.samples, point.batch)), math.log(point.gap)


def _weight(point: Point, others: Sequence[Point]) -> float:
    longest = max(other.samples for other in others)
    return 1 / (point.error**2 + (BEND * math.log2(longest / point.samples)) ** 2)


def _means(some: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    whole = sum(w for *_, w in some)
    return sum(w * x for x, _, w in some) / whole, sum(w * y for _, y, w in some) / whole


# How many epochs a run should have: those with the fewest expected seconds to the target.
#
# A run of too few epochs misses the target, costs its time, and is repeated with a quarter more, at least one:
#
#     V(E) = p(E) T(s E) + (1 - p(E)) (T(E) + V(max(E + 1, 1.25 E)))
#
# with T(E) the total seconds of E epochs, p(E) the probability that a run reaches the target, by its learning curve,
# and s the part of its epochs after which it does so and stops. The curve may be too high or too low for all epochs
# alike; V is the mean over this error (Gauss-Hermite quadrature).

BELOW = NormalDist().cdf
"""The share of a normal distribution below a number of standard deviations."""
NODES = ((-(3**0.5), 1 / 6), (0.0, 2 / 3), (3**0.5, 1 / 6))
"""Standard errors and weights of a normal distribution in three points."""
FARTHEST = 16
"""How many times as long as its longest probe a run may be for a curve to be believed."""
LIKELY = 0.5
"""A setting is only believed to reach the target if its longest schedule does so with this probability."""
CERTAIN = 0.999
"""Longer schedules than one with this probability are not looked at."""
MORE = 1.25
"""How many times the epochs of a run that missed its target the next one has, at least one more."""
FAIR = 0.5
"""The probability with which a schedule is worth trying."""


@dataclass(frozen=True)
class Goal:
    """The gap that a run has to reach, and the effects of an epoch and a seed on it."""

    gap: float
    epoch: int
    """Samples of an epoch."""
    noise: float
    """Standard deviation of the logarithm of the gap from seed to seed."""


class Schedule(NamedTuple):
    """A number of epochs, its probability of success, and its expected seconds."""

    epochs: int
    probability: float
    """The probability of reaching the target."""
    expected: float
    """Total seconds until the target is reached, including those lost if it is missed."""


def next_epochs(epochs: int) -> int:
    return max(epochs + 1, round(MORE * epochs))


def probability(curve: LearningCurve, goal: Goal, epochs: int, *, optimism: float = 0.0) -> float:
    """Return the probability that a run of `epochs` epochs reaches the goal.

    With `optimism` the setting is better than its curve by that number of its own standard errors.
    """
    return BELOW(_room(curve, goal, epochs, optimism) / math.hypot(curve.error(epochs * goal.epoch), goal.noise))


def schedules(
    curve: LearningCurve,
    goal: Goal,
    seconds: Callable[[float], float],
    *,
    stop: float = 1.0,
    more_than: int = 0,
    optimism: float = 0.0,
) -> list[Schedule]:
    """Return all schedules that are worth a look, shortest first; none if the target is too far away to say.

    `seconds` returns the total seconds of a number of epochs; a run that reaches the target stops after the part `stop`
    of its epochs. They have more epochs than `more_than`. `optimism` is as in `probability`.
    """
    most = max(1, int(FARTHEST * curve.longest / goal.epoch))
    candidates: list[tuple[int, float, list[float]]] = []
    for epochs in range(more_than + 1, most + 1):
        room, error = _room(curve, goal, epochs, optimism), curve.error(epochs * goal.epoch)
        chances = [BELOW((room - z * error) / goal.noise) for z, _ in NODES]
        candidates.append((epochs, probability(curve, goal, epochs, optimism=optimism), chances))
        if candidates[-1][1] > CERTAIN:
            break
    if not candidates or candidates[-1][1] < LIKELY:
        return []
    values: dict[int, list[float]] = {}
    listed: list[Schedule] = []
    for epochs, chance, chances in reversed(candidates):
        # beyond the longest of these, a run should not miss
        later = values.get(next_epochs(epochs), [seconds(next_epochs(epochs))] * len(NODES))
        values[epochs] = [
            item * seconds(stop * epochs) + (1 - item) * (seconds(epochs) + after)
            for item, after in zip(chances, later, strict=True)
        ]
        expected = sum(weight * value for (_, weight), value in zip(NODES, values[epochs], strict=True))
        listed.append(Schedule(epochs, chance, expected))
    return listed[::-1]


def choose_best(listed: list[Schedule]) -> Schedule | None:
    """Return the schedule with the fewest expected seconds; None if there is none."""
    return min(listed, key=lambda trial: trial.expected, default=None)


def choose_next(listed: list[Schedule]) -> Schedule | None:
    """Return the schedule to train next: the shortest that has a fair chance."""
    return next((entry for entry in listed if entry.probability >= FAIR), None)


def _room(curve: LearningCurve, goal: Goal, epochs: int, optimism: float) -> float:
    """Return by how much the gap after these epochs should be smaller than the goal's, as a logarithm."""
    samples = epochs * goal.epoch
    return math.log(goal.gap) - math.log(curve.gap(samples)) + optimism * curve.own_error(samples)


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
        raise ExperimentError(f"a target of {target:g} for {metric} cannot be reached; it should be {bounds}")
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
    """Return the values of a metric on the validation part after each epoch."""
    measured = [
        event for event in events if isinstance(event, Metric) and (event.part, event.name) == ("validation", metric)
    ]
    return list({item.epoch: item for item in sorted(measured, key=lambda metric: metric.epoch)}.values())


class _Replicas(Virtual):
    """The replicas of a virtual cluster with the times that this machine takes for them."""

    def __init__(self, prediction: TimePrediction | None) -> None:
        self._prediction = prediction

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
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
