"""The learning rate over a run, as a pure function of the step."""

import math
from collections.abc import Callable

from tenfold.common import catalog
from tenfold.common.registry import Registry
from tenfold.errors import ExperimentError
from tenfold.experiment import Training


def constant(_progress: float) -> float:
    """Return 1."""
    return 1.0


def cosine(progress: float) -> float:
    """Return (1 + cos(pi p)) / 2: from 1 down to 0 (Loshchilov & Hutter 2017, without restarts)."""
    return (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float) -> float:
    """Return 1 - p: from 1 down to 0."""
    return 1 - progress


def one_cycle(progress: float, *, rise: float = 0.3, start: float = 1 / 25, end: float = 1 / 25e4) -> float:
    """Return a cosine rise from 1/25 to 1 over the first 30 %, then a fall to 1/250,000 (Smith & Topin 2018)."""
    if progress < rise:
        return start + (1 - start) * (1 - cosine(progress / rise))
    return end + (1 - end) * cosine((progress - rise) / (1 - rise))


SCHEDULES: Registry[Callable[[float], float]] = catalog.SCHEDULES


def factor(schedule: str, step: int, steps: int, warmup_steps: int = 0) -> float:
    """Return the factor of the learning rate at this step, counted from 0, of a run of `steps` steps.

    During the warm-up it rises linearly, (step + 1) / (warmup_steps + 1); the schedule runs over the rest.
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    rest = max(1, steps - warmup_steps - (schedule == "one-cycle"))
    return SCHEDULES[schedule](min(1.0, (step - warmup_steps) / rest))


def choose_schedule(training: Training, base: float, steps_per_epoch: int) -> str | Callable[[int, int], float]:
    """Return the schedule of the experiment: a built-in name, or a function of the step and the number of steps."""
    given, options = training.rate_schedule, training.schedule_options
    if not isinstance(given, str) or given not in SCHEDULES:
        from tenfold.training.user_schedules import make_own_schedule

        return make_own_schedule(training, base, steps_per_epoch)
    if options:
        raise ExperimentError(
            f"training.schedule_options are for a schedule of your own, but {given} was given {', '.join(options)}"
        )
    return given


class Rates:
    """The learning rate of every step of a run: the base, times the schedule after a warm-up.

    A schedule is a built-in name, or a function of the step and the number of steps after the warm-up.
    """

    def __init__(
        self, base: float, schedule: str | Callable[[int, int], float], *, steps: int, warmup_steps: float
    ) -> None:
        self.base = base
        self.schedule = schedule
        self.steps = steps
        self.warmup_steps = round(min(steps, warmup_steps))

    def at(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if isinstance(self.schedule, str) or step < self.warmup_steps:
            named = self.schedule if isinstance(self.schedule, str) else "constant"
            return self.base * factor(named, step, self.steps, self.warmup_steps)
        return self.base * self.schedule(step - self.warmup_steps, max(1, self.steps - self.warmup_steps))

    def problem(self, steps_per_epoch: int) -> str:
        """Return a warning about a scheduler of torch, "" if there is none."""
        find = getattr(self.schedule, "problem", None)
        return "" if find is None else str(find(steps_per_epoch, max(1, self.steps - self.warmup_steps)))
