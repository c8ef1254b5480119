"""Which settings a search trains, for how long, and when it knows enough.

First, successive halving: the promising settings train with their full schedules over a few samples, learning curves
are fitted, and the half that should reach the target soonest trains over twice as many, up to half an epoch. Then
trial runs: the setting that could be the soonest, if it is a little better than its curve, is trained for the fewest
epochs that have a fair chance, with one seed after another, the experiment's own first. A schedule with which three of
three seeds reach the target is confirmed, or eight of ten where runs are short, the experiment's own among them; after
a miss too many, only longer ones are tried. A run stops at the target, so a schedule takes as long as its trial runs
took to get there; where these stop early, longer schedules are tried as long as runs with them stop sooner. Each run
moves all curves. The search ends when nothing else could be sooner than a confirmed schedule, or with the time.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from time import perf_counter

from tenfold.data import Splits
from tenfold.errors import TrainingError
from tenfold.prediction.calibration import ReportProgress
from tenfold.prediction.planning import epoch_choice
from tenfold.prediction.planning.assessment import (
    DIVERGED,
    EXPECTED_SLOWER,
    FELL_BEHIND,
    HARDLY_FASTER,
    NO_TIME,
    Assessment,
    describe_candidate,
)
from tenfold.prediction.planning.candidates import Candidate, undominated
from tenfold.prediction.planning.epoch_choice import Goal, Schedule
from tenfold.prediction.planning.gradient_noise import data_factor, measure_noise
from tenfold.prediction.planning.learning_curve import SEED_ERROR, fit_curves, noise_factor
from tenfold.prediction.planning.learning_probe import Probe, chance_error, point_of, train_probe
from tenfold.prediction.planning.pricing import Price, Prices
from tenfold.prediction.planning.trials import Trials, WallTimes, stop_share
from tenfold.workers.task import Task

MOST_PROBED, FEWEST_PROBED = 8, 2
"""Ways to learn that enter the first round of probes, and the last."""
FIRST_SHARE, FEWEST_STEPS, MOST_EPOCHS = 8, 64, 4
"""The first probes see this part of the training samples, but take at least so many steps, within so many epochs."""
USUAL_EPOCHS, LOOSE = 4, 0.03
"""Epochs of a run with the smallest batch before anything is known, and the share of them that replicas need in
addition for each doubling of the steps between their means."""
SEEDS, MOST_SEEDS, OTHER_SEEDS = 3, 10, 1000
"""Seeds that confirm a schedule, at least and where runs are short: the experiment's own, and those from so far beyond
it on."""
MISSES = 0.2
"""The share of them that may miss the target."""
CONFIRMATION_SHARE = 0.1
"""The part of the time that all seeds of a schedule may take, if these are more than the fewest."""
MOST_TRIALS = 200
"""Trial runs, however short they are."""
OPTIMISM = 1.0
"""Standard errors by which a setting may be better than its curve."""
LONGER = 0.9
"""The part of its seconds that a confirmed schedule might take if it were longer, with higher rates for longer."""
SLACK = 1.15
"""How many times as long as expected a run may take and still has to end in time."""
MISSED = 0.05
"""The upper end of an interval has room for repeated runs until no more than this share has missed the target."""


class TrialSearch:
    """Trains candidates until a deadline, and assesses them by what came of it."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        splits: Splits,
        prices: Prices,
        metric: str,
        gap: float,
        *,
        deadline: float,
        given: Candidate | None = None,
        report: ReportProgress,
    ) -> None:
        self.assessments = [Assessment(one) for one in candidates]
        self.splits = replace(splits, test=None, groups=None)
        self.prices, self.metric, self.gap, self.deadline, self.report = prices, metric, gap, deadline, report
        self.given = given.learning_key if given is not None else ""
        self.noise_batch = math.inf
        self._time = deadline - perf_counter()
        self._needed: dict[tuple[str, int], int] = {}
        """Seeds that confirm each schedule: a way to learn and its epochs."""
        self.goal = self._goal(1.0)
        self._runs: dict[str, list[Probe]] = {}
        """The probes of each way to learn."""
        self._walls = WallTimes(len(splits.train))
        self._timed: set[Candidate] = set()
        self._warm: set[str] = set()
        """Devices on which a probe has trained."""

    def run(self) -> None:
        """Train and assess until the soonest setting is known or the time is over."""
        self._halve(self._promising())
        self._try()
        self._conclude()

    def _promising(self) -> list[Assessment]:
        """Return the candidates worth a probe: undominated, and soonest by what the noise of gradients says."""
        for one in self.assessments:
            one.epoch_seconds = self._epoch_seconds(one)
        timed = [(one.candidate, one.epoch_seconds) for one in self.assessments if one.epoch_seconds is not None]
        kept = undominated(timed)
        left = []
        for one in self.assessments:
            worth = one.candidate in kept or one.candidate.learning_key == self.given
            if one.epoch_seconds is not None and not worth:
                one.dropped = HARDLY_FASTER
            else:
                left.append(one)
        if not left:
            return []
        reference = min(left, key=lambda one: one.candidate.batch)
        first = self._train(reference, self._samples(reference.candidate, 0))
        if first is not None:
            task = Task(reference.candidate.experiment, self.splits, 1)
            self.noise_batch = measure_noise(task, first.weights)
        fewest = reference.candidate.batch

        def expected(one: Assessment) -> float:
            factor = data_factor(one.candidate.batch, fewest, self.noise_batch)
            return self._seconds(one)(USUAL_EPOCHS * factor * (1 + LOOSE * math.log2(1 + one.candidate.looseness)))

        left = sorted((one for one in left if not one.dropped), key=expected)
        names = _of_all_sizes(one.candidate for one in left)[:MOST_PROBED]
        for one in left:
            if one.candidate.learning_key not in (*names, self.given) and not one.probes:
                one.dropped = EXPECTED_SLOWER
        return [one for one in left if not one.dropped]

    def _halve(self, alive: list[Assessment]) -> None:
        """Train fewer and fewer settings over more and more samples, up to half an epoch."""
        room, rung = MOST_PROBED, 0
        while alive:
            for one in alive:
                samples = self._samples(one.candidate, rung)
                if one.dropped or any(probe.samples >= samples for probe in one.probes):
                    continue
                if self._runs and not self._in_time(one, samples):
                    one.dropped = one.dropped or ("" if one.probes else NO_TIME)
                    continue
                self._train(one, samples)
            self._assess()
            room, rung = max(FEWEST_PROBED, room // 2), rung + 1
            alive = self._soonest([one for one in alive if one.probes and not one.dropped], room)
            alive = [one for one in alive if self._samples(one.candidate, rung) < len(self.splits.train)]

    def _try(self) -> None:
        """Train the settings that could be sooner than any confirmed one for the epochs that they could need."""
        too_long: dict[str, int] = {}
        """The fewest epochs of each way to learn that do not fit into the time."""
        runs = 0
        while runs < MOST_TRIALS:
            sure = {one: self._stop(one, epochs) for one in self._live() if (epochs := self._confirmed(one))}
            soonest = min(sure, key=lambda one: self._seconds(one)(sure[one]), default=None)
            limit = self._seconds(soonest)(sure[soonest]) if soonest is not None else math.inf
            trials = [found for one in self._live() if (found := self._trial(one, limit, too_long)) is not None]
            trials = trials or [found for one in self._live() if (found := self._longer(one, limit, too_long))]
            if not trials:
                if soonest is None or not self._time_itself(soonest):
                    return
                continue
            _, one, epochs = min(trials, key=lambda trial: trial[0])
            samples = epochs * len(self.splits.train)
            if not self._in_time(one, samples):
                too_long[one.candidate.learning_key] = epochs
                continue
            runs += 1
            self._train(one, samples, self._seed(one, len(self._trials(one, epochs))))
            self._assess()

    def _trial(self, one: Assessment, limit: float, too_long: dict[str, int]) -> tuple[float, Assessment, int] | None:
        """Return the seconds that a setting could need, and the epochs to try; None if it is not below the limit."""
        seconds, stop = self._seconds(one), self._stop_share(one)
        room = too_long.get(one.candidate.learning_key, math.inf)
        listed = [
            found
            for found in self._schedules(one, self._longest_missed(one), optimism=OPTIMISM)
            if seconds(stop * found.epochs) < limit and found.epochs < room and self._is_open(one, found.epochs)
        ]
        best, trial = epoch_choice.best(listed), epoch_choice.to_try(listed)
        return (best.expected, one, trial.epochs) if best is not None and trial is not None else None

    def _longer(self, one: Assessment, limit: float, too_long: dict[str, int]) -> tuple[float, Assessment, int] | None:
        """Return a longer schedule to try of a setting whose runs stop early, as in `_trial`."""
        confirmed = self._confirmed(one)
        if confirmed is None:
            return None
        stop, epochs = self._stop(one, confirmed), epoch_choice.next_epochs(confirmed)
        seconds = LONGER * self._seconds(one)(stop)
        if stop == confirmed or seconds >= limit or epochs >= too_long.get(one.candidate.learning_key, math.inf):
            return None
        is_open = self._is_open(one, epochs) and not self._is_missed(one, epochs)
        return (seconds, one, epochs) if is_open else None

    def _time_itself(self, one: Assessment) -> bool:
        """Train a confirmed setting with its own threads if only others that learn the same were; False: no need."""
        own, samples = self.prices.threads_of(one.candidate), (self._confirmed(one) or 1) * len(self.splits.train)
        here = self.prices.are_here and one.candidate.device == "cpu"
        needed = here and all(probe.threads != own for probe in one.probes)
        if not needed or one.candidate in self._timed or not self._in_time(one, samples):
            return False
        self._timed.add(one.candidate)
        self._train(one, samples, self._seed(one, 0))
        self._assess()
        return True

    def _conclude(self) -> None:
        """Say who fell behind: those that were never trained for as long as they need."""
        for one in self.assessments:
            if one.probes and not one.dropped and not one.tried:
                one.dropped = FELL_BEHIND

    def _train(self, one: Assessment, samples: int, seed: int | None = None) -> Probe | None:
        """Train a setting over so many samples; None if it diverges."""
        experiment = one.candidate.experiment
        seed = experiment.training.seed if seed is None else seed
        of = f" with seed {seed}" if seed != experiment.training.seed else ""
        self.report(f"training {describe_candidate(one.candidate)} over {samples:,} samples{of}")
        began = perf_counter()
        try:
            found = train_probe(experiment.replace(seed=seed), self.splits, samples, self.prices.predict)
        except TrainingError as error:
            for other in self._alike(one):
                other.dropped = f"{DIVERGED}: {str(error).partition(';')[0]}"
            return None
        key = one.candidate.learning_key
        self._walls.add(key, perf_counter() - began, found)
        known = self._runs.setdefault(key, [])
        known.append(replace(found, weights={}, cold=one.candidate.device not in self._warm))
        self._warm.add(one.candidate.device)
        known.sort(key=lambda probe: probe.samples)
        for other in self._alike(one):
            other.probes = known
        return found

    def _alike(self, one: Assessment) -> list[Assessment]:
        """Return the settings still in the search that learn the same as this one, itself included."""
        key = one.candidate.learning_key
        return [other for other in self.assessments if other.candidate.learning_key == key and not other.dropped]

    def _assess(self) -> None:
        """Fit all curves, and predict when each candidate reaches the target."""
        validation, classes = self.splits.validation, self.splits.classes
        assert validation is not None
        points = {key: [point_of(one, validation, classes) for one in some] for key, some in self._runs.items()}
        equal: dict[tuple[str, float], list[int]] = {}
        for key, some in points.items():
            for at, point in enumerate(some):
                equal.setdefault((key, point.samples), []).append(at)
        factor = noise_factor([points[key][at] for at in places] for (key, _), places in equal.items())
        self.goal = self._goal(factor)
        curves = fit_curves(
            {key: [replace(one, error=one.error * factor) for one in some] for key, some in points.items()}
        )
        for one in self.assessments:
            if one.probes:
                one.curve = curves[one.candidate.learning_key]
                one.epoch_seconds = self._epoch_seconds(one)
                self._choose_epochs(one)

    def _choose_epochs(self, one: Assessment) -> None:
        """Set the epochs of a setting, and what they should take; all None where the target is too far away."""
        assert one.curve is not None
        confirmed, listed = self._confirmed(one), self._schedules(one, self._longest_missed(one, by_own_seed=True))
        best = epoch_choice.best(listed)
        if confirmed is not None:
            trials, sure = self._trials(one, confirmed), epoch_choice.probability(one.curve, self.goal, confirmed)
            seen = (trials.reached + 1) / (len(trials) + 2)
            best = Schedule(confirmed, max(sure, seen), self._seconds(one)(self._stop(one, confirmed)))
        if best is None:
            one.epochs = one.probability = one.expected = one.stops_after = one.price = one.interval = None
            one.tried = one.reached = 0
            return
        one.epochs, one.probability, one.expected = best
        trials = self._trials(one, best.epochs)
        one.tried, one.reached, one.stops_after = len(trials), trials.reached, self._stop(one, best.epochs)
        one.price = self._price(one, one.stops_after)
        stops: list[float] = [*trials.stops] or [one.stops_after]
        first, last = self._price(one, min(stops)), self._price(one, max(stops))
        if first is not None and last is not None:
            high = last.interval[1] if confirmed else self._at_most(one, best.epochs, listed)
            one.interval = first.interval[0], high

    def _at_most(self, one: Assessment, epochs: int, listed: Sequence[Schedule]) -> float:
        """Return the seconds of training within which nearly all have reached the target, repeated runs included."""
        chances = {found.epochs: found.probability for found in listed}
        missed, seconds = 1.0, 0.0
        while missed > MISSED:
            price = self._price(one, epochs)
            seconds += price.interval[1] if price else 0.0
            missed *= 1 - chances.get(epochs, 1.0)  # beyond the longest, a run should not miss
            epochs = epoch_choice.next_epochs(epochs)
        return seconds

    def _price(self, one: Assessment, epochs: float) -> Price | None:
        return self.prices(one.candidate, epochs, one.probes)

    def _schedules(self, one: Assessment, missed: int, optimism: float = 0.0) -> list[Schedule]:
        """Return the schedules of a setting with more epochs than those that missed the target."""
        assert one.curve is not None
        seconds, stop = self._seconds(one), self._stop_share(one)
        return epoch_choice.schedules(one.curve, self.goal, seconds, stop=stop, more_than=missed, optimism=optimism)

    def _stop(self, one: Assessment, epochs: int) -> float:
        """Return the epochs after which a run of so many stops, in the mean of its trial runs, or as others do."""
        stops = self._trials(one, epochs).stops
        return statistics.mean(stops) if stops else self._stop_share(one) * epochs

    def _stop_share(self, one: Assessment) -> float:
        """Return the part of its epochs after which a run stops: as seen with this setting, or else with any."""
        own = stop_share(one.probes, self.gap)
        if own is None:
            own = stop_share((probe for some in self._runs.values() for probe in some), self.gap)
        return own if own is not None else 1.0

    def _trials(self, one: Assessment, epochs: int) -> Trials:
        """Return the runs of a setting with just these epochs."""
        return Trials.among(one.probes, epochs, self.gap)

    def _lengths(self, one: Assessment) -> list[int]:
        """Return the numbers of epochs for which a setting was trained; parts of an epoch do not count."""
        return sorted({probe.epochs for probe in one.probes if probe.epochs})

    def _confirmed(self, one: Assessment) -> int | None:
        """Return the epochs with which enough seeds have reached the target, and soonest."""
        sure = [epochs for epochs in self._lengths(one) if self._is_complete(one, epochs)]
        sure = [epochs for epochs in sure if not self._is_missed(one, epochs)]
        return min(sure, key=lambda epochs: self._stop(one, epochs), default=None)

    def _is_complete(self, one: Assessment, epochs: int) -> bool:
        """Return whether so many epochs were tried with enough seeds."""
        tried = len(self._trials(one, epochs))
        return tried > 0 and tried >= self._enough(one, epochs)

    def _is_open(self, one: Assessment, epochs: int) -> bool:
        """Return whether further seeds could show that so many epochs are better than the confirmed schedule."""
        return not self._is_complete(one, epochs) and not self._is_later(one, epochs)

    def _is_later(self, one: Assessment, epochs: int) -> bool:
        """Return whether runs of so many epochs stop no sooner than those of the confirmed schedule, seed by seed."""
        confirmed = self._confirmed(one)
        if confirmed is None or confirmed == epochs:
            return False
        mine, others = (self._trials(one, each).stop_by_seed for each in (epochs, confirmed))
        seeds = mine.keys() & others.keys()
        return bool(seeds) and sum(mine[seed] for seed in seeds) >= sum(others[seed] for seed in seeds)

    def _longest_missed(self, one: Assessment, *, by_own_seed: bool = False) -> int:
        """Return the most epochs with which a setting missed the target, or its own seed did; 0: none."""
        is_missed = self._own_seed_missed if by_own_seed else self._is_missed
        return max((epochs for epochs in self._lengths(one) if is_missed(one, epochs)), default=0)

    def _is_missed(self, one: Assessment, epochs: int) -> bool:
        """Return whether too many seeds have missed the target with these epochs, or the experiment's own has."""
        missed = self._trials(one, epochs).missed
        own = self._own_seed_missed(one, epochs)
        return own or (bool(missed) and len(missed) > int(MISSES * self._enough(one, epochs)))

    def _own_seed_missed(self, one: Assessment, epochs: int) -> bool:
        return self._seed(one, 0) in self._trials(one, epochs).missed

    def _enough(self, one: Assessment, epochs: int) -> int:
        """Return how many seeds confirm a schedule: more where they take little of the time."""
        key = one.candidate.learning_key
        if (key, epochs) not in self._needed:
            seconds = self._walls.predict(key, epochs * len(self.splits.train))
            room = CONFIRMATION_SHARE * self._time / seconds if seconds else MOST_SEEDS
            self._needed[key, epochs] = max(SEEDS, min(MOST_SEEDS, int(room)))
        return self._needed[key, epochs]

    def _seed(self, one: Assessment, number: int) -> int:
        """Return the seed of a setting's trial run: the experiment's own, then others."""
        own = one.candidate.experiment.training.seed
        return own if number == 0 else own + OTHER_SEEDS + number - 1

    def _live(self) -> list[Assessment]:
        return [one for one in self.assessments if one.curve is not None and not one.dropped]

    def _goal(self, factor: float) -> Goal:
        validation = self.splits.validation
        assert validation is not None
        chance = chance_error(self.metric, self.gap, validation, self.splits.classes)
        return Goal(self.gap, len(self.splits.train), factor * math.hypot(SEED_ERROR, chance))

    def _seconds(self, one: Assessment) -> Callable[[float], float]:
        """Return the function that gives the seconds in all of a run of so many epochs."""
        first, both = (self.prices(one.candidate, epochs, one.probes) for epochs in (1, 2))
        if first is None or both is None:
            return lambda _: 0.0
        start, each = first.total, both.total - first.total
        return lambda epochs: start + (epochs - 1) * each

    def _epoch_seconds(self, one: Assessment) -> float | None:
        """Return the training seconds of an epoch after the first, which has slow first steps."""
        first, both = (self.prices(one.candidate, epochs, one.probes) for epochs in (1, 2))
        return both.training - first.training if first and both else None

    def _soonest(self, some: Iterable[Assessment], room: int) -> list[Assessment]:
        """Return the candidates with the ways to learn that should reach the target soonest."""

        def seconds(one: Assessment) -> float:
            """As if an epoch could end anywhere."""
            assert one.curve is not None
            return self._seconds(one)(one.curve.samples_to(self.gap) / len(self.splits.train))

        listed = sorted((one for one in some if one.curve is not None), key=seconds)
        kept = list(dict.fromkeys(one.candidate.learning_key for one in listed))[:room]
        return [one for one in listed if one.candidate.learning_key in kept]

    def _samples(self, candidate: Candidate, rung: int) -> int:
        whole = len(self.splits.train)
        first = max(whole / FIRST_SHARE, min(FEWEST_STEPS * candidate.batch, MOST_EPOCHS * whole))
        samples = first * (1 << rung)
        return round(samples) if samples < whole else whole * max(1, round(samples / whole))

    def _in_time(self, one: Assessment, samples: int) -> bool:
        seconds = self._walls.predict(one.candidate.learning_key, samples)
        return perf_counter() + SLACK * seconds <= self.deadline


def _of_all_sizes(ordered: Iterable[Candidate]) -> list[str]:
    """Return the ways to learn: the first of every number of workers and batch size, then the second of each, ..."""
    sizes: dict[tuple[str, int, int], list[str]] = {}
    for one in ordered:
        names = sizes.setdefault((one.device, one.workers, one.batch), [])
        if one.learning_key not in names:
            names.append(one.learning_key)
    return [name for row in zip_longest(*sizes.values()) for name in row if name is not None]
