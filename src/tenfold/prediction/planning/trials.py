"""Trial runs with one schedule: which seeds reached the target, after how many epochs, and what any run takes."""

import statistics
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tenfold.prediction.planning.learning_probe import Probe


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
        """The seeds that missed the target."""
        return [probe.seed for probe in self.probes if probe.epochs_to(self.gap) is None]

    @property
    def reached(self) -> int:
        """How many reached it."""
        return len(self.probes) - len(self.missed)

    @property
    def stop_by_seed(self) -> dict[int, int]:
        """The epochs after which such a run stops: at the target, or at its end."""
        return {probe.seed: probe.epochs_to(self.gap) or self.epochs for probe in self.probes}

    @property
    def stops(self) -> list[int]:
        """The same for all seeds."""
        return list(self.stop_by_seed.values())


def stop_share(probes: Iterable[Probe], gap: float) -> float | None:
    """Return the part of their epochs after which runs reached the target, in the mean; None if none reached it."""
    whole = [(probe.epochs_to(gap), probe.epochs) for probe in probes if probe.epochs]
    shares = [after / epochs for after, epochs in whole if after is not None]
    return statistics.mean(shares) if shares else None


class _Wall(NamedTuple):
    """What a probe took, in seconds of wall time."""

    once: float
    sample: float
    epoch: float


class WallTimes:
    """Predicts how long probes take by what earlier ones took."""

    def __init__(self, epoch: int) -> None:
        """Start with nothing known; `epoch` are the samples of one."""
        self._epoch = epoch
        self._known: dict[Hashable, _Wall] = {}
        self._last: _Wall | None = None

    def add(self, setting: Hashable, seconds: float, probe: Probe) -> None:
        """Add a probe that took `seconds` seconds; what is not training, evaluating or saving comes once a run."""
        epoch_end = probe.evaluation + probe.save
        once = seconds - probe.seconds - len(probe.values) * epoch_end
        self._last = self._known[setting] = _Wall(max(0.0, once), probe.seconds / probe.samples, epoch_end)

    def predict(self, setting: Hashable, samples: int) -> float | None:
        """Return the expected seconds of a probe of a setting over `samples` samples; None if it had none yet."""
        wall = self._known.get(setting)
        return self._seconds(wall, samples) if wall is not None else None

    def predict_any(self, samples: int) -> float:
        """Return the expected seconds of a probe over `samples` samples if it is like the last one; 0: none yet."""
        return self._seconds(self._last, samples) if self._last is not None else 0.0

    def _seconds(self, wall: _Wall, samples: int) -> float:
        return wall.once + samples * wall.sample + max(1, round(samples / self._epoch)) * wall.epoch
