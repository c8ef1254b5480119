"""The search for the setting that reaches a target first.

1. The clock predicts the seconds of an epoch for every candidate. Those that average less often than others and are
   hardly faster for it are dropped.
2. A first short run tells how noisy gradients are. That says how many more samples larger batches need, and thereby
   which candidates are expected to be slow. The others continue.
3. Short runs give each a learning curve, and trial runs with several seeds show how few epochs reach the target
   (see `TrialSearch`). Their times show the cost of each setting on this machine.
4. The setting and the epochs with the fewest expected seconds to the target are chosen, where a run that misses it
   costs its time and is repeated with more epochs (see `learning.schedules`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from time import perf_counter

from tenfold.cluster.cluster import HERE, ClusterOrHere
from tenfold.data import Splits
from tenfold.errors import ExperimentError, TrainingError
from tenfold.prediction.calibration import silent
from tenfold.prediction.planning.candidates import Candidate, CostModel, drop_dominated
from tenfold.prediction.planning.evidence import (
    DIVERGED,
    EXPECTED_SLOWER,
    FELL_BEHIND,
    HARDLY_FASTER,
    NO_TIME,
    Assessment,
    Evidence,
    Search,
    data_factor,
    describe_candidate,
    find_setting,
    measure_noise,
)
from tenfold.prediction.planning.learning import Probe, choose_next, next_epochs, target_gap, train_probe
from tenfold.prediction.probes import ReportProgress
from tenfold.workers.task import Resolved, Task

BUDGET = 90.0
"""Seconds that planning may take."""
CALIBRATION_SHARE = 0.4
"""The part of them that may be spent on measuring step times."""


def search(
    candidates: Sequence[Candidate],
    splits: Splits,
    target: float,
    *,
    cluster: ClusterOrHere = HERE,
    given: Candidate | None = None,
    budget: float = BUDGET,
    loading: float = 0.0,
    report: ReportProgress = silent,
) -> Search:
    """Find the candidate that reaches a target soonest, in about `budget` seconds.

    The target is measured on the validation part, which the data must have; the test part is never used. `given` is the
    setting to compare with, which is tried in any case. `loading` are the seconds for which a run loads its data.
    """
    metric, gap = target_gap(candidates[0].experiment, splits.classes, target)
    began = perf_counter()
    costs = CostModel(candidates, splits, cluster, report, deadline=began + CALIBRATION_SHARE * budget, loading=loading)
    calibrated = perf_counter() - began
    trials = TrialSearch(candidates, splits, costs, metric, gap, deadline=began + budget, given=given, report=report)
    trials.run()
    assessments = sorted(trials.assessments, key=lambda assessment: assessment.rank)
    probed = perf_counter() - began - calibrated
    return Search(assessments, metric, trials.noise_batch, calibrated, probed, costs.speeds, costs.load)


def best_of(search: Search, target: float) -> Assessment:
    """Return the soonest of those that were trained; raise ExperimentError if none is expected to reach the target."""
    best = min(search.assessments, key=lambda assessment: assessment.rank)
    if best.expected is not None:
        return best
    tried = [assessment for assessment in search.assessments if assessment.probes]
    if not tried:
        raise ExperimentError(
            f"no setting could be trained: {search.assessments[0].dropped or 'there are no settings to try'}"
        )
    top = max(tried, key=lambda assessment: assessment.probes[-1].samples)
    last = top.probes[-1]
    raise ExperimentError(
        f"no setting was found that reaches {search.metric} {target:g}: {describe_candidate(top.candidate)} has "
        f"{last.value:.4g} on the validation part after {last.samples:,} samples; choose an easier target or a larger "
        "budget"
    )


# Which settings a search trains, for how long, and when it knows enough.
#
# First, successive halving: settings with the promising learning curves train with their full schedules over a few
# samples, one for each curve; curves are fitted, and the half that should reach the target soonest trains over twice
# as many, up to half an epoch. Then trial runs: for each setting, the fewest epochs that have a fair chance if it is
# a little better than its curve; those that take the fewest seconds are trained, with one seed after another, the
# experiment's own first. A schedule is confirmed by three to ten seeds, more where runs are short; a fifth of them,
# rounded down, may miss the target, but not the experiment's own. After a miss too many, only longer ones are tried.
# A run stops at the target, so a schedule takes as long as its trial runs took to get there; where these stop early,
# longer schedules are tried as long as runs with them stop sooner. Each run moves all curves. The search ends when
# nothing else could be sooner than a confirmed schedule, or with the time.

MOST_PROBED, FEWEST_PROBED = 8, 2
"""Learning curves that enter the first round of probes, and the last."""
FIRST_SHARE, FEWEST_STEPS, MOST_EPOCHS = 8, 64, 4
"""The first probes see this part of the training samples, with a minimum of steps and a maximum of epochs."""
USUAL_EPOCHS, LOOSE = 4, 0.03
"""Epochs of a run with the smallest batch before anything is known, and the share of them that replicas need in
addition for each doubling of the steps between their means."""
TIMING_SHARE = 0.02
"""The part of the time that a probe may take which only shows how fast a setting is."""
MOST_TRIALS = 200
"""Trial runs, however short they are."""
OPTIMISM = 1.0
"""Standard errors by which a setting may be better than its curve."""
LONGER = 0.9
"""The part of its seconds that a confirmed schedule might take if it were longer, with higher rates for longer."""
MOST_OVER_EXPECTED = 1.15
"""How many times as long as expected a run may take and still has to end in time."""


class TrialSearch:
    """Trains candidates until a deadline, and assesses them by the outcome."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        splits: Splits,
        costs: CostModel,
        metric: str,
        gap: float,
        *,
        deadline: float,
        given: Candidate | None = None,
        report: ReportProgress,
    ) -> None:
        self.assessments = [Assessment(candidate) for candidate in candidates]
        self.splits = replace(splits, test=None, groups=None)
        self.costs, self.gap, self.deadline, self.report = costs, gap, deadline, report
        self.given = find_setting(self.assessments, given) if given is not None else None
        self.noise_batch = math.inf
        self._time = deadline - perf_counter()
        self.evidence = Evidence(self.assessments, self.splits, costs, metric, gap, self._time)

    def run(self) -> None:
        """Train and assess until the soonest setting is known or the time is over."""
        self._halve(self._promising())
        self._try()
        self._conclude()

    def _promising(self) -> list[Assessment]:
        """Return the candidates worth a probe: not dominated, and fastest according to the noise of gradients."""
        for assessment in self.assessments:
            assessment.epoch_seconds = self.evidence.epoch_seconds(assessment)
        timed = [
            (assessment.candidate, assessment.epoch_seconds)
            for assessment in self.assessments
            if assessment.epoch_seconds is not None
        ]
        kept = drop_dominated(timed)
        for item in self.assessments:
            if item.epoch_seconds is not None and item.candidate not in kept and item is not self.given:
                item.dropped = HARDLY_FASTER
        left = [assessment for assessment in self.assessments if not assessment.dropped]
        reference = min(left, key=lambda assessment: (assessment.candidate.batch, assessment.epoch_seconds or 0.0))
        first = self._train(reference, self._samples(reference.candidate, 0))
        if first is not None:
            task = Task.of(Resolved.of(reference.candidate.experiment), self.splits, 1)
            self.noise_batch = measure_noise(task, first.weights)
        fewest = reference.candidate.batch

        def expected(assessment: Assessment) -> float:
            factor = data_factor(assessment.candidate.batch, fewest, self.noise_batch)
            return self.evidence.seconds(assessment)(
                USUAL_EPOCHS * factor * (1 + LOOSE * math.log2(1 + assessment.candidate.looseness))
            )

        left = sorted((item for item in left if not item.dropped), key=expected)
        kept_curves = _of_all_sizes(item.candidate for item in left)[:MOST_PROBED]
        if self.given is not None:
            kept_curves.append(self.given.candidate.curve_key)
        for item in left:
            if item.candidate.curve_key not in kept_curves and not item.probes:
                item.dropped = EXPECTED_SLOWER
        return [item for item in left if not item.dropped]

    def _halve(self, alive: list[Assessment]) -> None:
        """Learn fewer and fewer learning curves from more and more samples, up to half an epoch."""
        kept, rung = MOST_PROBED, 0
        while alive:
            for item in self._of_each_curve(alive, rung):
                samples = self._samples(item.candidate, rung)
                if item.dropped or any(probe.samples >= samples for probe in item.probes):
                    continue
                if self.evidence.runs and not self._in_time(item, samples):
                    for other in self.evidence.with_same_curve(item) if not item.probes else ():
                        other.dropped = NO_TIME
                    continue
                self._train(item, samples)
            if rung == 0:
                self._time_short_runs(alive)
            self.evidence.assess()
            kept, rung = max(FEWEST_PROBED, kept // 2), rung + 1
            alive = self._soonest([item for item in alive if item.probes and not item.dropped], kept)
            alive = [item for item in alive if self._samples(item.candidate, rung) < len(self.splits.train)]

    def _of_each_curve(self, alive: Iterable[Assessment], rung: int) -> list[Assessment]:
        """Return for each learning curve the setting whose probe takes the fewest seconds."""
        fastest: dict[str, tuple[float, Assessment]] = {}
        for item in alive:
            seconds = self.evidence.wall_seconds(item, self._samples(item.candidate, rung))
            best = fastest.setdefault(item.candidate.curve_key, (seconds, item))
            if seconds < best[0]:
                fastest[item.candidate.curve_key] = seconds, item
        return [item for _, item in fastest.values()]

    def _time_short_runs(self, alive: Iterable[Assessment]) -> None:
        """Train the settings whose curve is known from others, where that takes almost no time, for their speed."""
        for item in alive:
            samples = self._samples(item.candidate, 0)
            is_short = self.evidence.wall_seconds(item, samples) <= TIMING_SHARE * self._time
            wanted = self.costs.are_here and (is_short or item is self.given)
            if wanted and item.probes and not item.own_probes and not item.dropped and self._in_time(item, samples):
                self._train(item, samples)

    def _try(self) -> None:
        """Train the settings that could be sooner than any confirmed one for the epochs that they could need."""
        too_long: dict[Candidate, int] = {}
        """The fewest epochs of each setting that do not fit into the time."""
        runs = 0
        while runs < MOST_TRIALS:
            alive = self.evidence.still_in_search()
            confirmed = [item.expected for item in alive if self.evidence.confirmed_epochs(item)]
            limit = min((expected for expected in confirmed if expected is not None), default=math.inf)
            trials = [trial for item in alive if (trial := self._trial(item, limit, too_long))]
            trials = trials or [trial for item in alive if (trial := self._longer(item, limit, too_long))]
            if not trials:
                return
            _, assessment, epochs = min(trials, key=lambda trial: trial[0])
            samples = epochs * len(self.splits.train)
            if not self._in_time(assessment, samples):
                too_long[assessment.candidate] = epochs
                continue
            runs += 1
            self._train(
                assessment, samples, self.evidence.seed(assessment, len(self.evidence.trials(assessment, epochs)))
            )
            self.evidence.assess()

    def _trial(
        self, assessment: Assessment, limit: float, too_long: dict[Candidate, int]
    ) -> tuple[float, Assessment, int] | None:
        """Return the epochs to try of a setting, and their seconds if they are enough; None if not below the limit."""
        seconds, stop = self.evidence.seconds(assessment), self.evidence.stop_share(assessment)
        too_many = too_long.get(assessment.candidate, math.inf)
        listed = [
            schedule
            for schedule in self.evidence.schedules(
                assessment, self.evidence.longest_missed(assessment), optimism=OPTIMISM
            )
            if seconds(stop * schedule.epochs) < limit
            and schedule.epochs < too_many
            and self.evidence.is_open(assessment, schedule.epochs)
        ]
        trial = choose_next(listed)
        return (seconds(stop * trial.epochs), assessment, trial.epochs) if trial is not None else None

    def _longer(
        self, assessment: Assessment, limit: float, too_long: dict[Candidate, int]
    ) -> tuple[float, Assessment, int] | None:
        """Return a longer schedule to try of a setting whose runs stop early, as in `_trial`."""
        confirmed = self.evidence.confirmed_epochs(assessment)
        if confirmed is None:
            return None
        stop, epochs = self.evidence.stops_after(assessment, confirmed), next_epochs(confirmed)
        seconds = LONGER * self.evidence.seconds(assessment)(stop)
        if stop == confirmed or seconds >= limit or epochs >= too_long.get(assessment.candidate, math.inf):
            return None
        is_open = self.evidence.is_open(assessment, epochs) and not self.evidence.is_missed(assessment, epochs)
        return (seconds, assessment, epochs) if is_open else None

    def _conclude(self) -> None:
        """Note the settings that fell behind: those that were never trained for as long as they need."""
        for assessment in self.assessments:
            if assessment.probes and not assessment.dropped and not assessment.tried:
                assessment.dropped = FELL_BEHIND

    def _train(self, assessment: Assessment, samples: int, seed: int | None = None) -> Probe | None:
        """Train a setting over `samples` samples; None if it diverges."""
        experiment = assessment.candidate.experiment
        seed = experiment.training.seed if seed is None else seed
        of = f" with seed {seed}" if seed != experiment.training.seed else ""
        self.report(f"training {describe_candidate(assessment.candidate)} over {samples:,} samples{of}")
        began = perf_counter()
        try:
            probe = train_probe(experiment.replace(seed=seed), self.splits, samples, self.costs.predict)
        except TrainingError as error:
            for other in self.evidence.with_same_curve(assessment):
                other.dropped = f"{DIVERGED}: {str(error).partition(';')[0]}"
            return None
        self.evidence.add(assessment, probe, perf_counter() - began)
        return probe

    def _soonest(self, some: Iterable[Assessment], most: int) -> list[Assessment]:
        """Return the candidates with the learning curves that should reach the target soonest."""

        def seconds(assessment: Assessment) -> float:
            """As if an epoch could end anywhere."""
            assert assessment.curve is not None
            return self.evidence.seconds(assessment)(assessment.curve.samples_to(self.gap) / len(self.splits.train))

        listed = sorted((item for item in some if item.curve is not None), key=seconds)
        kept = list(dict.fromkeys(entry.candidate.curve_key for entry in listed))[:most]
        return [entry for entry in listed if entry.candidate.curve_key in kept]

    def _samples(self, candidate: Candidate, rung: int) -> int:
        whole = len(self.splits.train)
        first = max(whole / FIRST_SHARE, min(FEWEST_STEPS * candidate.batch, MOST_EPOCHS * whole))
        samples = first * (1 << rung)
        return round(samples) if samples < whole else whole * max(1, round(samples / whole))

    def _in_time(self, assessment: Assessment, samples: int) -> bool:
        return perf_counter() + MOST_OVER_EXPECTED * self.evidence.wall_seconds(assessment, samples) <= self.deadline


def _of_all_sizes(ordered: Iterable[Candidate]) -> list[str]:
    """Return the learning curves: the first of each device, precision and global batch, then the second, ..."""
    sizes: dict[tuple[str, str, int], list[str]] = {}
    for item in ordered:
        names = sizes.setdefault((item.device, item.precision, item.batch), [])
        if item.curve_key not in names:
            names.append(item.curve_key)
    return [name for row in zip_longest(*sizes.values()) for name in row if name is not None]
