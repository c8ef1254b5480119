"""Hardware as the clock sees it: how long a step takes, and what a round costs.

Links, described by hand, give a `RoundPrice`, and so does a calibrated profile; the clock treats both alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import ExperimentError
from tenfold.mixing import Round

Floats = NDArray[np.float64]
Noise = Literal["log-normal", "shifted-exponential"]


RoundPrice = Callable[[Round, int], float | Floats]
"""Seconds that a round takes once its workers have met, given the bytes of one replica: for all, or for each worker."""

ExchangePrice = Callable[[int, int, int, int], float]
"""Seconds that worker i and its partner j (-1: the centre) are busy, from (i, j, bytes from i to j, bytes back)."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of one step of one worker: Y_it = mean x s_i x e_it, s_i for the worker and e_it for the step.

    Both factors have the mean 1; where they are log-normal, s = exp(sigma z - sigma^2 / 2), z standard normal.
    """

    mean: float
    """Seconds of a step with a full batch."""
    between_workers: float = 0.0
    """Spread of s_i: sigma of the log-normal; the standard deviation of the shifted exponential."""
    between_steps: float = 0.0
    """Spread of e_it, likewise."""
    noise: Noise = "log-normal"
    """How both are distributed; shifted exponential means a lower bound and a long tail."""
    trace: Floats | None = field(default=None, compare=False, repr=False)
    """Measured step times [steps, workers] to draw from instead of both spreads.

    They give the shape, `mean` gives the level. Rows are drawn in stretches, all workers together, so that bursts and
    what workers have in common are kept.
    """
    fixed: float = 0.0
    """The part of the mean, in seconds, that does not depend on the batch size."""

    def __post_init__(self) -> None:
        spreads = (self.between_workers, self.between_steps)
        if not (np.isfinite(self.mean) and self.mean > 0):
            raise ExperimentError(f"a step takes {self.mean} s; it must take more than 0")
        if min(spreads) < 0 or not np.isfinite(spreads).all():
            raise ExperimentError(f"step times spread by {spreads[0]} and {spreads[1]}; both must be 0 or more")
        if self.noise == "shifted-exponential" and max(spreads) > 1:
            raise ExperimentError(f"step times spread by {max(spreads)}; a shifted exponential allows at most 1")
        if not 0 <= self.fixed <= self.mean:
            raise ExperimentError(f"{self.fixed} s of a step are fixed; it must be 0 to its mean, {self.mean} s")
        if self.trace is not None and (self.trace.ndim != 2 or not self.trace.size or not (self.trace > 0).all()):
            raise ExperimentError("a trace of step times is an array [steps, workers] of seconds above 0")

    @property
    def is_steady(self) -> bool:
        """Whether every step of every worker takes the same time."""
        return self.trace is None and not self.between_workers and not self.between_steps


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The properties of machines that a prediction depends on."""

    step_time: StepTime | Sequence[StepTime]
    """One for all workers, or one for each."""
    round_price: RoundPrice
    exchange_price: ExchangePrice | None = None
    """For strategies without rounds. Default: what `round_price` says of two workers that swap."""
    overhead: float = 0.0
    """Seconds that a worker computes in every round in addition to averaging: compression, outer optimizer."""
    start: float = 0.0
    """Seconds before the first step."""
    evaluation: float = 0.0
    """Seconds of the evaluation after each epoch."""
    save: float = 0.0
    """Seconds of saving after each epoch."""
    model_error: float = 0.0
    """Relative standard error of the calibration; it widens the interval."""
    calibrated: bool = False
    """Whether the step times were measured."""

    def step_times(self, workers: int) -> list[StepTime]:
        """Return each worker's step time."""
        if isinstance(self.step_time, StepTime):
            return [self.step_time] * workers
        if len(self.step_time) != workers:
            raise ExperimentError(
                f"the hardware has step times of {len(self.step_time)} workers; the workload has {workers} workers"
            )
        return list(self.step_time)

    def is_steady(self, workers: int) -> bool:
        """Return whether nothing is random: every run takes the same time."""
        distinct = {id(step_time): step_time for step_time in self.step_times(workers)}
        return all(step_time.is_steady for step_time in distinct.values())
