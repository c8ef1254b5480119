"""The workload to be timed: workers, their steps, and the rounds between them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tenfold.cluster.hardware import Floats, Noise, StepTime
from tenfold.mixing import Strategy, is_round_due


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The clock's model of a run."""

    workers: int
    steps_per_epoch: int
    strategy: Strategy
    nbytes: int
    """Bytes of one replica, without compression."""
    epochs: int = 1
    sync_every: int = 1
    """Steps between two rounds; gradients are averaged at every step."""
    local_after: int = 0
    """A round follows every step until this one, then every `sync_every`."""
    average: Literal["weights", "gradients"] = "weights"
    compression: float = 1.0
    """The size of a message, as a share of `nbytes`."""
    state_bytes: tuple[int, ...] = ()
    """Bytes of each vector of the optimizer that is averaged after the weights, in the same round."""
    batch_sizes: Sequence[Sequence[int]] | NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    """The samples of each worker at each step of an epoch, 0 if none are left. Default: all batches are full."""
    portions: int = 0
    """The number of portions of a step, which idle workers claim; with 0, each worker has its own batch."""
    marks: tuple[int, ...] = ()
    """Steps, counted from 1 over the run, to record the time at, in addition to the ends of epochs."""

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    @property
    def compressed_bytes(self) -> int:
        return round(self.nbytes * self.compression)

    @property
    def round_messages(self) -> tuple[int, ...]:
        """Bytes that replicas exchange in a round, one after another: of the weights, and of the optimizer's state."""
        return (self.compressed_bytes, *self.state_bytes)

    @property
    def epoch_ends(self) -> tuple[int, ...]:
        """The last step of each epoch, counted over the run."""
        return tuple(range(self.steps_per_epoch, self.steps + 1, self.steps_per_epoch))

    @property
    def has_rounds(self) -> bool:
        """Whether workers average in rounds; asynchronous strategies have no rounds."""
        return not self.strategy.asynchronous

    def is_due(self, first: int, last: int) -> NDArray[np.bool_]:
        """Return for each of the steps first..last (1, 2, ...) whether a round follows it."""
        steps = np.arange(first, last + 1)
        if not self.has_rounds:
            return np.zeros(len(steps), dtype=bool)
        if self.average == "gradients":
            return np.ones(len(steps), dtype=bool)
        return is_round_due(steps, self.sync_every, self.local_after)

    @property
    def ends_equal(self) -> bool:
        """Whether all replicas are equal after the last step, which makes the final average unnecessary."""
        if not self.strategy.always_exact:
            return False
        return self.average == "gradients" or is_round_due(self.steps, self.sync_every, self.local_after)

    @property
    def rounds(self) -> int:
        """Rounds of the whole run, including idle rounds but not the average at the end of an epoch."""
        return int(self.is_due(1, self.steps).sum())


def divide_among_the_free(seconds: Floats, portions: int) -> Floats:
    """Return the seconds until all portions of each step are computed, given each worker's time for an equal share.

    Worker i, which takes Y_i for 1/N of a step, has computed t P / (N Y_i) of P portions at the time t, rounded down.
    All are computed when these sum up to P: at the P-th of the times k N Y_i / P. (A late portion is also computed
    by another worker, which avoids waiting for a slow one.)
    """
    workers = seconds.shape[-1]
    most = min(portions, 4 * -(-portions // workers))
    ends = seconds[..., None] * (np.arange(1, most + 1) * workers / portions)
    last = np.partition(ends.reshape(*seconds.shape[:-1], -1), portions - 1, axis=-1)[..., portions - 1 : portions]
    return np.broadcast_to(last, seconds.shape)


# The variation of step times.
#
# A step of worker i takes Y_it = s_i e_it: s_i stays with the worker for the whole run, e_it is drawn anew at every
# step.

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
    """Draw stretches of rows; with more workers than columns, each group of columns gets its own stretches."""
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
