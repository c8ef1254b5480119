"""Exchanges without rounds: when one is due, with whom, and what it costs where only rounds have prices."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenfold.cluster.hardware import ExchangePrice, RoundLike, RoundPrice, StrategyLike, WaveLike
from tenfold.errors import ExperimentError

CENTRE = -1

Rule = Callable[[int, int], tuple[int, int, int] | None]
"""From (worker, step) to (other, parts that go there, parts that come back), or None: nothing is due."""


def rule_of(strategy: StrategyLike, workers: int) -> Rule:
    """Return when a worker exchanges and with whom."""
    own: Any = strategy
    rules: dict[str, Rule] = {
        "downpour": lambda _, step: _some(CENTRE, own.pushes(step), own.fetches(step)),
        "easgd": lambda _, step: _some(CENTRE, own.exchanges(step), own.exchanges(step)),
        "ad-psgd": lambda rank, step: _pair(own.partner(rank, step, workers)),
    }
    if strategy.name not in rules:
        raise ExperimentError(
            f"the clock does not know when workers exchange in strategy '{strategy.name}'; "
            f"without rounds it knows {', '.join(rules)}"
        )
    return rules[strategy.name]


def _some(other: int, there: bool, back: bool) -> tuple[int, int, int] | None:
    return (other, int(there), int(back)) if there or back else None


def _pair(partner: int | None) -> tuple[int, int, int] | None:
    return None if partner is None else (partner, 1, 1)


def price_of_swaps(price: RoundPrice, workers: int) -> ExchangePrice:
    """Price exchanges by the rounds in which two workers swap; the centre counts as another worker."""
    n = max(2, workers)
    known: dict[tuple[int, int, int], float] = {}

    def exchange(worker: int, other: int, there: int, back: int) -> float:
        partner = other if other >= 0 else (worker + 1) % n
        key = worker, partner, max(there, back)
        if key not in known:
            round_: RoundLike = _Swap(n, worker, partner)
            known[key] = float(np.max(price(round_, key[2])))
        return known[key]

    return exchange


class _Swap:
    """Two of n workers take their mean: what an exchange without a round is priced by when nothing else is known."""

    is_idle = False

    def __init__(self, n: int, one: int, other: int) -> None:
        pair = (min(one, other), max(one, other))
        self.sources = tuple(pair if rank in pair else (rank,) for rank in range(n))
        self.groups = tuple(sorted(set(self.sources)))
        self._pair = np.array([pair])

    def waves(self, nbytes: int) -> tuple[tuple[WaveLike, ...], ...]:
        return ((_Both(self._pair, self._pair[:, ::-1], np.full((1, 2), nbytes)),),)

    def bytes_per_worker(self, nbytes: int) -> tuple[int, ...]:
        return tuple(nbytes * (len(read) - 1) for read in self.sources)


class _Both(NamedTuple):
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    nbytes: NDArray[np.int64]
    adds: bool = True
    times: int = 1
