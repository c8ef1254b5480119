"""Evidence from short training runs: when each setting of a plan is expected to reach the target."""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tenfold.data import Splits, batches
from tenfold.experiment import Experiment
from tenfold.prediction.planning import learning
from tenfold.prediction.planning.candidates import Candidate, CostModel, RunCost
from tenfold.prediction.planning.learning import (
    SEED_ERROR,
    Goal,
    LearningCurve,
    Point,
    Probe,
    Schedule,
    chance_error,
    fit_curves,
    noise_factor,
    point_of,
)
from tenfold.training import Replica, choose_loss
from tenfold.workers.task import Task, make_network

REPLICAS, STEPS = 8, 2
RATE = 1e-3
"""Small enough to leave the gradient almost unchanged."""


def noise_batch(moves: Tensor, batch_size: int, steps: int) -> float:
    """Return the batch size at which noise and gradient are equally large, tr(Sigma) / |G|^2; infinite for no gradient.

    `moves` [replicas, weights] are D_i = w_i - w_0 of replicas that took H steps of plain SGD from w_0. With
    V = sum_i |D_i - mean D|^2 / (N - 1), it is b H V / (|mean D|^2 - V / N): the "simple noise scale" of
    McCandlish et al. 2018, "An Empirical Model of Large-Batch Training".
    """
    replicas, mean = len(moves), moves.mean(dim=0)
    spread = float((moves - mean).square().sum()) / (replicas - 1)
    signal = float(mean.square().sum()) - spread / replicas
    return batch_size * steps * spread / signal if signal > 0 else math.inf


def data_factor(batch: float, reference: float, noise: float) -> float:
    """Return how many times the samples a global batch size needs for the same progress as the reference does.

    Steps to a given loss go with 1 + noise / B (McCandlish et al. 2018), hence samples with B + noise.
    """
    return 1.0 if math.isinf(noise) else (batch + noise) / (reference + noise)


def measure_noise(task: Task, weights: dict[str, Tensor]) -> float:
    """Return the noise batch of a network with these weights, by replicas that each take a few steps from them."""
    training = task.experiment.replace(
        optimizer="sgd", momentum=0.0, lr=RATE, schedule="constant", warmup=0.0, clip=None, optimizer_options={}
    ).training
    part, batch = task.splits.train, training.samples_per_step
    count = REPLICAS * STEPS
    batch = max(1, min(batch, len(part) // count))
    generator = torch.Generator().manual_seed(training.seed)
    visits = list(batches(torch.randperm(len(part), generator=generator)[: count * batch], batch))
    loss = choose_loss(training, task.splits.classes, task.splits.loss_unit)
    moves = []
    for replica_visits in (visits[at : at + STEPS] for at in range(0, count, STEPS)):
        network = make_network(task)
        network.load_state_dict(weights)
        replica = Replica(network.train(), training, loss, steps_per_epoch=STEPS)
        before = _learned(replica)
        for x, y in part.batches(replica_visits):
            replica.step(x, y)
        moves.append(_learned(replica) - before)
    return noise_batch(torch.stack(moves), batch, STEPS)


def _learned(replica: Replica) -> Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in replica.trainable_parameters])


@dataclass(frozen=True)
class Trials:
    """The runs of a setting with a given number of epochs, one for each seed."""

    epochs: int
    probes: tuple[Probe, ...]
    gap: float
    """The gap that the target allows."""

    @classmethod
    def with_epochs(cls, probes: Iterable[Probe], epochs: int, gap: float) -> "Trials":
        """Return the probes that have `epochs` epochs; of those with the same seed the last."""
        by_seed = {probe.seed: probe for probe in probes if probe.epochs == epochs}
        return cls(epochs, tuple(by_seed.values()), gap)

    def __len__(self) -> int:
        return len(self.probes)

    @property
    def missed(self) -> list[int]:
        return [probe.seed for probe in self.probes if probe.epochs_to(self.gap) is None]

    @property
    def reached(self) -> int:
        return len(self.probes) - len(self.missed)

    @property
    def stop_by_seed(self) -> dict[int, int]:
        """The epochs after which such a run stops: at the target, or at its end."""
        return {probe.seed: probe.epochs_to(self.gap) or self.epochs for probe in self.probes}

    @property
    def stops(self) -> list[int]:
        return list(self.stop_by_seed.values())


def stop_share(probes: Iterable[Probe], gap: float) -> float | None:
    """Return the part of their epochs after which runs reached the target, in the mean; None if none reached it."""
    whole = [(probe.epochs_to(gap), probe.epochs) for probe in probes if probe.epochs]
    shares = [after / epochs for after, epochs in whole if after is not None]
    return statistics.mean(shares) if shares else None


class _Wall(NamedTuple):
    """The cost of a probe, in seconds of wall time."""

    once: float
    sample: float
    epoch: float


class WallTimes:
    """Predicts how long probes take by what earlier ones took."""

    def __init__(self, epoch: int) -> None:
        """Start with nothing known; `epoch` are the samples of one."""
        self._epoch = epoch
        self._walls: dict[Hashable, _Wall] = {}
        self._last: _Wall | None = None

    def add(self, setting: Hashable, seconds: float, probe: Probe) -> None:
        """Add a probe that took `seconds` seconds; what is not training, evaluating or saving comes once a run."""
        epoch_end = probe.evaluation + probe.save
        once = seconds - probe.seconds - len(probe.values) * epoch_end
        self._last = self._walls[setting] = _Wall(max(0.0, once), probe.seconds / probe.samples, epoch_end)

    def predict(self, setting: Hashable, samples: int) -> float | None:
        """Return the expected seconds of a probe of a setting over `samples` samples; None if it had none yet."""
        wall = self._walls.get(setting)
        return self._seconds(wall, samples) if wall is not None else None

    def predict_any(self, samples: int) -> float:
        """Return the expected seconds of a probe over `samples` samples if it is like the last one; 0: none yet."""
        return self._seconds(self._last, samples) if self._last is not None else 0.0

    def _seconds(self, wall: _Wall, samples: int) -> float:
        return wall.once + samples * wall.sample + max(1, round(samples / self._epoch)) * wall.epoch


HARDLY_FASTER = "averages less often than another, and is hardly faster"
EXPECTED_SLOWER = "expected to be slower"
NO_TIME = "no time was left"
UNTRIED = (HARDLY_FASTER, EXPECTED_SLOWER, NO_TIME)
"""Why candidates are not trained at all."""
DIVERGED = "diverged"
FELL_BEHIND = "fell behind"


@dataclass(eq=False)
class Assessment:
    """The results of the search for one candidate."""

    candidate: Candidate
    probes: list[Probe] = field(default_factory=list)
    """All runs on its learning curve, shortest first; candidates of one curve share them."""
    own_probes: list[Probe] = field(default_factory=list)
    """The runs of this candidate itself."""
    curve: LearningCurve | None = None
    epochs: int | None = None
    """The epochs with the fewest expected seconds to the target; None if they are too many to predict."""
    probability: float | None = None
    """The probability that a run of these epochs reaches the target."""
    expected: float | None = None
    """Total seconds to the target, including those lost if such a run misses it."""
    tried: int = 0
    """Seeds with which it was trained for just these epochs."""
    reached: int = 0
    """Those of them that reached the target."""
    stops_after: float | None = None
    """The epochs after which such a run should reach the target and stop, in the mean."""
    cost: RunCost | None = None
    """The cost of such a run, until it stops."""
    interval: tuple[float, float] | None = None
    """Seconds of training to the target: eight of ten runs should take between these."""
    epoch_seconds: float | None = None
    dropped: str = ""
    """Why it left the search before the end; "" for those that stayed."""

    @property
    def experiment(self) -> Experiment:
        return self.candidate.experiment.replace(epochs=self.epochs or 1)

    @property
    def has_diverged(self) -> bool:
        return self.dropped.startswith(DIVERGED)

    @property
    def rank(self) -> tuple[bool, float]:
        """Orders assessments by the expected seconds to the target; unknown ones come last."""
        usable = self.expected is not None and not self.has_diverged
        return not usable, self.expected if self.expected is not None else self.epoch_seconds or math.inf


@dataclass(frozen=True)
class Search:
    """The result of a search, and its cost."""

    assessments: list[Assessment]
    """Soonest first; those without a prediction last."""
    metric: str
    noise_batch: float
    """The batch size from which on larger batches mostly cost more samples."""
    calibration_seconds: float
    """Measuring step times."""
    probe_seconds: float
    machine_speeds: Sequence[float] = ()
    """How fast this machine was, relative to its calibration, with each number of workers."""
    calibration_load: float = 0.0
    """The load per core under which step times and rounds were measured."""


def find_setting(assessments: Iterable[Assessment], wanted: Candidate) -> Assessment | None:
    """Return the assessment of a setting; where it leaves the threads open, that with the most."""

    def setting(candidate: Candidate) -> tuple[Any, ...]:
        return candidate.device, candidate.precision, candidate.workers, candidate.batch, candidate.mixing

    equal = [assessment for assessment in assessments if setting(assessment.candidate) == setting(wanted)]
    same = [item for item in equal if wanted.threads is None or item.candidate.threads == wanted.threads]
    return max(same, key=lambda assessment: assessment.candidate.threads or 0, default=None)


def describe_candidate(candidate: Candidate) -> str:
    parallel, batch = candidate.experiment.parallel, candidate.experiment.training.samples_per_step
    where = f" on {candidate.device}" if candidate.device != "cpu" else ""
    where += f" in {candidate.precision}" if candidate.precision != "fp32" else ""
    if candidate.workers == 1:
        return f"1 worker{where}, batch {batch}"
    rounds = "gradients averaged" if parallel.average == "gradients" else f"{parallel.strategy} every {parallel.pace}"
    return f"{candidate.workers} workers{where}, batch {batch}, {rounds}"


# What the runs of a search say about its settings: learning curves, the epochs that they need, and what these take.
#
# A schedule is confirmed when enough seeds have reached the target with it, the experiment's own among them.

SEEDS, MOST_SEEDS, OTHER_SEEDS = 3, 10, 1000
"""Seeds that confirm a schedule, at least and where runs are short; after the experiment's own, seeds are counted from
it plus the offset."""
MISSES = 0.2
"""The share of them that may miss the target."""
CONFIRMATION_SHARE = 0.1
"""The part of the time that all seeds of a schedule may take, if these are more than the fewest."""
CURVE_WORTH = 8
"""How many trial runs the probability by a learning curve is worth, when it is compared with those that were seen."""
MISSED = 0.05
"""The upper end of an interval has room for repeated runs until no more than this share has missed the target."""


class Evidence:
    """The runs of all settings, and estimates for each."""

    def __init__(
        self,
        assessments: Sequence[Assessment],
        splits: Splits,
        costs: CostModel,
        metric: str,
        gap: float,
        seconds: float,
    ) -> None:
        """Start with nothing known; `seconds` is the time of the whole search."""
        self.assessments, self.splits, self.costs, self.metric, self.gap = assessments, splits, costs, metric, gap
        self.goal = self._goal(1.0)
        self.runs: dict[str, list[Probe]] = {}
        """The probes of each learning curve."""
        self.walls = WallTimes(len(splits.train))
        self._time = seconds
        self._needed: dict[tuple[Candidate, int], int] = {}
        """Seeds that confirm each schedule: a setting and its epochs."""
        self._warm: set[str] = set()
        """Devices on which a probe has trained."""

    def add(self, assessment: Assessment, latest: Probe, seconds: float) -> None:
        """Add a run of a setting, which took `seconds` seconds of wall time."""
        key, device = assessment.candidate.curve_key, assessment.candidate.device
        self.walls.add(assessment.candidate, seconds, latest)
        latest = replace(latest, weights={}, cold=device not in self._warm)
        self._warm.add(device)
        probes = self.runs.setdefault(key, [])
        for some in (probes, assessment.own_probes):
            some.append(latest)
            some.sort(key=lambda probe: probe.samples)
        for other in self.with_same_curve(assessment):
            other.probes = probes

    def with_same_curve(self, assessment: Assessment) -> list[Assessment]:
        """Return the settings still in the search that have the same learning curve, this one included."""
        key = assessment.candidate.curve_key
        return [other for other in self.assessments if other.candidate.curve_key == key and not other.dropped]

    def assess(self) -> None:
        """Fit all curves, and predict when each candidate reaches the target."""
        validation, classes = self.splits.validation, self.splits.classes
        assert validation is not None
        points = {key: [point_of(item, validation, classes) for item in some] for key, some in self.runs.items()}
        equal: dict[tuple[str, float], list[Point]] = {}
        for key, some in points.items():
            for point in some:
                equal.setdefault((key, point.samples), []).append(point)
        factor = noise_factor(equal.values())
        self.goal = self._goal(factor)
        curves = fit_curves(
            {key: [replace(item, error=item.error * factor) for item in some] for key, some in points.items()}
        )
        for assessment in self.assessments:
            if assessment.probes:
                assessment.curve = curves[assessment.candidate.curve_key]
                assessment.epoch_seconds = self.epoch_seconds(assessment)
                self._choose_epochs(assessment)

    def _choose_epochs(self, assessment: Assessment) -> None:
        """Set the epochs of a setting, and their predicted time; all None where the target is too far away."""
        assert assessment.curve is not None
        confirmed, listed = (
            self.confirmed_epochs(assessment),
            self.schedules(assessment, self.longest_missed(assessment, by_own_seed=True)),
        )
        best = learning.choose_best(listed)
        if confirmed is not None:
            best = self._confirmed_schedule(assessment, confirmed, listed)
        if best is None:
            assessment.epochs = assessment.probability = assessment.expected = assessment.stops_after = (
                assessment.cost
            ) = assessment.interval = None
            assessment.tried = assessment.reached = 0
            return
        assessment.epochs, assessment.probability, assessment.expected = best
        trials = self.trials(assessment, best.epochs)
        assessment.tried, assessment.reached, assessment.stops_after = (
            len(trials),
            trials.reached,
            self.stops_after(assessment, best.epochs),
        )
        assessment.cost = self._cost(assessment, assessment.stops_after)
        stops: list[float] = [*trials.stops] or [assessment.stops_after]
        first, last = self._cost(assessment, min(stops)), self._cost(assessment, max(stops))
        if first is not None and last is not None:
            high = last.interval[1] if confirmed else self._at_most(assessment, best.epochs, listed)
            assessment.interval = first.interval[0], high

    def _confirmed_schedule(self, assessment: Assessment, epochs: int, listed: Sequence[Schedule]) -> Schedule:
        """Return a confirmed schedule and its expected seconds: other seeds may still miss the target."""
        assert assessment.curve is not None
        trials, by_curve = self.trials(assessment, epochs), learning.probability(assessment.curve, self.goal, epochs)
        chance = (CURVE_WORTH * by_curve + trials.reached) / (CURVE_WORTH + len(trials))
        seconds, after = self.seconds(assessment), learning.next_epochs(epochs)
        repeated = next((schedule.expected for schedule in listed if schedule.epochs == after), seconds(after))
        expected = chance * seconds(self.stops_after(assessment, epochs)) + (1 - chance) * (seconds(epochs) + repeated)
        return Schedule(epochs, chance, expected)

    def _at_most(self, assessment: Assessment, epochs: int, listed: Sequence[Schedule]) -> float:
        """Return the seconds of training within which nearly all have reached the target, repeated runs included."""
        chances = {schedule.epochs: schedule.probability for schedule in listed}
        missed, seconds = 1.0, 0.0
        while missed > MISSED:
            cost = self._cost(assessment, epochs)
            seconds += cost.interval[1] if cost else 0.0
            missed *= 1 - chances.get(epochs, 1.0)  # beyond the longest, a run should not miss
            epochs = learning.next_epochs(epochs)
        return seconds

    def _cost(self, assessment: Assessment, epochs: float) -> RunCost | None:
        of = assessment.candidate
        others = [other for other in self.assessments if other.candidate.device == of.device]
        similar = [probe for other in others if other.candidate.workers == of.workers for probe in other.own_probes]
        return self.costs(of, epochs, assessment.own_probes, similar)

    def schedules(self, assessment: Assessment, missed: int, optimism: float = 0.0) -> list[Schedule]:
        """Return the schedules of a setting with more epochs than those that missed the target."""
        assert assessment.curve is not None
        seconds, stop = self.seconds(assessment), self.stop_share(assessment)
        return learning.schedules(assessment.curve, self.goal, seconds, stop=stop, more_than=missed, optimism=optimism)

    def stops_after(self, assessment: Assessment, epochs: int) -> float:
        """Return the epochs after which a run of `epochs` epochs stops, in the mean of its trial runs or of others."""
        stops = self.trials(assessment, epochs).stops
        return statistics.mean(stops) if stops else self.stop_share(assessment) * epochs

    def stop_share(self, assessment: Assessment) -> float:
        """Return the part of its epochs after which a run stops: as seen on this curve, or else on any."""
        own = stop_share(assessment.probes, self.gap)
        if own is None:
            own = stop_share((probe for some in self.runs.values() for probe in some), self.gap)
        return own if own is not None else 1.0

    def trials(self, assessment: Assessment, epochs: int) -> Trials:
        return Trials.with_epochs(assessment.own_probes, epochs, self.gap)

    def _lengths(self, assessment: Assessment) -> list[int]:
        """Return the numbers of epochs for which a setting was trained; parts of an epoch do not count."""
        return sorted({probe.epochs for probe in assessment.own_probes if probe.epochs})

    def confirmed_epochs(self, assessment: Assessment) -> int | None:
        """Return the epochs with which enough seeds have reached the target, and soonest."""
        sure = [epochs for epochs in self._lengths(assessment) if self._is_complete(assessment, epochs)]
        sure = [epochs for epochs in sure if not self.is_missed(assessment, epochs)]
        return min(sure, key=lambda epochs: self.stops_after(assessment, epochs), default=None)

    def _is_complete(self, assessment: Assessment, epochs: int) -> bool:
        """Return whether this number of epochs was tried with enough seeds."""
        tried = len(self.trials(assessment, epochs))
        return tried > 0 and tried >= self._enough(assessment, epochs)

    def is_open(self, assessment: Assessment, epochs: int) -> bool:
        """Return whether further seeds could show that this number of epochs is better than the confirmed schedule."""
        return not self._is_complete(assessment, epochs) and not self._is_later(assessment, epochs)

    def _is_later(self, assessment: Assessment, epochs: int) -> bool:
        """Return whether runs of `epochs` epochs stop no sooner than those of the confirmed schedule, seed by seed."""
        confirmed = self.confirmed_epochs(assessment)
        if confirmed is None or confirmed == epochs:
            return False
        mine, others = (self.trials(assessment, each).stop_by_seed for each in (epochs, confirmed))
        seeds = mine.keys() & others.keys()
        return bool(seeds) and sum(mine[seed] for seed in seeds) >= sum(others[seed] for seed in seeds)

    def longest_missed(self, assessment: Assessment, *, by_own_seed: bool = False) -> int:
        """Return the most epochs with which a setting missed the target, or its own seed did; 0: none."""
        is_missed = self._own_seed_missed if by_own_seed else self.is_missed
        return max((epochs for epochs in self._lengths(assessment) if is_missed(assessment, epochs)), default=0)

    def is_missed(self, assessment: Assessment, epochs: int) -> bool:
        """Return whether too many seeds have missed the target with these epochs, or the experiment's own has."""
        missed = self.trials(assessment, epochs).missed
        own = self._own_seed_missed(assessment, epochs)
        return own or (bool(missed) and len(missed) > int(MISSES * self._enough(assessment, epochs)))

    def _own_seed_missed(self, assessment: Assessment, epochs: int) -> bool:
        return self.seed(assessment, 0) in self.trials(assessment, epochs).missed

    def _enough(self, assessment: Assessment, epochs: int) -> int:
        """Return how many seeds confirm a schedule: more where they take little of the time."""
        key = assessment.candidate, epochs
        if key not in self._needed:
            seconds = self.wall_seconds(assessment, epochs * len(self.splits.train))
            affordable = CONFIRMATION_SHARE * self._time / seconds if seconds else MOST_SEEDS
            self._needed[key] = max(SEEDS, min(MOST_SEEDS, int(affordable)))
        return self._needed[key]

    def wall_seconds(self, assessment: Assessment, samples: int) -> float:
        """Return the expected wall time in seconds of a run of a setting over `samples` samples; 0 if not known."""
        expected = self.walls.predict(assessment.candidate, samples)
        if expected is None and self.costs.are_here:
            expected = self.seconds(assessment)(samples / len(self.splits.train)) or None
        return expected if expected is not None else self.walls.predict_any(samples)

    def seed(self, assessment: Assessment, number: int) -> int:
        """Return the seed of a setting's trial run: the experiment's own, then others."""
        own = assessment.candidate.experiment.training.seed
        return own if number == 0 else own + OTHER_SEEDS + number - 1

    def still_in_search(self) -> list[Assessment]:
        """Return the settings still in the search about which something is known."""
        return [
            assessment for assessment in self.assessments if assessment.curve is not None and not assessment.dropped
        ]

    def _goal(self, factor: float) -> Goal:
        validation = self.splits.validation
        assert validation is not None
        chance = chance_error(self.metric, self.gap, validation, self.splits.classes)
        return Goal(self.gap, len(self.splits.train), factor * math.hypot(SEED_ERROR, chance))

    def seconds(self, assessment: Assessment) -> Callable[[float], float]:
        """Return the function from a number of epochs to the total seconds of a run."""
        first, both = (self._cost(assessment, epochs) for epochs in (1, 2))
        if first is None or both is None:
            return lambda _: 0.0
        start, each = first.total, both.total - first.total
        return lambda epochs: start + (epochs - 1) * each

    def epoch_seconds(self, assessment: Assessment) -> float | None:
        """Return the training seconds of an epoch after the first, which has slow first steps."""
        first, both = (self._cost(assessment, epochs) for epochs in (1, 2))
        return both.training - first.training if first and both else None
