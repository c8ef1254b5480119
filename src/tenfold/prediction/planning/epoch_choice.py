"""How many epochs a run should have: those with the fewest expected seconds to the target.

A run of too few epochs misses the target, costs its time, and is repeated with a quarter more, at least one:

    V(E) = p(E) T(s E) + (1 - p(E)) (T(E) + V(max(E + 1, 1.25 E)))

with T(E) the total seconds of E epochs, p(E) the probability that a run reaches the target, by its learning curve, and
s the part of its epochs after which it does so and stops. The curve may be too high or too low for all epochs alike; V
is the mean over this error (Gauss-Hermite quadrature).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tenfold.prediction.planning.learning_curve import LearningCurve

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
    """The gap that a run has to reach, and what an epoch and a seed mean for it."""

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
    """Total seconds until the target is reached, including what is lost if it is missed."""


def next_epochs(epochs: int) -> int:
    """Return the epochs of the run that follows one which missed the target."""
    return max(epochs + 1, round(MORE * epochs))


def probability(curve: LearningCurve, goal: Goal, epochs: int, *, optimism: float = 0.0) -> float:
    """Return the probability that a run of `epochs` epochs reaches the goal.

    With `optimism` the setting is better than its curve by that number of its own standard errors.
    """
    return _below(_room(curve, goal, epochs, optimism) / math.hypot(curve.error(epochs * goal.epoch), goal.noise))


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
    found: list[tuple[int, float, list[float]]] = []
    for epochs in range(more_than + 1, most + 1):
        room, error = _room(curve, goal, epochs, optimism), curve.error(epochs * goal.epoch)
        chances = [_below((room - z * error) / goal.noise) for z, _ in NODES]
        found.append((epochs, probability(curve, goal, epochs, optimism=optimism), chances))
        if found[-1][1] > CERTAIN:
            break
    if not found or found[-1][1] < LIKELY:
        return []
    values: dict[int, list[float]] = {}
    listed: list[Schedule] = []
    for epochs, chance, chances in reversed(found):
        # beyond the longest of these, a run should not miss
        later = values.get(next_epochs(epochs), [seconds(next_epochs(epochs))] * len(NODES))
        values[epochs] = [
            one * seconds(stop * epochs) + (1 - one) * (seconds(epochs) + after)
            for one, after in zip(chances, later, strict=True)
        ]
        expected = sum(weight * value for (_, weight), value in zip(NODES, values[epochs], strict=True))
        listed.append(Schedule(epochs, chance, expected))
    return listed[::-1]


def choose_best(listed: list[Schedule]) -> Schedule | None:
    """Return the schedule with the fewest expected seconds; None if there is none."""
    return min(listed, key=lambda one: one.expected, default=None)


def choose_next(listed: list[Schedule]) -> Schedule | None:
    """Return the schedule to train next: the shortest that has a fair chance."""
    return next((one for one in listed if one.probability >= FAIR), None)


def _room(curve: LearningCurve, goal: Goal, epochs: int, optimism: float) -> float:
    """Return by how much the gap after these epochs should be smaller than the goal's, as a logarithm."""
    samples = epochs * goal.epoch
    return math.log(goal.gap) - math.log(curve.gap(samples)) + optimism * curve.own_error(samples)


def _below(deviations: float) -> float:
    """Return the share of a normal distribution below this number of standard deviations."""
    return 0.5 * math.erfc(-deviations / math.sqrt(2))
