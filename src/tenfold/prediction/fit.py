"""Fits of measured seconds to a few numbers that describe them: pure functions of arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import lsq_linear

from tenfold.cluster.hardware import Floats

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
"""The levels of the quantiles; close together at the upper end, where the steps are that others wait for."""


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope x, neither below zero."""

    intercept: float
    slope: float
    residual: float = 0.0
    """Root of the mean squared relative error, (fitted - measured) / measured."""

    def __call__(self, x: float) -> float:
        """Return y at x."""
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Line:
    """Fit a latency and a rate to measured seconds by least squares of the relative errors, both at least 0.

    Minimises sum_i ((a + b x_i - y_i) / y_i)^2, so that short times count as much as long ones. One point, or
    several at one x, say nothing about the latency: then a = 0.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(xs) == 0 or (ys <= 0).any():
        raise ValueError(f"a line needs at least one point, all with y > 0; got {ys.tolist()}")
    if np.ptp(xs) == 0:
        slope = float(np.median(ys)) / xs[0] if xs[0] else 0.0
        return Line(0.0 if xs[0] else float(np.median(ys)), float(slope))
    unit = xs.max()
    system = np.column_stack([1 / ys, xs / unit / ys])
    scale = np.abs(system).max(axis=0)
    found = lsq_linear(system / scale, np.ones(len(ys)), bounds=(0, np.inf), tol=1e-14).x / scale
    fitted = found[0] + found[1] * xs / unit
    return Line(float(found[0]), float(found[1] / unit), float(np.sqrt(np.mean((fitted / ys - 1) ** 2))))


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return y at x, interpolated between the logarithms of the points; beyond the ends, y of the nearest end.

    Costs that exceed one cache after another are not a line over three decades; a polygon passes through what was
    measured.
    """
    order = np.argsort(xs)
    logs = np.log(np.asarray(xs, dtype=np.float64)[order]), np.log(np.asarray(ys, dtype=np.float64)[order])
    return float(np.exp(np.interp(np.log(x), *logs)))


def over_threads(threads: int, measured: Mapping[int, float]) -> float:
    """Return the seconds of a step with `threads` threads, from those with other numbers of threads.

    Between two that were measured the logarithms are interpolated. Beyond them the seconds follow a + b / threads, one
    part that threads do not share and one that they do (Amdahl 1967), fitted to all and scaled to the nearest.
    """
    counts = list(measured)
    nearest = min(max(threads, min(counts)), max(counts))
    amdahl = fit_line([1 / count for count in counts], list(measured.values()))
    at = interpolate(nearest, counts, list(measured.values()))
    return at * amdahl(1 / threads) / amdahl(1 / nearest)


@dataclass(frozen=True, slots=True)
class BurstStatistics:
    """A trace of step times in numbers: seconds, and how steps and workers differ."""

    mean: float
    between_workers: float
    """Standard deviation of the logarithm of the workers' means."""
    between_steps: float
    """Standard deviation of the logarithm of the steps of one worker."""
    quantiles: tuple[float, ...]
    """Steps divided by their worker's mean, at `LEVELS`."""
    standard_error: float
    """Standard error of the mean, relative, by how much the bursts differ."""


def burst_statistics(bursts: Sequence[Floats]) -> BurstStatistics:
    """Describe bursts of step times, each an array [steps, workers].

    The level is the median of the bursts' means: disturbances on a shared machine come in bursts, too, and should move
    at most one of them. Y_it = s_i e_it, s_i from the workers' means over all bursts (less what chance alone makes them
    differ), e_it from all steps divided by the mean of their worker in their burst.
    """
    mean = float(np.median([burst.mean() for burst in bursts]))
    relative = [burst / burst.mean(axis=0) for burst in bursts]
    steps = np.concatenate([one.ravel() for one in relative])
    between_steps = float(np.std(np.log(steps)))
    workers = np.mean([np.log(burst.mean(axis=0) / burst.mean()) for burst in bursts], axis=0)
    by_chance = between_steps**2 / sum(len(burst) for burst in bursts)
    variance = float(np.var(workers, ddof=1)) - by_chance if len(workers) > 1 else 0.0
    means = [burst.mean() / mean for burst in bursts]
    standard_error = float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
    quantiles = tuple(np.quantile(steps, LEVELS).tolist())
    return BurstStatistics(mean, float(np.sqrt(max(0.0, variance))), between_steps, quantiles, standard_error)
