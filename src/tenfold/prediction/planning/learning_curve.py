"""Learning curves: the gap to a perfect metric, over the samples that a whole run has seen.

Each point is a run with its full schedule. In logarithms the curves of all settings are lines of one slope, and of
different heights; points of longer runs count for more, as the slope changes slowly along a curve. What counts are the
effective samples: a run of few steps learns less from its samples than one of many small ones (see
`effective_samples`).
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

SLOPE, SLOPE_DEVIATION = 0.5, 0.25
"""What is assumed of the slope before anything was seen: errors fall with about the square root of the samples."""
SEED_ERROR = 0.06
"""By how much the gap of equal runs differs from seed to seed, relative."""
BEND = 0.1
"""How far a curve may leave its line for each doubling of the samples, relative."""
FEW_STEPS = 128
"""A run of this many steps learns from its samples what a run of very many steps learns from half of them."""
ASSUMED = 4
"""How many runs the assumed noise of equal runs is worth, when it is compared with what was seen."""


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
    """The line of one setting: log gap = height - slope (log effective samples - centre)."""

    height: float
    slope: float
    centre: float
    height_error: float
    slope_error: float
    shortest: float
    longest: float
    """The smallest and largest number of samples among its points."""
    batch: float

    def gap(self, samples: float) -> float:
        """Return the gap that a run over `samples` samples is expected to have."""
        return math.exp(self.height - self.slope * self._from_centre(samples))

    def error(self, samples: float) -> float:
        """Return the standard error of the logarithm of the expected gap: how uncertain the curve is there."""
        by_slope = self._from_centre(samples) * self.slope_error
        return math.sqrt(self.height_error**2 + by_slope**2 + self._beyond(samples) ** 2)

    def own_error(self, samples: float) -> float:
        """Return the part of the error that other settings do not share, which all have the same slope."""
        return math.hypot(self.height_error, self._beyond(samples) / 2)

    def _from_centre(self, samples: float) -> float:
        return math.log(effective_samples(samples, self.batch)) - self.centre

    def _beyond(self, samples: float) -> float:
        return max(0.0, math.log2(samples / self.longest), math.log2(self.shortest / samples)) * BEND

    def samples_to(self, gap: float) -> float:
        """Return the samples after which a run is expected to have this gap."""
        needed = math.exp(min(300.0, self.centre + (self.height - math.log(gap)) / self.slope))
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
    weighted = {key: [(*_logs(one), _weight(one, some)) for one in some] for key, some in points.items() if some}
    centres = {key: _means(some) for key, some in weighted.items()}
    precision, pull = 1 / SLOPE_DEVIATION**2, SLOPE / SLOPE_DEVIATION**2
    for key, some in weighted.items():
        x_mean, y_mean = centres[key]
        precision += sum(w * (x - x_mean) ** 2 for x, _, w in some)
        pull -= sum(w * (x - x_mean) * (y - y_mean) for x, y, w in some)
    slope = max(0.05, pull / precision)
    return {
        key: LearningCurve(
            height=centres[key][1],
            slope=slope,
            centre=centres[key][0],
            height_error=math.sqrt(1 / sum(w for *_, w in some)),
            slope_error=math.sqrt(1 / precision),
            shortest=min(one.samples for one in points[key]),
            longest=max(one.samples for one in points[key]),
            batch=max(one.batch for one in points[key]),
        )
        for key, some in weighted.items()
    }


def _logs(point: Point) -> tuple[float, float]:
    return math.log(effective_samples(point.samples, point.batch)), math.log(point.gap)


def _weight(point: Point, others: Sequence[Point]) -> float:
    longest = max(one.samples for one in others)
    return 1 / (point.error**2 + (BEND * math.log2(longest / point.samples)) ** 2)


def _means(some: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    whole = sum(w for *_, w in some)
    return sum(w * x for x, _, w in some) / whole, sum(w * y for _, y, w in some) / whole
