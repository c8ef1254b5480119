"""Settings of a comparison that exchange exactly the same, of which only one is run."""

from collections.abc import Iterable
from typing import Any

from tenfold.errors import TenfoldError
from tenfold.experiment import Experiment
from tenfold.mixing.builders import make_strategy
from tenfold.mixing.exchange_pattern import exchange_pattern

MOST_WORKERS = 8
"""The largest number of workers for which strategies are compared; beyond, hardly any two are equal."""


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
