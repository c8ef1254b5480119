"""The search for the setting that reaches a target soonest.

1. The clock predicts the seconds of an epoch for every candidate. Those that average less often than others and are
   hardly faster for it are dropped.
2. A first short run tells how noisy gradients are. That says how many more samples larger batches need, and thereby
   which candidates are expected to be slow. The others continue.
3. Successive halving: all of them train with their full schedules over a few samples, learning curves are fitted, and
   the half that should reach the target soonest trains over twice as many samples; then the better half of all again,
   until the best two have reached the target or the budget is spent.
4. For every setting that was trained, the fewest epochs that reach the target with a probability of 80% follow from
   its curve, and the clock predicts their seconds. The soonest is trained once for just these epochs, and judged again.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from tenfold.cluster.cluster import Cluster
from tenfold.data import Splits
from tenfold.errors import ExperimentError, TrainingError
from tenfold.experiment import Experiment
from tenfold.prediction.calibration import ReportProgress
from tenfold.prediction.planning.candidates import Candidate, undominated
from tenfold.prediction.planning.gradient_noise import data_factor, measure_noise
from tenfold.prediction.planning.learning_curve import LearningCurve, fit_curves
from tenfold.prediction.planning.learning_probe import Probe, chance_error, point_of, target_gap, train_probe
from tenfold.prediction.planning.pricing import Price, Prices
from tenfold.workers.task import Task

MOST_PROBED, FINALISTS = 8, 2
"""Ways to learn that enter the first round of probes, and those that train until they reach the target."""
FIRST_SHARE, FEWEST_STEPS = 8, 64
"""The first probes see this part of the training samples, but take at least so many steps."""
BUDGET = 90.0
"""Seconds for probes."""
SURE, OUTSIDE = 0.84, 1.28
"""Standard errors: eight of ten runs are better than the first above the mean; a tenth lies beyond the second."""
UNTRIED = ("averages less often than another, and is hardly faster", "expected to be slower")
"""Why candidates are not trained at all."""
DIVERGED = "diverged"
MOST_VERIFIED, NEAR = 3, 1.2
"""How often the best setting is trained for as many epochs as it should need; not if a probe came so near to it."""
FARTHEST = 16
"""How many times as long as its longest probe a run may be for a curve to be believed."""


@dataclass
class Assessment:
    """What the search found out about one candidate."""

    candidate: Candidate
    probes: list[Probe] = field(default_factory=list)
    curve: LearningCurve | None = None
    epochs: int | None = None
    """The fewest that reach the target with a probability of 80%; None: too many to say."""
    price: Price | None = None
    """Of a run of these epochs."""
    interval: tuple[float, float] | None = None
    """Seconds of training to the target: nine of ten runs should take between these."""
    epoch_seconds: float | None = None
    dropped: str = ""
    """Why it left the search before the end; "" for those that stayed."""

    @property
    def experiment(self) -> Experiment:
        """The experiment to run."""
        return self.candidate.experiment.replace(epochs=self.epochs or 1)


@dataclass(frozen=True)
class Search:
    """Everything that a search found, and what it cost."""

    assessments: list[Assessment]
    """Soonest first; those without a prediction last."""
    metric: str
    noise_batch: float
    """The batch size from which on larger batches mostly cost more samples."""
    calibration_seconds: float
    """Measuring step times, kept for other predictions."""
    probe_seconds: float
    machine_speeds: Sequence[float] = ()
    """How fast this machine was, relative to its calibration, with each number of workers."""


def search(
    candidates: Sequence[Candidate],
    splits: Splits,
    target: float,
    *,
    cluster: Cluster | None = None,
    given: Candidate | None = None,
    budget: float = BUDGET,
    report: ReportProgress | None = None,
) -> Search:
    """Find the candidate that reaches a target soonest, in about `budget` seconds of training.

    The target is one of the validation part, which the data must have; the test part is never looked at. `given` is the
    setting to compare with, which is tried in any case.
    """
    report = report or (lambda _: None)
    base = candidates[0].experiment
    metric, gap = target_gap(base, splits.classes, target)
    began = perf_counter()
    prices = Prices(candidates, splits, cluster, report)
    calibrated = perf_counter() - began
    assert splits.validation is not None
    chance = chance_error(metric, gap, splits.validation, splits.classes)
    halving = _Halving(candidates, splits, prices, gap, report, began + calibrated + budget, given, chance)
    halving.run()
    assessments = sorted(halving.assessments, key=_sort_key)
    return Search(assessments, metric, halving.noise, calibrated, perf_counter() - began - calibrated, prices.speeds)


class _Halving:
    def __init__(
        self,
        candidates: Sequence[Candidate],
        splits: Splits,
        prices: Prices,
        gap: float,
        report: ReportProgress,
        deadline: float,
        given: Candidate | None,
        chance: float,
    ) -> None:
        self.assessments = [Assessment(one) for one in candidates]
        self.splits = replace(splits, test=None, groups=None)
        self.prices, self.gap, self.report, self.deadline = prices, gap, report, deadline
        self.chance = chance
        self.given = given.learning_key if given is not None else ""
        self.noise = math.inf
        self.rate = 0.0
        """Samples that probes got through in a second, so far."""
        self._probes: dict[str, list[Probe]] = {}

    def run(self) -> None:
        alive = self._promising()
        probed, room = alive, MOST_PROBED
        while alive and all(self._affordable(one) for one in alive):
            for one in alive:
                self._probe(one, len(one.probes))
            self._assess()
            probed = [one for one in probed if not one.dropped]
            room = max(FINALISTS, room // 2)
            alive = self._soonest(probed, room)
            if all(self._has_reached(one) for one in alive):
                break
        last = self._soonest([one for one in probed if one.probes], FINALISTS)
        for one in probed:
            if one not in last:
                one.dropped = "fell behind"
        self._verify()

    def _verify(self) -> None:
        """Train the best setting for the epochs that it is predicted to need, and predict again."""
        for _ in range(MOST_VERIFIED):
            best = min(self.assessments, key=_sort_key)
            if best.price is None or best.epochs is None:
                return
            samples = best.epochs * len(self.splits.train)
            near = any(abs(math.log(probe.samples / samples)) < math.log(NEAR) for probe in best.probes)
            if near or not self._in_time(samples):
                return
            found = self._train(best, samples)
            if found is None:
                return
            for one in self.assessments:
                if one.candidate.learning_key == best.candidate.learning_key and one.probes:
                    one.probes = sorted([*one.probes, found], key=lambda probe: probe.samples)
            self._assess()

    def _promising(self) -> list[Assessment]:
        """Return the candidates worth a probe: undominated, and soonest by what the noise of gradients says."""
        for one in self.assessments:
            one.epoch_seconds = self._epoch_seconds(one)
        timed = [(one.candidate, one.epoch_seconds) for one in self.assessments if one.epoch_seconds is not None]
        kept = undominated(timed)
        left = []
        for one in self.assessments:
            tried = one.candidate in kept or one.candidate.learning_key == self.given
            if one.epoch_seconds is not None and not tried:
                one.dropped = UNTRIED[0]
            else:
                left.append(one)
        if not left:
            return []
        reference = min(left, key=lambda one: one.candidate.batch)
        self._probe(reference, 0)
        if reference.probes:
            task = Task(reference.candidate.experiment, self.splits, 1)
            self.noise = measure_noise(task, reference.probes[0].weights)
        fewest = reference.candidate.batch

        def expected(one: Assessment) -> float:
            if one.epoch_seconds is None:
                return 0.0
            return one.epoch_seconds * data_factor(one.candidate.batch, fewest, self.noise)

        left = [one for one in left if not one.dropped]
        names = list(dict.fromkeys(one.candidate.learning_key for one in sorted(left, key=expected)))[:MOST_PROBED]
        for one in left:
            if one.candidate.learning_key not in (*names, self.given):
                one.dropped = UNTRIED[1]
        return [one for one in left if not one.dropped]

    def _probe(self, one: Assessment, rung: int) -> None:
        """Train over the samples of a rung, twice those of the one before; what learns the same shares its probes."""
        known = self._probes.setdefault(one.candidate.learning_key, [])
        if len(known) <= rung:
            found = self._train(one, self._samples(one.candidate, rung))
            if found is None:
                return
            known.append(found)
        one.probes = known[: rung + 1]

    def _train(self, one: Assessment, samples: int) -> Probe | None:
        """Train a setting over so many samples; None if it diverges."""
        self.report(f"training {describe_candidate(one.candidate)} over {samples:,} samples")
        began = perf_counter()
        try:
            found = train_probe(one.candidate.experiment, self.splits, samples, self.prices.predict)
        except TrainingError as error:
            one.dropped = f"{DIVERGED}: {str(error).partition(';')[0]}"
            return None
        self.rate = found.samples / (perf_counter() - began)
        return found

    def _samples(self, candidate: Candidate, rung: int) -> int:
        whole = len(self.splits.train)
        first = max(whole / FIRST_SHARE, FEWEST_STEPS * candidate.batch)
        samples = first * (1 << rung)
        return round(samples) if samples < whole else whole * max(1, round(samples / whole))

    def _assess(self) -> None:
        """Fit all curves, and predict when each candidate reaches the target."""
        validation, classes = self.splits.validation, self.splits.classes
        assert validation is not None
        probed = {at: one.probes for at, one in enumerate(self.assessments) if one.probes}
        curves = fit_curves({at: [point_of(one, validation, classes) for one in some] for at, some in probed.items()})
        whole = len(self.splits.train)
        for at, curve in curves.items():
            one = self.assessments[at]
            one.curve = curve
            needed = [self._epochs(curve, whole, deviations) for deviations in (-OUTSIDE, SURE, OUTSIDE)]
            low, one.epochs, high = needed
            one.epoch_seconds = self._epoch_seconds(one)
            if one.epochs is None:
                one.price = one.interval = None
                continue
            one.price = self.prices(one.candidate, one.epochs, one.probes)
            first = self.prices(one.candidate, low or one.epochs, one.probes)
            last = self.prices(one.candidate, high or one.epochs, one.probes)
            if one.price and first and last:
                middle = one.price.training
                one.interval = min(first.interval[0], middle), max(last.interval[1], middle)

    def _epoch_seconds(self, one: Assessment) -> float | None:
        """Return the training seconds of an epoch after the first, which has slow first steps."""
        first, both = (self.prices(one.candidate, epochs, one.probes) for epochs in (1, 2))
        return both.training - first.training if first and both else None

    def _epochs(self, curve: LearningCurve, whole: int, deviations: float) -> int | None:
        """Return the fewest epochs that reach the target even if a run is so many standard errors worse."""
        most = max(1, int(FARTHEST * curve.longest / whole))
        return next(
            (n for n in range(1, most + 1) if curve.reaches(self.gap, n * whole, deviations, self.chance)), None
        )

    def _soonest(self, some: Iterable[Assessment], room: int) -> list[Assessment]:
        """Return the candidates with the ways to learn that should reach the target soonest."""
        listed = sorted(some, key=self._expected_seconds)
        kept = list(dict.fromkeys(one.candidate.learning_key for one in listed))[:room]
        return [one for one in listed if one.candidate.learning_key in kept]

    def _expected_seconds(self, one: Assessment) -> float:
        """Return the seconds from the start to the target, as if an epoch could end anywhere."""
        single = self.prices(one.candidate, 1, one.probes)
        if one.curve is None or single is None or one.epoch_seconds is None:
            return 0.0
        epochs = one.curve.samples_to(self.gap) / len(self.splits.train)
        both = self.prices(one.candidate, 2, one.probes)
        return single.total + (epochs - 1) * (both.total - single.total if both else one.epoch_seconds)

    def _has_reached(self, one: Assessment) -> bool:
        return one.probes[-1].gap <= self.gap

    def _affordable(self, one: Assessment) -> bool:
        return not one.probes or self._in_time(self._samples(one.candidate, len(one.probes)))

    def _in_time(self, samples: int) -> bool:
        return perf_counter() + samples / max(self.rate, 1e-9) <= self.deadline


def describe_candidate(candidate: Candidate) -> str:
    """Return a candidate in words."""
    division, batch = candidate.experiment.division, candidate.experiment.training.samples_per_step
    where = f" on {candidate.device}" if candidate.device != "cpu" else ""
    if candidate.workers == 1:
        return f"1 worker{where}, batch {batch}"
    rounds = "gradients averaged" if division.average == "gradients" else f"{division.strategy} every {division.pace}"
    return f"{candidate.workers} workers{where}, batch {batch}, {rounds}"


def _sort_key(one: Assessment) -> tuple[bool, float]:
    """Order by the seconds in all that eight of ten runs should need; what is not known comes last."""
    usable = one.price is not None and not one.dropped.startswith(DIVERGED)
    return not usable, one.price.total if one.price else one.epoch_seconds or math.inf


def best_of(found: Search, target: float) -> Assessment:
    """Return the soonest of those that were trained; raise ExperimentError where none is expected to get there."""
    best = min(found.assessments, key=_sort_key)
    if best.price is not None:
        return best
    tried = [one for one in found.assessments if one.probes]
    if not tried:
        raise ExperimentError(f"no setting could be trained: {found.assessments[0].dropped or 'there is none'}")
    top = max(tried, key=lambda one: one.probes[-1].samples)
    last = top.probes[-1]
    raise ExperimentError(
        f"no setting was found that reaches {found.metric} {target:g}: {describe_candidate(top.candidate)} has "
        f"{last.value:.4g} on the validation part after {last.samples:,} samples; choose an easier target or a larger "
        "budget"
    )
