"""Learning rate schedules: the learning rate as a pure function of the step."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
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
from tenfold.training.optimizers import base_lr


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


class LrSchedule:
    """The learning rate of every step of a run: the base learning rate times a warm-up followed by a named schedule."""

    def __init__(self, base: float, schedule: str, *, steps: int, warmup_steps: float) -> None:
        self.base = base
        self.schedule = schedule
        self.steps = steps
        self.warmup_steps = round(min(steps, warmup_steps))

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.base * factor(self.schedule, step, self.steps, self.warmup_steps)

    @property
    def wants_metric(self) -> bool:
        """Whether the learning rate depends on a metric after each epoch, as with torch's ReduceLROnPlateau."""
        return False

    def observe(self, loss: float, metric: float | None) -> None:
        """Step a scheduler that wants a metric: with the loss, or with the first metric if its `mode` is "max"."""

    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run; empty if the learning rate is a function of the step."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state` returned, if there is one."""

    def problem(self, steps_per_epoch: int) -> str:  # noqa: ARG002
        """Return a warning if a scheduler seems to be meant for one step per epoch, or ""."""
        return ""


def plan_lr_schedule(
    training: Training,
    network: nn.Module | None = None,
    *,
    steps_per_epoch: int,
    lr_scale: float = 1.0,
    labels_per_sample: float = 1.0,
    warmup: float | None = None,
) -> LrSchedule:
    """Return the learning rate of every step of a network's run.

    It is the product of three factors: `base_lr`, the given learning rate or the optimizer's default
    (`common/optimizer_defaults.py`); `lr_scale`, which grows with the workers (`Resolved.lr_scale`); and the warm-up,
    in epochs (default: the experiment's), followed by the schedule.

    A user's own function with a first argument called `optimizer` returns a scheduler, which is stepped after every
    step, or after every epoch if its `step` wants a metric; any other function takes the progress from 0 to 1 and
    returns the factor of the learning rate.
    """
    base = base_lr(training, network, labels_per_sample)
    warmup_steps = (warmup if warmup is not None else training.warmup or 0.0) * steps_per_epoch
    given, options = training.lr_schedule_name, training.schedule_options
    scaled, steps = base * lr_scale, steps_per_epoch * training.epochs
    if isinstance(given, str) and given in SCHEDULES:
        if options:
            raise ExperimentError(
                f"training.schedule_options are only for a schedule of your own, but {given} got {', '.join(options)}"
            )
        return LrSchedule(scaled, given, steps=steps, warmup_steps=warmup_steps)
    if isinstance(given, UnrecordedObject):
        raise ExperimentError(f"the schedule {given} was given as a Python object; pass it again")
    make, names = _own_function(given)
    if names[:1] != ["optimizer"]:
        return OwnSchedule(scaled, make, options, str(given), steps=steps, warmup_steps=warmup_steps)
    if "steps_per_epoch" in names:
        options = options | {"steps_per_epoch": steps_per_epoch}
    schedule = SchedulerAhead(scaled, make, options, str(given), steps=steps, warmup_steps=warmup_steps)
    schedule.scheduler_lr, schedule.wants_steps = base, "steps" in names
    return schedule


def _own_function(given: str | PythonObject) -> tuple[Callable[..., Any], list[str]]:
    """Return the user's own schedule, and the names of its arguments, if known."""
    value: Any = given.value if isinstance(given, PythonObject) else resolve(given, "schedule")
    try:
        return value, list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return value, []


COUNTERS = ("epoch", "epochs", "step", "steps", "iteration", "current_step", "global_step")
"""Names of arguments that count epochs or steps, as in torch's LambdaLR."""


def check_own_schedule(training: Training) -> None:
    """Raise ExperimentError for a function of the epoch or step; recorded runs with one can still be resumed."""
    given = training.lr_schedule_name
    if isinstance(given, UnrecordedObject):
        return
    _, names = _own_function(given)
    if names and names[0] in COUNTERS:
        raise ExperimentError(
            f"training.schedule = {given} takes `{names[0]}`, but a schedule is called with the progress "
            "from 0 to 1; name its argument progress, or for a function f of the training step give "
            "lambda optimizer: LambdaLR(optimizer, f)"
        )


class OwnSchedule(LrSchedule):
    """A function of the progress, from 0 to 1, after the warm-up."""

    def __init__(
        self,
        base: float,
        make: Callable[..., Any],
        options: dict[str, Any],
        title: str,
        *,
        steps: int,
        warmup_steps: float,
    ) -> None:
        super().__init__(base, "constant", steps=steps, warmup_steps=warmup_steps)
        self._make, self._options, self._title = make, options, title
        self._scheduled_steps = max(1, steps - self.warmup_steps)

    def at(self, step: int) -> float:
        if step < self.warmup_steps:
            return super().at(step)
        return self.base * self._factor(step - self.warmup_steps)

    def _factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step after the warm-up, counted from 0."""
        progress = min(1.0, step / self._scheduled_steps)
        try:
            return float(self._make(progress, **self._options))
        except Exception as error:
            hint = "; name the argument optimizer if it makes a scheduler" if "not an Optimizer" in str(error) else ""
            raise self._error(f"failed at progress {progress:g}", error, hint) from error

    def _error(self, what: str, error: Exception, hint: str = "") -> ExperimentError:
        return ExperimentError(
            f"training.schedule = {self._title} {what}: {type(error).__name__}: {error}{hint}{user_frames(error)}"
        )


class SchedulerAhead(OwnSchedule):
    """A torch scheduler, run ahead on a separate optimizer, so that the learning rate is a function of the step.

    A scheduler whose `step` wants a metric, such as ReduceLROnPlateau, cannot be run ahead; `observe` steps it.
    """

    FADED = 0.02
    """A rate that is this small a share of the highest one of the first epoch was meant to fall over many epochs."""
    scheduler_lr: float
    """The learning rate of the separate optimizer."""
    wants_steps: bool
    """Whether the function that makes the scheduler is given the number of steps."""

    @cached_property
    def _scheduler(self) -> LRScheduler:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=self.scheduler_lr)
        steps = {"steps": self._scheduled_steps} if self.wants_steps else {}
        try:
            made = self._make(optimizer, **self._options, **steps)
        except Exception as error:
            raise self._error("cannot be created", error) from error
        if not isinstance(made, LRScheduler):
            raise ExperimentError(
                f"training.schedule = {self._title} returned a {type(made).__name__}; it must return a scheduler, such "
                "as torch.optim.lr_scheduler.StepLR"
            )
        return made

    @cached_property
    def _factors(self) -> list[float]:
        """The factors of the steps up to which the scheduler was run ahead."""
        return [self._present_factor]

    @property
    def _present_factor(self) -> float:
        return float(self._scheduler.optimizer.param_groups[0]["lr"]) / self.scheduler_lr

    def _factor(self, step: int) -> float:
        if self.wants_metric:
            return self._present_factor
        step = min(step, self._scheduled_steps - 1)
        while len(self._factors) <= step:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no optimizer step precedes the scheduler's
                self._scheduler.step()
            self._factors.append(self._present_factor)
        return self._factors[step]

    @cached_property
    def wants_metric(self) -> bool:
        """Whether the scheduler's `step` must be called with a value, as for ReduceLROnPlateau."""
        parameters = inspect.signature(self._scheduler.step).parameters.values()
        return any(
            parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            for parameter in parameters
        )

    def observe(self, loss: float, metric: float | None) -> None:
        if not self.wants_metric:
            return
        wants_more = getattr(self._scheduler, "mode", "min") == "max"
        value = metric if wants_more and metric is not None else loss
        try:
            self._scheduler.step(value)  # type: ignore[arg-type]
        except Exception as error:
            raise self._error("failed", error) from error

    def state(self) -> dict[str, Any]:
        """Return the state of a scheduler that wants a metric, for a resumed run; empty for other schedulers."""
        if not self.wants_metric:
            return {}
        kept = {
            name: value
            for name, value in self._scheduler.state_dict().items()
            if isinstance(value, bool | int | float | str | list)
        }
        lr = float(self._scheduler.optimizer.param_groups[0]["lr"])
        return {"schedule": {"scheduler": kept, "lr": lr}}

    def load(self, state: Mapping[str, Any]) -> None:
        if (saved := state.get("schedule")) is not None:
            self._scheduler.load_state_dict(self._scheduler.state_dict() | saved["scheduler"])
            self._scheduler.optimizer.param_groups[0]["lr"] = saved["lr"]

    def problem(self, steps_per_epoch: int) -> str:
        if self._scheduled_steps < 2 * steps_per_epoch:
            return ""
        highest = max(self._factor(step) for step in range(steps_per_epoch))
        share = self._factor(steps_per_epoch) / highest if highest > 0 else 1.0
        if share >= self.FADED:
            return ""
        return (
            f"the schedule {self._title} lowers the learning rate to {share:.1g} of its highest value in the first "
            f"epoch; it is stepped after every training step, not every epoch, and an epoch has {steps_per_epoch} "
            f"steps: multiply its step_size or T_max by {steps_per_epoch}, or use gamma ** (1 / {steps_per_epoch})"
        )
