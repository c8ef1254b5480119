"""What a candidate's epochs take: from the calibrated clock, or on a device from the probes themselves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.prediction import Prediction
from tenfold.data import Splits
from tenfold.engines.prepare import seats
from tenfold.experiment.section_fields import USUAL_BATCH
from tenfold.machine import cores
from tenfold.prediction import fit
from tenfold.prediction.calibration import ReportProgress, complete_profile
from tenfold.prediction.clock_inputs import predict_from_profile
from tenfold.prediction.current_speed import profile_now
from tenfold.prediction.planning.candidates import Candidate
from tenfold.prediction.planning.learning_probe import Probe
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Task

DEVICE_ERROR = 0.1
"""How far the time of a run on a device may be from that of its probes, relative."""


@dataclass(frozen=True)
class Price:
    """Predicted seconds of a run."""

    training: float
    interval: tuple[float, float]
    """Nine of ten runs should train for between these."""
    other: float
    """Startup, evaluation and saving."""

    @property
    def total(self) -> float:
        """From the start to the end of the run."""
        return self.training + self.other


class Prices:
    """Predicts the seconds of candidates for any number of epochs, on the data of the experiment."""

    def __init__(
        self, candidates: Sequence[Candidate], splits: Splits, cluster: Cluster | None, report: ReportProgress | None
    ) -> None:
        self._splits, self._cluster = splits, cluster
        self._known: dict[tuple[Candidate, int], Price] = {}
        self._report = report
        self._profile = self._complete(candidates, report)
        self._now: dict[tuple[int, int, int], tuple[Profile, float]] = {}

    def __call__(self, candidate: Candidate, epochs: int, probes: Sequence[Probe] = ()) -> Price | None:
        """Return the price of a run; None for a device on which nothing was probed yet."""
        if candidate.device != "cpu":
            return self._on_device(candidate, epochs, probes) if probes else None
        if (candidate, epochs) not in self._known:
            self._known[candidate, epochs] = self._on_cpu(candidate, epochs)
        return self._known[candidate, epochs]

    @property
    def speeds(self) -> list[float]:
        """How fast this machine is now, relative to its calibration, for each setting that was looked at."""
        return [speed for _, speed in self._now.values()]

    def predict(self, task: Task) -> Prediction:
        """Return the clock's prediction for a task; on this machine, by how fast it is now."""
        profile = self._profile
        if self._cluster is None:
            setting = (task.experiment.training.samples_per_step, task.threads, task.workers)
            if setting not in self._now:
                self._now[setting] = profile_now(task, profile, self._report)
            profile, _ = self._now[setting]
        return predict_from_profile(task, profile, self._cluster, seed=task.experiment.training.seed)

    def _on_cpu(self, candidate: Candidate, epochs: int) -> Price:
        found = self.predict(self._task(candidate, epochs))
        start = 0.0 if candidate.workers == 1 and self._cluster is None else float(found.times["start"].max())
        review = sum(float(found.times[kind].max()) for kind in ("evaluate", "save") if kind in found.times)
        return Price(found.seconds, found.interval, start + review)

    def _on_device(self, candidate: Candidate, epochs: int, probes: Iterable[Probe]) -> Price:
        """Fit seconds = a + b steps to the probes, which ran on the device itself."""
        line = fit.line(*zip(*((one.steps, one.seconds) for one in probes), strict=True))
        seconds = line(self._task(candidate, epochs).steps_per_epoch * epochs)
        return Price(seconds, (seconds * (1 - DEVICE_ERROR), seconds * (1 + DEVICE_ERROR)), 0.0)

    def _task(self, candidate: Candidate, epochs: int) -> Task:
        experiment = candidate.experiment.replace(epochs=epochs)
        each, _ = seats(experiment.machine, candidate.workers, cores.budget())
        return Task(experiment, self._splits, each)

    def _complete(self, candidates: Sequence[Candidate], report: ReportProgress | None) -> Profile:
        """Return a profile with the steps of all candidates; what it lacks is measured now."""
        on_cpu = [one for one in candidates if one.device == "cpu"]
        if not on_cpu or (self._cluster is not None and self._cluster.has_given_times):
            return Profile(made="", machine={})
        task = self._task(min(on_cpu, key=lambda one: (abs(one.batch / one.workers - USUAL_BATCH), -one.workers)), 1)
        seen = {(self._task(one, 1).threads, one.workers) for one in on_cpu} if self._cluster is None else set()
        return complete_profile(task, report=report, cluster=self._cluster, settings=seen)
