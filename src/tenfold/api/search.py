"""The search space of a sweep: ranges and lists of values, and the sampler that chooses among them."""

import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

from tenfold.api.compare import split_grid
from tenfold.common.imports import optional_module
from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS, Experiment
from tenfold.experiment.field_types import Fields
from tenfold.experiment.values import format_value
from tenfold.registry import suggest
from tenfold.reports.sweep import Trial

RANGE = re.compile(r"\s*([^:\s]+)\s*:\s*([^:\s]+?)\s*(?::\s*(log)\s*)?")
DIGITS = 4
"""Values from a range are rounded to this many significant digits, so that people can read them."""
SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "grid": "",
    "qmc": "QMCSampler",
    "gp": "GPSampler",
    "cmaes": "CmaEsSampler",
}
"""Samplers by name, as Optuna calls them; the grid is every combination of lists, in order."""


@dataclass(frozen=True)
class Range:
    """The numbers from `low` to `high`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    """Whether only whole numbers are meant."""

    @classmethod
    def read(cls, field: str, text: str) -> "Range | None":
        """Return the range that "1e-3:1e-1:log" or "16:256" describes; None for other text."""
        match = RANGE.fullmatch(text)
        try:
            low, high = (float(end) for end in match.groups()[:2]) if match else (0.0, 0.0)
        except ValueError:
            return None
        if match is None:
            return None
        annotation = Fields.__annotations__[field]
        whole = int in (annotation, *get_args(annotation))
        log = match[3] is not None
        if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
            above = ", both above 0" if log else ""
            raise ExperimentError(f"{field} = {text}: should be a range from a lower to a higher number{above}")
        if whole and not (low.is_integer() and high.is_integer()):
            raise ExperimentError(f"{field} = {text}: should be a range of whole numbers, such as 16:256")
        return cls(low, high, log, whole)

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}{':log' * self.log}"


Space = Mapping[str, Range | Sequence[Any]]
"""By field, the range or the list of its values."""


def split_space(experiment: Experiment, given: Mapping[str, Any]) -> tuple[Experiment, Space]:
    """Separate fixed changes of the experiment from the ranges and lists of values to try."""
    for name in given:
        if name not in FIELDS:
            raise ExperimentError(f"'{name}' is not an experiment field; {suggest(name, FIELDS)}")
    ranges = {name: Range.read(name, value) for name, value in given.items() if isinstance(value, str)}
    base, lists = split_grid(experiment, {name: value for name, value in given.items() if ranges.get(name) is None})
    space = {name: ranges.get(name) or lists.get(name) for name in given}
    varied: Space = {name: values for name, values in space.items() if values}
    if not varied:
        raise ExperimentError(
            "no field to search: give a range or a list of values, such as --lr 1e-3:1e-1:log or lr=[0.1, 0.01]"
        )
    return base, varied


def recorded_value(value: Any) -> Any:
    """Return the stored form of a value: a number or text, and a name for anything else."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(getattr(value, "__name__", None) or format_value(value))
    return value


def describe_space(space: Space) -> dict[str, str]:
    """Return the ranges and lists as text; it identifies a sweep."""
    return {
        name: str(values) if isinstance(values, Range) else json.dumps([recorded_value(value) for value in values])
        for name, values in space.items()
    }


def read_space(described: Mapping[str, str]) -> dict[str, Any]:
    """Read the ranges and lists of a space back from text; Python objects become their names."""
    return {name: json.loads(text) if text.startswith("[") else text for name, text in described.items()}


def sampler_name(sampler: Any) -> str:
    """Return the record of a sampler that is given by name or as an object."""
    return sampler if isinstance(sampler, str) else type(sampler).__name__


class SpaceSearch:
    """Chooses values by ask and tell: a grid in order, or the proposals of an Optuna sampler."""

    def __init__(self, space: Space, sampler: Any, *, seed: int, lower: bool) -> None:
        self.space = space
        self.sampler_name = sampler_name(sampler)
        if isinstance(sampler, str) and sampler not in SAMPLERS:
            raise ExperimentError(f"sampler = {sampler}: {suggest(sampler, SAMPLERS)}")
        self._grid: Iterator[tuple[Any, ...]] | None = None
        if sampler == "grid":
            if ranged := [name for name, values in space.items() if isinstance(values, Range)]:
                raise ExperimentError(
                    f"{ranged[0]} = {space[ranged[0]]}: sampler = grid needs lists of values, not ranges; list the "
                    "values, or use another sampler"
                )
            self._grid = product(*space.values())  # type: ignore[arg-type]
            return
        self._optuna = optional_module("optuna", f"the sampler {self.sampler_name} of a sweep", "sweep")
        if sampler == "cmaes":
            optional_module("cmaes", "the sampler cmaes of a sweep", "sweep")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some are marked as experimental
            if isinstance(sampler, str):
                options = {"constant_liar": True} if sampler == "tpe" else {}
                sampler = getattr(self._optuna.samplers, SAMPLERS[sampler])(seed=seed, **options)
            self._study = self._optuna.create_study(sampler=sampler, direction="minimize" if lower else "maximize")
        of = self._optuna.distributions
        self._distributions = {name: _distribution(of, values) for name, values in space.items()}

    @property
    def is_grid(self) -> bool:
        """Whether every combination is proposed once."""
        return self._grid is not None

    @property
    def looks_back(self) -> bool:
        """Whether proposals depend on the results of other trials."""
        return self._grid is None and self.sampler_name not in ("random", "qmc")

    def ask(self) -> tuple[Any, dict[str, Any]] | None:
        """Return a token for `tell` and the values to try; None when there are no more."""
        if self._grid is not None:
            values = next(self._grid, None)
            return None if values is None else (None, dict(zip(self.space, values, strict=True)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            proposed = self._study.ask(self._distributions)
        return proposed, {name: self._value(name, number) for name, number in proposed.params.items()}

    def ask_for(self, recorded: Mapping[str, Any]) -> Any:
        """Return the token for `tell` of values proposed earlier, given their recorded form."""
        if self._grid is not None:
            return None
        self._study.enqueue_trial({name: self._number(name, value) for name, value in recorded.items()})
        return self._study.ask(self._distributions)

    def _value(self, name: str, number: Any) -> Any:
        values = self.space[name]
        if not isinstance(values, Range):
            return values[number]
        if values.whole:
            return int(number)
        return min(max(float(f"{number:.{DIGITS}g}"), values.low), values.high)

    def tell(self, proposed: Any, trial: Trial | None) -> None:
        """Report the trial of proposed values; None if the values were refused."""
        if self._grid is not None:
            return
        state, value = self._state(trial)
        if trial is not None and trial.status == "pruned":
            for epoch, measured in enumerate(trial.curve, 1):
                proposed.report(measured, epoch)
        self._study.tell(proposed, value, state=state)

    def add(self, trial: Trial) -> None:
        """Add a trial that was recorded earlier."""
        if self._grid is not None:
            return
        params = {name: self._number(name, value) for name, value in trial.values.items()}
        state, value = self._state(trial)
        curve = dict(enumerate(trial.curve, 1))
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params=params, distributions=self._distributions, state=state, value=value, intermediate_values=curve
            )
        )

    def restore(self, recorded: Mapping[str, Any]) -> dict[str, Any]:
        """Return the proposed values, given their recorded form."""
        places = {name: (self.space[name], self._number(name, value)) for name, value in recorded.items()}
        return {name: at if isinstance(values, Range) else values[at] for name, (values, at) in places.items()}

    def _number(self, name: str, recorded: Any) -> Any:
        """Return a number from a range unchanged, and the index of a value in a list."""
        values = self.space[name]
        return recorded if isinstance(values, Range) else [recorded_value(value) for value in values].index(recorded)

    def _state(self, trial: Trial | None) -> tuple[Any, float | None]:
        states = self._optuna.trial.TrialState
        if trial is not None and trial.status == "pruned":
            return states.PRUNED, None
        if trial is None or trial.status != "finished" or trial.value is None:
            return states.FAIL, None
        return states.COMPLETE, trial.value


def _distribution(of: Any, values: Range | Sequence[Any]) -> Any:
    if not isinstance(values, Range):
        return of.CategoricalDistribution(tuple(range(len(values))))
    if values.whole:
        return of.IntDistribution(int(values.low), int(values.high), log=values.log)
    return of.FloatDistribution(values.low, values.high, log=values.log)
