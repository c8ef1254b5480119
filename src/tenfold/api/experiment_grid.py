"""The grid of a comparison or a forecast: the settings that vary, their experiments, and which of these are equal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from tenfold.common.registry import suggest
from tenfold.data.user_data import is_one_part
from tenfold.engines.prepare import resolve_defaults
from tenfold.errors import ExperimentError, TenfoldError
from tenfold.experiment import FIELDS, FOLD_FIELDS, SECTIONS, Division, Experiment
from tenfold.experiment.values import TakesList
from tenfold.mixing.builders import make_strategy
from tenfold.mixing.exchange_pattern import exchange_pattern

MOST_WORKERS = 8
"""The largest number of workers for which strategies are compared; beyond, hardly any two are equal."""


def split_grid(experiment: Experiment, grid: dict[str, Any]) -> tuple[Experiment, dict[str, list[Any]]]:
    """Separate what changes the experiment from the dimensions of the grid."""
    grid = {key: _as_list(key, value) for key, value in grid.items()}
    fixed = {key: value for key, value in grid.items() if not _listed(key, value)}
    return experiment.replace(**fixed), {key: list(value) for key, value in grid.items() if _listed(key, value)}


def experiments_of(
    base: Experiment, dimensions: dict[str, list[Any]], repeats: int, together: Sequence[Mapping[str, Any]] = ()
) -> Iterable[Experiment]:
    """Yield the experiments of a grid in the order in which they run, each once; `together` as in `compare`.

    A single worker does not average, so settings of the division other than its size and its folds are left at their
    defaults there: one run serves as the baseline of all.
    """
    if repeats < 1:
        raise ExperimentError(f"repeats = {repeats}: should be at least 1")
    for name in (*dimensions, *(name for one in together for name in one)):
        if name not in FIELDS:
            raise ExperimentError(f"'{name}' is not an experiment field; {suggest(name, FIELDS)}")
        if name in dimensions and any(name in one for one in together):
            raise ExperimentError(f"{name} is given twice, in the grid and among settings that change together")
        if not dimensions.get(name, [name]):
            raise ExperimentError(f"{name} = []: give at least one value to compare")
    seen: list[Experiment] = []
    for repeat in range(repeats):
        for *values, group in product(*dimensions.values(), together or [{}]):
            one = base.replace(**dict(zip(dimensions, values, strict=True)), **group)
            one = one.replace(seed=one.training.seed + repeat)
            if one.division.workers == 1:
                kept = {name: getattr(one.division, name) for name in FOLD_FIELDS}
                one = one.replace(division=Division(**kept))
            one = resolve_defaults(one)
            if one not in seen:  # by equality, which distinguishes Python objects of one name
                seen.append(one)
                yield one


def _as_list(key: str, value: Any) -> Any:
    """Return values that are given as an array or by a generator as a list; data as they are."""
    if key not in FIELDS or FIELDS[key][0] == "data":
        return value
    if getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, Iterator) else value


def _listed(key: str, value: Any) -> bool:
    """Return whether a field is given several values; a field that takes a list itself needs a list of lists."""
    if not isinstance(value, list | range) or (key in ("data", "data.name") and is_one_part(value)):
        return False
    section, field = FIELDS.get(key, ("training", "seed"))
    takes_lists = any(isinstance(one, TakesList) for one in SECTIONS[section].model_fields[field].metadata)
    return not takes_lists or any(isinstance(one, list | tuple) or getattr(one, "ndim", 0) for one in value)


def drop_repeated(planned: Iterable[Experiment]) -> tuple[list[Experiment], list[str]]:
    """Return the experiments without those that repeat another's exchange, and sentences about what was left out."""
    kept: list[Experiment] = []
    known: list[tuple[Experiment, Any, str]] = []
    repeated: dict[tuple[int, str], list[str]] = {}
    for one in planned:
        exchange = _exchange(one)
        if exchange is not None:
            rest, name = one.replace(strategy="allreduce", strategy_options={}), one.division.strategy
            first = next((other for same, found, other in known if found == exchange and same == rest), None)
            if first is not None and first != name:
                repeated.setdefault((one.division.workers, first), []).append(name)
                continue
            known.append((rest, exchange, name))
        kept.append(one)
    return kept, [_sentence(workers, first, names) for (workers, first), names in repeated.items()]


def _exchange(experiment: Experiment) -> Any:
    """Return what a strategy exchanges; None where that is not known or not needed."""
    division = experiment.division
    if not 1 < division.workers <= MOST_WORKERS:
        return None
    try:
        strategy = make_strategy(division)
        return exchange_pattern(strategy, division.workers, priced=experiment.machine.engine == "virtual")
    except TenfoldError:  # reported when it is run
        return None


def _sentence(workers: int, first: str, names: list[str]) -> str:
    others = list(dict.fromkeys(names))
    listed = " and ".join([", ".join(others[:-1]), others[-1]] if len(others) > 1 else others)
    return (
        f"with {workers} workers, {listed} {'is' if len(others) == 1 else 'are'} the same exchange as {first}: run once"
    )
