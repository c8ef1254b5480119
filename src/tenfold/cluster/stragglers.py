"""How unevenly workers step.

A step of worker i takes Y_it = s_i e_it: s_i stays with the worker for the whole run, e_it is drawn anew at every step.
"""

from collections.abc import Callable, Iterable
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tenfold.cluster.hardware import Floats, Noise, StepTime

STRETCH = 16
"""Measured steps that are drawn in a row: long enough to keep bursts together."""


class Pace:
    """Draws the step times of all workers, for several repeats of a run at once."""

    def __init__(self, step_times: Iterable[StepTime], repeats: int, rng: np.random.Generator) -> None:
        self._parts = [
            _part(alike[0], len(alike), repeats, rng)
            for alike in (list(alike) for _, alike in groupby(step_times, key=id))
        ]

    def draw(self, steps: int) -> Floats:
        """Return the seconds of the next steps, an array [repeats, steps, workers]."""
        drawn = [part(steps) for part in self._parts]
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=2)


def _part(step_time: StepTime, workers: int, repeats: int, rng: np.random.Generator) -> Callable[[int], Floats]:
    if step_time.trace is not None:
        return _resampled(step_time.trace * (step_time.mean / step_time.trace.mean()), workers, repeats, rng)
    persistent = factors(rng, step_time.noise, step_time.between_workers, (repeats, 1, workers))
    scale = step_time.mean * persistent.astype(np.float64)

    def draw(steps: int) -> Floats:
        if not step_time.between_steps:
            return np.broadcast_to(scale, (repeats, steps, workers))
        transient = factors(rng, step_time.noise, step_time.between_steps, (repeats, steps, workers))
        return np.multiply(transient, scale)

    return draw


def _resampled(trace: Floats, workers: int, repeats: int, rng: np.random.Generator) -> Callable[[int], Floats]:
    """Draw stretches of rows; more workers than columns are several such machines, each with stretches of its own."""
    rows, columns = trace.shape
    machines = -(-workers // columns)
    stretch = min(STRETCH, rows)
    begun = np.empty((repeats, machines, 0), dtype=np.int64)

    def draw(steps: int) -> Floats:
        nonlocal begun
        missing = -(-(steps - begun.shape[2]) // stretch)
        starts = rng.integers(rows, size=(repeats, machines, max(0, missing), 1))
        further = ((starts + np.arange(stretch)) % rows).reshape(repeats, machines, -1)
        picked, begun = np.split(np.concatenate([begun, further], axis=2), [steps], axis=2)
        drawn: Floats = trace[picked].transpose(0, 2, 1, 3).reshape(repeats, steps, machines * columns)
        return drawn[:, :, :workers]

    return draw


def factors(rng: np.random.Generator, noise: Noise, spread: float, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Draw factors with the mean 1.

    log-normal: exp(sigma z - sigma^2 / 2); shifted exponential: (1 - spread) + spread E with E of the mean 1.
    """
    # Single precision halves the time of drawing, and seven digits are plenty for noise.
    if not spread:
        return np.ones(shape, dtype=np.float32)
    if noise == "log-normal":
        drawn = rng.standard_normal(shape, dtype=np.float32)
        drawn *= np.float32(spread)
        drawn -= np.float32(spread**2 / 2)
        return np.exp(drawn, out=drawn)
    drawn = rng.standard_exponential(shape, dtype=np.float32)
    drawn *= np.float32(spread)
    drawn += np.float32(1 - spread)
    return drawn
