"""`tenfold.open_run` and `tenfold.list_runs`: read runs from the store.

A filter, such as "workers>=4 strategy=butterfly accuracy>99% tag=paper", is a list of conditions, all of which
must hold. A condition is a name, an operator and a value:

    name      status, title, kind, tag, note, run (its number), created, age, seconds, clock; a metric of the result
              (accuracy, loss, ...); an experiment field by its short name (lr) or its full one (training.lr)
    operator  =  !=  <  <=  >  >=, and ~ for text that contains the value
    value     a number (0.1, 1e-3, 99%), a word, "words in quotes", none; a date for created (2026-01-31), a time for
              age (90s, 30m, 12h, 7d); with = and != a list, of which any may match: strategy=ring,gossip
"""

import re
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any

from tenfold.common.metric_traits import beyond_share
from tenfold.errors import StoreError
from tenfold.experiment import FIELDS
from tenfold.registry import suggest
from tenfold.runs.run import Run
from tenfold.runs.store import Store


def open_run(run: str | int = "last", *, runs: str | Path | None = None, trust: bool = False) -> Run:
    """Return a recorded run by its number, its title, or "last".

    `run.model` rebuilds the network if its class or function can be imported. Importing runs code, so import paths in
    the record (model, data, loss, metrics, ...) are imported only if you have named them in a command before, for the
    same file, or with `trust=True`. A network defined in a script or a notebook is stored with the run as a pickle.
    Unpickling runs the code in it, so the pickle is read only if this process has written it, or with `trust=True`;
    trust only folders that nobody else can write to. If the running script or notebook defines a class of the same name
    and the weights fit, that class is used instead.
    """
    store = Store(runs, create=False)
    return Run(store, store.find(run), trust=trust)


def list_runs(*, runs: str | Path | None = None, filter: str = "") -> list[Run]:  # noqa: A002 - as the option
    """Return the recorded runs that match a filter (by default all), oldest first.

    >>> list_runs(filter="workers>=4 strategy=butterfly accuracy>99%")  # doctest: +SKIP
    """
    store = Store(runs, create=False)
    listed = [Run(store, record) for record in store.runs()]
    return filter_runs(listed, filter) if filter else listed


def newest_runs(count: int, *, runs: str | Path | None = None, members: bool = False) -> tuple[list[Run], int]:
    """Return the newest runs, oldest first, and the number of all runs, with or without folds and trials."""
    store = Store(runs, create=False)
    rows, total = store.newest(count, members=members)
    return [Run(store, row) for row in rows], total


CONDITION = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)\s*(?P<operator><=|>=|!=|==|=|<|>|~)\s*(?P<value>.*)", re.DOTALL)
EXAMPLE = "such as workers>=4 or strategy=butterfly"
STATUSES = ("running", "finished", "interrupted", "failed")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
ORDER = {"<": lt, "<=": le, ">": gt, ">=": ge}

COLUMNS: dict[str, Callable[[Run], Any]] = {
    "run": lambda run: run.id,
    "id": lambda run: run.id,
    "title": lambda run: run.title,
    "kind": lambda run: run.kind,
    "status": lambda run: run.status,
    "created": lambda run: run.created,
    "age": lambda run: time.time() - run.created,
    "tag": lambda run: run.tags,
    "tags": lambda run: run.tags,
    "note": lambda run: run.note,
}
"""Fields in the list of runs; conditions on them are checked first because the runs need not be read."""
HELD: dict[str, Callable[[Run], Any]] = {
    "seconds": lambda run: run.seconds,
    "seconds_to_target": lambda run: run.seconds_to_target,
    "clock": lambda run: run.clock,
    "error": lambda run: run.error,
    "steps": lambda run: run.result.get("steps"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a filter."""

    name: str
    operator: str
    values: tuple[Any, ...]

    def holds(self, run: Run) -> bool:
        """Return whether a run meets the condition; if the run lacks the value, only != is true."""
        actual = value_of(run, self.name)
        several = actual if isinstance(actual, list | tuple) else (actual,)
        if self.operator == "=":
            return any(_equal(item, value) for item in several or (None,) for value in self.values)
        if self.operator == "!=":
            return not any(_equal(item, value) for item in several or (None,) for value in self.values)
        if self.operator == "~":
            return any(str(value).lower() in str(item).lower() for item in several for value in self.values)
        return any(_ordered(self.operator, item, value) for item in several for value in self.values)


def filter_runs(runs: Iterable[Run], text: str) -> list[Run]:
    """Return the runs that a filter selects; StoreError if it is invalid or no run has a field that it names."""
    conditions, runs = parse_filter(text), list(runs)
    quick = [condition for condition in conditions if condition.name in COLUMNS]
    others = [condition for condition in conditions if condition.name not in COLUMNS]
    left = [run for run in runs if all(condition.holds(run) for condition in quick)]
    for condition in others:
        _check_shares(condition, runs)
        if not _is_known(condition.name) and not any(condition.name in run.metrics for run in (*left, *runs)):
            raise StoreError(_unknown(condition.name, runs))
    return [run for run in left if all(condition.holds(run) for condition in others)]


def _check_shares(condition: Condition, runs: Iterable[Run]) -> None:
    """Raise StoreError if a condition requires a share above 1, unless some run has such a metric outside 0 to 1."""
    if condition.operator not in ("=", ">", ">="):
        return
    for value in condition.values:
        problem = beyond_share(condition.name, value) if isinstance(value, float) and value > 1 else ""
        if problem and all(0 <= run.metrics.get(condition.name, 0) <= 1 for run in runs):
            raise StoreError(f"{condition.name}{condition.operator}{value:g} cannot be used as a filter: {problem}")


def parse_filter(text: str) -> list[Condition]:
    """Read a filter; spaces separate its conditions, quotes hold values with spaces."""
    try:
        words = shlex.split(_joined(text))
    except ValueError:
        raise StoreError(f"the filter '{text}' has an unclosed quote") from None
    return [_condition(word) for word in words]


def value_of(run: Run, name: str) -> Any:
    """Return the value of a run for a name in a filter; None if it has none."""
    column = COLUMNS.get(name) or HELD.get(name)
    if column is not None:
        return column(run)
    if name not in FIELDS and "." in name:
        section, _, field = name.partition(".")
        name = next((short for short, place in FIELDS.items() if place == (section, field)), name)
    if name in FIELDS:
        section, field = FIELDS[name]
        fields = run.experiment.flat() if run.readable else {name: run.recorded_fields.get(section, {}).get(field)}
        return fields.get(name)
    return run.metrics.get(name)


def _joined(text: str) -> str:
    """Return the text without the spaces around operators: "lr > 0.1" is one condition."""
    return re.sub(r"\s*(<=|>=|!=|==|=|<|>|~)\s*", r"\1", text)


def _condition(word: str) -> Condition:
    match = CONDITION.fullmatch(word)
    if match is None:
        raise StoreError(f"'{word}' is not a condition; write a name, an operator and a value, {EXAMPLE}")
    name, operator, value = match["name"].replace("-", "_"), match["operator"].replace("==", "="), match["value"]
    if not value:
        raise StoreError(f"the condition '{word}' has no value; write it {EXAMPLE}")
    if value[0] in "<>=~":
        raise StoreError(f"'{word}' has no valid operator; use = != < <= > >= or ~, {EXAMPLE}")
    listed = value.split(",") if operator in ("=", "!=") else [value]
    values = tuple(_value(name, operator, entry) for entry in listed)
    if operator in ORDER and not all(isinstance(value, float) for value in values):
        raise StoreError(f"'{word}' needs a number, not '{value}'; compare text with =")
    return Condition(name, operator, values)


def _value(name: str, operator: str, text: str) -> Any:
    """Return the value to compare with: a number if the text is one, else the text."""
    if operator == "~":
        return text
    if name == "created":
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise StoreError(f"created needs a date such as 2026-01-31, not '{text}'") from None
    if name == "age":
        amount = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
        if amount is None:
            raise StoreError(f"age needs a duration such as 90s, 30m, 12h or 7d, not '{text}'")
        return float(amount[1]) * UNITS[amount[2]]
    if name == "status" and text.lower() not in STATUSES:
        raise StoreError(f"unknown status '{text}'; {suggest(text, STATUSES)}")
    number = re.fullmatch(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?(%?)", text)
    if number is None:
        return text
    return float(text.rstrip("%")) / (100 if number[3] else 1)


def _equal(actual: Any, wanted: Any) -> bool:
    if isinstance(actual, bool):
        return str(wanted).lower() == str(actual).lower()
    if isinstance(actual, int | float):
        return isinstance(wanted, float) and actual == wanted
    if actual is None:
        return str(wanted).lower() in ("none", "unset")
    if isinstance(wanted, float):
        return _number(actual) == wanted
    return str(actual).lower() == str(wanted).lower()


def _ordered(operator: str, actual: Any, wanted: float) -> bool:
    number = None if isinstance(actual, bool) else _number(actual)
    return number is not None and ORDER[operator](number, wanted)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _is_known(name: str) -> bool:
    names = {*COLUMNS, *HELD, *FIELDS, *(".".join(place) for place in FIELDS.values())}
    return name in names or name in ("accuracy", "loss")


def _unknown(name: str, runs: Iterable[Run]) -> str:
    metrics = dict.fromkeys(metric for run in runs for metric in run.metrics)
    names = [*COLUMNS, *HELD, *metrics, *FIELDS]
    near = suggest(name, names).partition("?")
    meant = f"{near[0]}?" if near[1] else "`tenfold runs --help` says what a filter can name"
    return f"no run has a '{name}' to filter by; {meant}"
