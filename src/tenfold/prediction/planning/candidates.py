"""The candidate settings of a plan, and their predicted training times."""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

from tenfold.cluster.cluster import HERE, Cluster, ClusterOrHere
from tenfold.cluster.time_prediction import TimePrediction
from tenfold.common.optimizer_defaults import OPTIMIZERS
from tenfold.data import Splits
from tenfold.engines.prepare import assign_cores, validate_combination
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.section_fields import USUAL_BATCH, Precision
from tenfold.machine import cores
from tenfold.prediction.calibration import complete_profile, measure_until
from tenfold.prediction.planning.learning import Probe
from tenfold.prediction.probes import ReportProgress, counts_up_to, step_burst
from tenfold.prediction.profile import Profile
from tenfold.prediction.task_prediction import predict_from_profile, profile_now
from tenfold.training.optimizers import base_lr
from tenfold.workers.task import Resolved, Task, resolve_defaults

ROUNDS = (4, 16, 64)
"""Steps between two rounds, where weights are averaged."""
BATCHES, DEVICE_BATCHES = (0.5, 1, 2), (1, 2, 4)
"""Batch sizes that are tried, relative to the usual one for the number of workers; a GPU has room for larger ones."""

PRECISION_TURNS, PRECISION_STEPS = 3, 20
"""Bursts in which each precision is timed, in turns, and the steps of one."""
SAVING = 0.97
"""The part of another's seconds that a more loosely coupled setting may take at most to be worth a try."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One setting: the experiment with every field decided except the epochs."""

    experiment: Experiment

    @property
    def workers(self) -> int:
        return self.experiment.parallel.workers

    @property
    def threads(self) -> int | None:
        """Of each worker; None where a device or a cluster decides."""
        return self.experiment.machine.threads

    @property
    def device(self) -> str:
        return self.experiment.machine.device

    @property
    def precision(self) -> str:
        """The number format of its forward and backward passes."""
        return self.experiment.training.precision

    @property
    def batch(self) -> int:
        """Samples of one step of all replicas together."""
        return self.experiment.training.samples_per_step * self.workers

    @property
    def looseness(self) -> float:
        """How loosely replicas are coupled: 0 for averaged gradients, otherwise the steps between exact means."""
        parallel = self.experiment.parallel
        if self.workers == 1 or parallel.average == "gradients":
            return 0
        inexact = parallel.strategy != "allreduce"
        return (math.inf if parallel.pace == "epoch" else parallel.pace) * (1 + inexact)

    @property
    def mixing(self) -> tuple[Any, ...]:
        """How its replicas are averaged; empty for a single one."""
        parallel = self.experiment.parallel
        pace = parallel.pace if parallel.average == "weights" else 1
        return (parallel.strategy, parallel.average, pace) if self.workers > 1 else ()

    @cached_property
    def curve_key(self) -> str:
        """Names its learning curve: candidates of one name learn equally well, up to the noise of their runs.

        Replicas that average their gradients take the steps of a single one with their global batch, if the learning
        rate is the same. Those that average weights learn in their own way.
        """
        training = self.experiment.training
        has_usual_rate = isinstance(training.optimizer, str) and training.optimizer in OPTIMIZERS
        rate = Resolved.of(self.experiment).lr_scale * (base_lr(training) if has_usual_rate else 1.0)
        mixing = (self.workers, *self.mixing) if self.looseness else ()
        return f"{self.device} {self.precision} {self.batch} {rate:.4g} {mixing}"


def candidates_here(
    base: Experiment,
    *,
    most_workers: int | None = None,
    gpu: str | None = None,
    precisions: Sequence[Precision] = (),
    gpu_precisions: Sequence[Precision] = (),
) -> list[Candidate]:
    """Return the settings that this machine has room for: at most a thread a core, and one GPU where there is one.

    `precisions` and `gpu_precisions` are tried beside the experiment's own. On the GPU each run decides itself whether
    to compile its steps (`compile = "auto"`), probes as the planned run, so that their startup has what it takes.
    """
    budget = cores.budget()
    counts = counts_up_to(min(budget, most_workers or budget))
    compiles = base.training.compile or "auto"
    base = base.replace(engine="auto", cluster=None, link=None, device="cpu", compile=False)
    candidates: list[Candidate] = []
    for workers in counts:
        fixed = base.machine.threads
        threads = {fixed} if fixed else {budget // workers, *([1] if workers == 1 else [])}
        for each in sorted(threads, reverse=True):
            if workers * each <= budget or base.machine.oversubscribe:
                for precision in (base.training.precision, *precisions):
                    candidates += _settings(base.replace(workers=workers, threads=each, precision=precision), BATCHES)
    if gpu is not None:
        for precision in (base.training.precision, *gpu_precisions):
            on_gpu = base.replace(workers=1, threads=None, device=gpu, precision=precision, compile=compiles)
            candidates += _settings(on_gpu, DEVICE_BATCHES)
    return candidates


def compare_bf16(task: Task, report: ReportProgress) -> float:
    """Return the seconds of a step in bf16 on this CPU, relative to the task's own precision, with one thread."""
    batch = task.experiment.training.samples_per_step
    seconds: dict[Precision, list[float]] = {task.experiment.training.precision: [], "bf16": []}
    report("how long steps in bf16 take")
    for precision in [*seconds] * PRECISION_TURNS:
        burst = step_burst(task.experiment.replace(precision=precision), task.splits, (batch, 1, 1), PRECISION_STEPS)
        seconds[precision].append(float(burst.steps.mean()))
    own, other = (statistics.median(each) for each in seconds.values())
    return other / own


def candidates_on(cluster: Cluster, base: Experiment, *, most_workers: int | None = None) -> list[Candidate]:
    most = min(cluster.workers, most_workers or cluster.workers)
    base = base.replace(engine="virtual", cluster=cluster, link=None, device="cpu")
    return [setting for workers in counts_up_to(most) for setting in _settings(base.replace(workers=workers), BATCHES)]


def drop_dominated(timed: Iterable[tuple[Candidate, float]]) -> list[Candidate]:
    """Return the candidates without those that couple replicas more loosely and are hardly faster for it.

    Of two that differ only in how replicas are averaged, the looser one never learns more from the same samples.
    """
    listed = list(timed)

    def setting(candidate: Candidate) -> tuple[Any, ...]:
        return candidate.workers, candidate.threads, candidate.batch, candidate.device, candidate.precision

    def is_dominated(candidate: Candidate, seconds: float) -> bool:
        return any(
            setting(candidate) == setting(other)
            and other.looseness < candidate.looseness
            and seconds > SAVING * other_seconds
            for other, other_seconds in listed
        )

    return [item for item, seconds in listed if not is_dominated(item, seconds)]


def _settings(base: Experiment, factors: Iterable[float]) -> Iterator[Candidate]:
    """Yield every batch size and every way to average for a number of workers."""
    usual = resolve_defaults(base.replace(batch_size=None)).training.samples_per_step
    sizes = {max(1, round(usual * factor)) for factor in factors} | {resolve_defaults(base).training.samples_per_step}
    for size in sorted(sizes):
        for mixing in _mixings(base):
            candidate = resolve_defaults(base.replace(batch_size=size, **mixing))
            try:
                validate_combination(Resolved.of(candidate))
            except ExperimentError:  # this strategy cannot be combined with the experiment's other settings
                continue
            yield Candidate(candidate)


def _mixings(base: Experiment) -> list[dict[str, Any]]:
    """Return the strategies and rounds to try; the experiment's own are among them."""
    parallel = base.parallel
    own = {name: getattr(parallel, name) for name in ("strategy", "sync_every", "average")}
    at_every_step: dict[str, Any] = {"strategy": "allreduce", "sync_every": None, "average": "auto"}
    if parallel.workers == 1:
        return [at_every_step | {"strategy_options": {}}]
    mixings = [own, at_every_step]
    names = ("allreduce", "butterfly") if parallel.workers > 2 else ("allreduce",)
    for name in names:
        mixings += [{"strategy": name, "sync_every": every, "average": "weights"} for every in ROUNDS]
    options = parallel.strategy_options
    unique: dict[str, dict[str, Any]] = {}
    for item in mixings:
        mine = item | {"strategy_options": options if item["strategy"] == parallel.strategy else {}}
        unique.setdefault(resolve_defaults(base.replace(**mine)).parallel.model_dump_json(), mine)
    return list(unique.values())


# What a candidate's epochs take: from the calibrated clock, and as soon as it was trained here, from its probes.
#
# Probes train as the planned run will: in this process, in worker processes or on a GPU. On this machine their
# seconds of training, evaluation, saving and startup are those of the run itself.

PROBE_ERROR = 0.1
"""How far the time of a run may be from that of its probes, relative."""


@dataclass(frozen=True)
class RunCost:
    """Predicted seconds of a run."""

    training: float
    interval: tuple[float, float]
    """Nine of ten runs should train for between these."""
    other: float
    """Startup, evaluation and saving."""

    @property
    def total(self) -> float:
        return self.training + self.other


@dataclass(frozen=True)
class _Rates:
    """The clock's prediction for a candidate, in seconds, from which the time of any number of epochs follows."""

    first: float
    """Training in the first epoch, with its slow first steps."""
    epoch: float
    """Training in each further epoch."""
    error: tuple[float, float]
    """The interval of the training time, relative to it."""
    start: float
    evaluation: float
    save: float
    """Seconds of one evaluation and one checkpoint; both come once an epoch."""

    def training(self, epochs: float) -> float:
        return self.first - self.epoch + epochs * self.epoch


class CostModel:
    """Predicts the seconds of candidates for any number of epochs, on the data of the experiment."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        splits: Splits,
        cluster: ClusterOrHere,
        report: ReportProgress,
        *,
        deadline: float,
        loading: float = 0.0,
    ) -> None:
        """Measure the step times that are not known yet, until a deadline of `perf_counter`."""
        self._splits, self._cluster = splits, cluster
        self._report, self._deadline, self._loading = report, deadline, loading
        self._load = 0.0
        self._rates: dict[Candidate, _Rates] = {}
        self._steps: dict[Candidate, int] = {}
        self._threads: dict[Candidate, int] = {}
        self._now: dict[tuple[str, int, int], tuple[Profile, float]] = {}
        self._measured: set[tuple[str, int, int]] = set()
        """Settings (precision, threads, workers) that were measured just now."""
        on_cpu = [candidate for candidate in candidates if candidate.device == "cpu"]
        precisions = dict.fromkeys(candidate.precision for candidate in on_cpu)
        began = perf_counter()
        self._profiles = {
            precision: self._complete(
                [candidate for candidate in on_cpu if candidate.precision == precision],
                deadline=began + (deadline - began) * number / len(precisions),
            )
            for number, precision in enumerate(precisions, 1)
        }
        test, validation = splits.test, splits.validation
        self._final = len(test) / len(validation) if test is not None and validation is not None else 0.0
        """The evaluation of the test part at the end, relative to one of the validation part."""

    @property
    def are_here(self) -> bool:
        """Whether runs are planned for this machine, so that the seconds of probes count."""
        return self._cluster is HERE

    def __call__(
        self, candidate: Candidate, epochs: float, probes: Sequence[Probe] = (), similar: Sequence[Probe] = ()
    ) -> RunCost | None:
        """Return the cost of `epochs` epochs; None for a device on which nothing was probed yet.

        Without `probes` of its own, a candidate starts, evaluates and saves like `similar` ones, with as many workers.
        """
        if candidate.device != "cpu":
            return self._by_probes(candidate, epochs, probes) if probes else None
        if candidate not in self._rates:
            self._rates[candidate] = self._by_clock(candidate)
        rates = self._rates[candidate]
        threads = self.threads_of(candidate)
        own, others = (
            [probe for probe in some if probe.threads == threads and self.are_here] for some in (probes, similar)
        )
        if own:
            return self._by_probes(candidate, epochs, own)
        training = rates.training(epochs)
        low, high = rates.error
        overheads = _measured_overheads(_warm(others)) if others else (rates.start, rates.evaluation, rates.save)
        return RunCost(training, (low * training, high * training), self._other(epochs, *overheads))

    @property
    def load(self) -> float:
        """The highest load under which anything was measured that the predictions rest on."""
        return self._load

    @property
    def speeds(self) -> list[float]:
        """How fast this machine is now, relative to its calibration, for each setting that was looked at."""
        return [speed for _, speed in self._now.values()]

    def threads_of(self, candidate: Candidate) -> int:
        if candidate not in self._threads:
            self._threads[candidate] = self._task(candidate, 1).threads
        return self._threads[candidate]

    def predict(self, task: Task) -> TimePrediction:
        """Return the clock's prediction for a task; on this machine, by how fast it is now."""
        precision = task.experiment.training.precision
        profile, setting = self._profiles[precision], (precision, task.threads, task.workers)
        if self._cluster is HERE and setting not in self._measured:
            if setting not in self._now and perf_counter() < self._deadline:
                self._now[setting] = profile_now(task, profile, self._report)
            profile, _ = self._now.get(setting, (profile, 1.0))
        prediction = predict_from_profile(task, profile, self._cluster, seed=task.experiment.training.seed)
        self._load = max(self._load, prediction.calibration_load)
        return prediction

    def _by_clock(self, candidate: Candidate) -> _Rates:
        first, both = (self.predict(self._task(candidate, epochs)) for epochs in (1, 2))
        evaluated = [float(prediction.times["evaluate"].max()) for prediction in (first, both)]
        return _Rates(
            first=first.seconds,
            epoch=both.seconds - first.seconds,
            error=(both.interval[0] / both.seconds, both.interval[1] / both.seconds),
            start=float(first.times["start"].max()),
            evaluation=evaluated[1] - evaluated[0],  # without that of the test part at the end
            save=float(first.times["save"].max()),
        )

    def _by_probes(self, candidate: Candidate, epochs: float, probes: Sequence[Probe]) -> RunCost:
        """Return the time of a run, judged by its probes; the long ones count, which are most like it."""
        if candidate not in self._steps:
            self._steps[candidate] = self._task(candidate, 1).steps_per_epoch
        steps = self._steps[candidate]
        warm = _warm(probes)
        most = max(probe.steps for probe in warm)
        long = [probe for probe in warm if 2 * probe.steps >= most]
        first, each = (statistics.median(of) for of in zip(*(item.epoch_seconds(steps) for item in long), strict=True))
        training = first + (epochs - 1) * each
        other = self._other(epochs, *_measured_overheads(long))
        return RunCost(training, (training * (1 - PROBE_ERROR), training * (1 + PROBE_ERROR)), other)

    def _other(self, epochs: float, start: float, evaluation: float, save: float) -> float:
        """Return the seconds that a run of `epochs` epochs spends on anything other than training."""
        return self._loading * self.are_here + start + (epochs + self._final) * evaluation + epochs * save

    def _task(self, candidate: Candidate, epochs: int) -> Task:
        experiment = candidate.experiment.replace(epochs=epochs)
        each, _ = assign_cores(experiment.machine, candidate.workers, cores.budget())
        return Task.of(Resolved.of(experiment), self._splits, each)

    def _complete(self, on_cpu: Sequence[Candidate], *, deadline: float) -> Profile:
        """Return a profile with the steps of candidates of one precision; missing ones are measured now."""
        if self._cluster is not HERE and self._cluster.has_given_times:
            return Profile(made="", machine={})
        # one of the usual batch size; of those, one whose workers divide the most of a step
        usual = min(
            on_cpu,
            key=lambda candidate: (
                abs(candidate.batch / candidate.workers - USUAL_BATCH),
                -candidate.workers,
                candidate.looseness,
            ),
        )
        task = self._task(usual, 1)
        if self._cluster is not HERE:
            return complete_profile(task, report=self._report, cluster=self._cluster)
        settings = {(self.threads_of(item), item.workers) for item in on_cpu}
        profile, measured = measure_until(deadline, task, settings, self._report)
        self._measured |= {(usual.precision, *setting) for setting in measured}
        return profile


def _warm(probes: Sequence[Probe]) -> Sequence[Probe]:
    return [probe for probe in probes if not probe.cold] or probes


def _measured_overheads(probes: Sequence[Probe]) -> tuple[float, float, float]:
    start, evaluation, save = zip(*((probe.start, probe.evaluation, probe.save) for probe in probes), strict=True)
    return statistics.median(start), statistics.median(evaluation), statistics.median(save)
