"""What a search knows about each setting, and its whole result."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenfold.experiment import Experiment
from tenfold.prediction.planning.candidates import Candidate
from tenfold.prediction.planning.learning_curve import LearningCurve
from tenfold.prediction.planning.learning_probe import Probe
from tenfold.prediction.planning.pricing import Price

HARDLY_FASTER = "averages less often than another, and is hardly faster"
EXPECTED_SLOWER = "expected to be slower"
NO_TIME = "no time was left"
UNTRIED = (HARDLY_FASTER, EXPECTED_SLOWER, NO_TIME)
"""Why candidates are not trained at all."""
DIVERGED = "diverged"
FELL_BEHIND = "fell behind"


@dataclass(eq=False)
class Assessment:
    """What the search found out about one candidate."""

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
    """Total seconds to the target, including what is lost if such a run misses it."""
    tried: int = 0
    """Seeds with which it was trained for just these epochs."""
    reached: int = 0
    """Those of them that reached the target."""
    stops_after: float | None = None
    """The epochs after which such a run should reach the target and stop, in the mean."""
    price: Price | None = None
    """The price of such a run, until it stops."""
    interval: tuple[float, float] | None = None
    """Seconds of training to the target: nine of ten runs should take between these."""
    epoch_seconds: float | None = None
    dropped: str = ""
    """Why it left the search before the end; "" for those that stayed."""

    @property
    def experiment(self) -> Experiment:
        """The experiment to run."""
        return self.candidate.experiment.replace(epochs=self.epochs or 1)

    @property
    def has_diverged(self) -> bool:
        """Whether a probe of it diverged."""
        return self.dropped.startswith(DIVERGED)

    @property
    def rank(self) -> tuple[bool, float]:
        """Orders assessments by the expected seconds to the target; what is not known comes last."""
        usable = self.expected is not None and not self.has_diverged
        return not usable, self.expected if self.expected is not None else self.epoch_seconds or math.inf


@dataclass(frozen=True)
class Search:
    """Everything that a search found, and what it cost."""

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


def find_setting(assessments: Iterable[Assessment], wanted: Candidate) -> Assessment | None:
    """Return what is known of a setting; of those that differ only in threads which it leaves open, the most."""

    def setting(one: Candidate) -> tuple[Any, ...]:
        return one.device, one.workers, one.batch, one.mixing

    equal = [one for one in assessments if setting(one.candidate) == setting(wanted)]
    same = [one for one in equal if wanted.threads is None or one.candidate.threads == wanted.threads]
    return max(same, key=lambda one: one.candidate.threads or 0, default=None)


def describe_candidate(candidate: Candidate) -> str:
    """Return a candidate in words."""
    division, batch = candidate.experiment.division, candidate.experiment.training.samples_per_step
    where = f" on {candidate.device}" if candidate.device != "cpu" else ""
    if candidate.workers == 1:
        return f"1 worker{where}, batch {batch}"
    rounds = "gradients averaged" if division.average == "gradients" else f"{division.strategy} every {division.pace}"
    return f"{candidate.workers} workers{where}, batch {batch}, {rounds}"
