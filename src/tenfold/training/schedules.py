"""The learning rate over a run, as a pure function of the step."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from tenfold import registry
from tenfold.common.imports import resolve, user_frames
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.experiment.values import PythonObject, UnrecordedObject
from tenfold.registry import Registry


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


SCHEDULES: Registry[Callable[[float], float]] = registry.SCHEDULES


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
    given, options = training.lr_schedule_name, training.schedule_options
    if not isinstance(given, str) or given not in SCHEDULES:
        return make_own_schedule(training, base, steps_per_epoch)
    if options:
        raise ExperimentError(
            f"training.schedule_options are for a schedule of your own, but {given} was given {', '.join(options)}"
        )
    return given


class LrSchedule:
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

    @property
    def wants_metric(self) -> bool:
        """Whether the learning rate depends on a metric after each epoch, as with torch's ReduceLROnPlateau."""
        schedule = self.schedule
        return isinstance(schedule, StepwiseSchedule) and schedule.wants_metric(max(1, self.steps - self.warmup_steps))

    def observe(self, loss: float, metric: float | None) -> None:
        """Give a scheduler that wants a metric the one after an epoch."""
        if isinstance(self.schedule, StepwiseSchedule):
            self.schedule.observe(loss, metric)

    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run; empty where the learning rate is a function of the step."""
        saved = self.schedule.state() if isinstance(self.schedule, StepwiseSchedule) else None
        return {"schedule": saved} if saved is not None else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, if it is there."""
        if "schedule" in state and isinstance(self.schedule, StepwiseSchedule):
            self.schedule.load(state["schedule"])

    def problem(self, steps_per_epoch: int) -> str:
        """Return a warning about a scheduler of torch, "" if there is none."""
        if not isinstance(self.schedule, StepwiseSchedule):
            return ""
        return self.schedule.problem(steps_per_epoch, max(1, self.steps - self.warmup_steps))


COUNTERS = ("epoch", "epochs", "step", "steps", "iteration", "current_step", "global_step")
"""Names of arguments that count epochs or steps, as those of torch's LambdaLR do."""


def make_own_schedule(training: Training, base: float, steps_per_epoch: int) -> Callable[[int, int], float]:
    """Return the user's own schedule as a function of the step and the number of steps.

    A function whose first argument is called `optimizer` makes a scheduler, which is stepped after every step, or after
    every epoch if its `step` wants a metric; any other is a function of the progress from 0 to 1 that returns the
    factor of the learning rate.
    """
    given, options = training.lr_schedule_name, training.schedule_options
    if isinstance(given, UnrecordedObject):
        raise ExperimentError(f"the schedule {given} was given as a Python object; pass it again")
    value: Any = given.value if isinstance(given, PythonObject) else resolve(given, "schedule")
    names = _argument_names(value)
    if names[:1] == ["optimizer"]:
        return StepwiseSchedule(value, base, options, names, steps_per_epoch, str(given))
    return lambda step, steps: _factor(value, min(1.0, step / steps), options, str(given))


def check_own_schedule(training: Training) -> None:
    """Raise ExperimentError for a function of the epoch or step; one that a recorded run has can be resumed."""
    given = training.lr_schedule_name
    if isinstance(given, UnrecordedObject):
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
    """One of torch's schedulers, run ahead on a separate optimizer, so that the rate is a function of the step.

    One whose `step` wants a metric, such as ReduceLROnPlateau, cannot be run ahead: it is stepped by `observe`.
    """

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
        self._wants_metric = False
        self._saved: dict[str, Any] | None = None
        self._factors: list[float] = []

    def __call__(self, step: int, steps: int) -> float:
        """Return the factor of the learning rate at a step, counted from 0."""
        if self._scheduler is None:
            self._scheduler = self._made(steps)
            self._wants_metric = _wants_metric(self._scheduler)
            if self._saved is not None:
                self._restore(self._scheduler, self._saved)
        if self._wants_metric:
            return float(self._scheduler.optimizer.param_groups[0]["lr"]) / self._base
        step = min(step, steps - 1)
        while len(self._factors) <= step:
            if self._factors:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # there is no optimizer step before that of the scheduler
                    self._scheduler.step()
            self._factors.append(float(self._scheduler.optimizer.param_groups[0]["lr"]) / self._base)
        return self._factors[step]

    def wants_metric(self, steps: int) -> bool:
        """Return whether the learning rate depends on a metric after each epoch."""
        self(0, steps)
        return self._wants_metric

    def observe(self, loss: float, metric: float | None) -> None:
        """Step a scheduler that wants a metric: by the loss, or by the first metric if its `mode` is "max"."""
        if not self._wants_metric:
            return
        wants_more = getattr(self._scheduler, "mode", "min") == "max"
        value = metric if wants_more and metric is not None else loss
        try:
            self._scheduler.step(value)  # type: ignore[arg-type, union-attr]
        except Exception as error:
            raise ExperimentError(
                f"training.schedule = {self._title} failed: {type(error).__name__}: {error}{user_frames(error)}"
            ) from error

    def state(self) -> dict[str, Any] | None:
        """Return the state of a scheduler that wants a metric, for a resumed run; None for any other."""
        if self._scheduler is None or not self._wants_metric:
            return self._saved
        kept = {
            name: value
            for name, value in self._scheduler.state_dict().items()
            if isinstance(value, bool | int | float | str | list)
        }
        return {"scheduler": kept, "lr": float(self._scheduler.optimizer.param_groups[0]["lr"])}

    def load(self, state: dict[str, Any]) -> None:
        self._saved = state
        if self._scheduler is not None:
            self._restore(self._scheduler, state)

    def _restore(self, scheduler: LRScheduler, state: dict[str, Any]) -> None:
        scheduler.load_state_dict(scheduler.state_dict() | state["scheduler"])
        scheduler.optimizer.param_groups[0]["lr"] = state["lr"]

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
        if not isinstance(made, LRScheduler):
            raise ExperimentError(
                f"training.schedule = {self._title} returned a {type(made).__name__}; it must return a scheduler, such "
                "as torch.optim.lr_scheduler.StepLR"
            )
        return made


def _wants_metric(scheduler: LRScheduler) -> bool:
    """Return whether `step` has to be called with a value, as that of ReduceLROnPlateau."""
    parameters = inspect.signature(scheduler.step).parameters.values()
    return any(
        parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in parameters
    )


def _factor(function: Callable[..., Any], progress: float, options: dict[str, Any], title: str) -> float:
    try:
        return float(function(progress, **options))
    except Exception as error:
        hint = "; name the argument optimizer if it makes a scheduler" if "not an Optimizer" in str(error) else ""
        raise ExperimentError(
            f"training.schedule = {title} failed at progress {progress:g}: {type(error).__name__}: {error}{hint}"
            f"{user_frames(error)}"
        ) from error


def _argument_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
