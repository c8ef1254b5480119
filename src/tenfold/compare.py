"""Comparisons: the same experiment over a grid of settings, run in turns, recorded, and put side by side."""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tenfold import api
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.experiment import FIELDS, SECTIONS, Division, Experiment
from tenfold.registry import suggest
from tenfold.report.comparison import Comparison
from tenfold.runs import Emit, Run, Store

KIND = "compare"
Watch = Callable[[int, int, Experiment], Emit | None]
"""Called before each run with its place, their number and its experiment; returns a listener, or None."""


def compare(
    experiment: Experiment | None = None,
    *,
    repeats: int = 1,
    runs: str | Path | None = None,
    fresh: bool = False,
    watch: Watch | None = None,
    **grid: Any,
) -> Comparison:
    """Run an experiment with every combination of the listed settings, and return them side by side.

    `compare(experiment, workers=[1, 2, 4], strategy=["allreduce", "butterfly"], repeats=3)`: a list is a dimension of
    the grid, anything else changes the experiment. Repeats differ in the seed and come in turns, so that a machine
    that slows down slows all down. What is recorded already is not run again, unless `fresh`; what fails is reported
    and does not stop the rest.
    """
    base = (experiment or Experiment()).replace(
        **{key: value for key, value in grid.items() if not _listed(key, value)}
    )
    dimensions = {key: list(value) for key, value in grid.items() if _listed(key, value)}
    store = Store(runs)
    known = {} if fresh else _finished(store)
    planned = list(plan(base, dimensions, repeats))
    done: list[Run] = []
    failed: dict[str, str] = {}
    for place, one in enumerate(planned):
        recorded = known.get(one.model_dump_json())
        if recorded is not None:
            done.append(api.open_run(recorded, runs=store.folder))
            continue
        try:
            listen = watch(place, len(planned), one) if watch else None
            done.append(api.train(one, runs=store.folder, listen=listen, kind=KIND))
        except TenfoldError as error:
            failed[_label(one, dimensions)] = str(error)
    if not done:
        reasons = "; ".join(dict.fromkeys(failed.values()))
        raise ExperimentError(f"none of the {len(planned)} runs could be done: {reasons}")
    return Comparison(done, failed)


def plan(base: Experiment, dimensions: dict[str, list[Any]], repeats: int) -> Iterable[Experiment]:
    """Yield the experiments of a grid in the order in which they run, each once.

    A single worker has nobody to mix with, so settings of the division other than its size are left at their defaults
    there: one run serves as the baseline of all.
    """
    if repeats < 1:
        raise ExperimentError(f"repeats = {repeats}: should be at least 1")
    for name in dimensions:
        if name not in FIELDS:
            raise ExperimentError(f"'{name}' is no field of an experiment; {suggest(name, FIELDS)}")
        if not dimensions[name]:
            raise ExperimentError(f"{name} = []: give at least one value to compare")
    seen: set[str] = set()
    for repeat in range(repeats):
        for values in product(*dimensions.values()):
            one = base.replace(**dict(zip(dimensions, values, strict=True)))
            one = one.replace(seed=one.training.seed + repeat)
            if one.division.workers == 1:
                one = one.replace(division=Division())
            text = one.model_dump_json()
            if text not in seen:
                seen.add(text)
                yield one


def _listed(key: str, value: Any) -> bool:
    """Tell a dimension of the grid from one value; a field that is a list itself needs a list of lists."""
    if not isinstance(value, list | tuple | range):
        return False
    section, field = FIELDS.get(key, ("training", "seed"))
    takes_lists = "tuple" in str(SECTIONS[section].model_fields[field].annotation)
    return not takes_lists or any(isinstance(one, list | tuple) for one in value)


def _finished(store: Store) -> dict[str, int]:
    """Return the runs that can stand for an experiment; one with Python objects in it is never taken for another."""
    texts = ((run["id"], Experiment(**run["experiment"]).model_dump_json()) for run in _compared(store.runs()))
    return {text: number for number, text in texts if '"<' not in text}


def _compared(records: Sequence[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return (record for record in records if record["kind"] == KIND and record["status"] == "finished")


def _label(experiment: Experiment, dimensions: dict[str, list[Any]]) -> str:
    flat = experiment.flat()
    return ", ".join(f"{key} {flat[key]}" for key in (*dimensions, "seed"))
