"""The user's own schedules: a function of the progress, or one of torch's schedulers."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from tenfold.common.imports import resolve
from tenfold.common.user_code import user_frames
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.experiment.values import PythonObject, UnrecordedObject
from tenfold.training.schedules import SCHEDULES

COUNTERS = ("epoch", "epochs", "step", "steps", "iteration", "current_step", "global_step")
"""Names of arguments that count epochs or steps, as those of torch's LambdaLR do."""


def make_own_schedule(training: Training, base: float, steps_per_epoch: int) -> Callable[[int, int], float]:
    """Return the user's own schedule as a function of the step and the number of steps.

    A function whose first argument is called `optimizer` makes a scheduler, which is stepped once after every step; any
    other is a function of the progress from 0 to 1 that returns the factor of the learning rate.
    """
    given, options = training.rate_schedule, training.schedule_options
    if isinstance(given, UnrecordedObject):
        raise ExperimentError(f"the schedule {given} was given as a Python object; pass it again")
    value: Any = given.value if isinstance(given, PythonObject) else resolve(given, "schedule")
    if isinstance(value, type) and issubclass(value, ReduceLROnPlateau):
        raise ExperimentError(
            "training.schedule = ReduceLROnPlateau looks at the loss while training, but a schedule is known "
            "before the run; use a schedule of the step, and training.patience to stop early"
        )
    names = _argument_names(value)
    if names[:1] == ["optimizer"]:
        return StepwiseSchedule(value, base, options, names, steps_per_epoch, str(given))
    return lambda step, steps: _factor(value, min(1.0, step / steps), options, str(given))


def check_own_schedule(training: Training) -> None:
    """Raise ExperimentError for a function of the epoch or step; one that a recorded run has can be resumed."""
    given = training.rate_schedule
    if isinstance(given, UnrecordedObject) or (isinstance(given, str) and given in SCHEDULES):
        return
    value: Any = given.value if isinstance(given, PythonObject) else resolve(given, "schedule")
    names = _argument_names(value)
    if names and names[0] in COUNTERS:
        raise ExperimentError(
            f"training.schedule = {given} is a function of `{names[0]}`, but a schedule is called with the progress "
            "from 0 to 1; name its argument progress, or give lambda optimizer: LambdaLR(optimizer, f) for a function "
            "of the training step"
        )


class StepwiseSchedule:
    """One of torch's schedulers, run ahead on a separate optimizer, so that the rate is a function of the step."""

    FADED = 0.02
    """A rate that is this small a share of the highest one of the first epoch was meant to fall over many epochs."""

    def __init__(
        self,
        make: Callable[..., Any],
        base: float,
        options: dict[str, Any],
        names: list[str],
        steps_per_epoch: int,
        title: str,
    ) -> None:
        self._make = make
        self._base = base
        self._options = options | ({"steps_per_epoch": steps_per_epoch} if "steps_per_epoch" in names else {})
        self._wants_steps = "steps" in names
        self._title = title
        self._scheduler: LRScheduler | None = None
        self._factors: list[float] = []

    def __call__(self, step: int, steps: int) -> float:
        """Return the factor of the learning rate at a step, counted from 0."""
        if self._scheduler is None:
            self._scheduler = self._made(steps)
        step = min(step, steps - 1)
        while len(self._factors) <= step:
            if self._factors:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # there is no optimizer step before that of the scheduler
                    self._scheduler.step()
            self._factors.append(float(self._scheduler.optimizer.param_groups[0]["lr"]) / self._base)
        return self._factors[step]

    def problem(self, steps_per_epoch: int, steps: int) -> str:
        """Return the warning for a scheduler that was meant to be stepped once an epoch; "" if it was not."""
        if steps < 2 * steps_per_epoch:
            return ""
        highest = max(self(step, steps) for step in range(steps_per_epoch))
        share = self(steps_per_epoch, steps) / highest if highest > 0 else 1.0
        if share >= self.FADED:
            return ""
        return (
            f"the schedule {self._title} lowers the learning rate to {share:.1g} of its highest value in the first "
            f"epoch; it is stepped after every training step, not every epoch, and an epoch has {steps_per_epoch} "
            f"steps: multiply its step_size or T_max by {steps_per_epoch}, or use gamma ** (1 / {steps_per_epoch})"
        )

    def _made(self, steps: int) -> LRScheduler:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=self._base)
        try:
            made = self._make(optimizer, **self._options, **({"steps": steps} if self._wants_steps else {}))
        except Exception as error:
            raise ExperimentError(
                f"training.schedule = {self._title} cannot be made: {type(error).__name__}: {error}{user_frames(error)}"
            ) from error
        if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau):
            raise ExperimentError(
                f"training.schedule = {self._title} returned a {type(made).__name__}; it must return a scheduler of "
                "the step, such as torch.optim.lr_scheduler.StepLR"
            )
        return made


def _factor(function: Callable[..., Any], progress: float, options: dict[str, Any], title: str) -> float:
    try:
        return float(function(progress, **options))
    except Exception as error:
        raise ExperimentError(
            f"training.schedule = {title} failed at progress {progress:g}: {type(error).__name__}: {error}"
            f"{user_frames(error)}"
        ) from error


def _argument_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
