"""Rounds as a clock sees them: who waits for whom, and what it costs then."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from tenfold.cluster.hardware import Floats, RoundPrice
from tenfold.mixing import Round, Strategy
from tenfold.mixing.collectives import Integers

FEW = 4
"""Up to this group size, comparing members pairwise is faster than sorting workers by groups."""
KEPT = 128
"""Rounds of a pattern that are kept in this form."""


@dataclass(frozen=True, eq=False)
class TimedRound:
    """One round: T_i <- max over those that i waits for, then + price. `now` is an array [repeats, workers]."""

    price: float | Floats = 0.0
    everybody: bool = False
    """Whether all wait for the latest."""
    partners: Integers | None = None
    """Rows of ranks: worker i waits for partners[0, i], partners[1, i], ..."""
    order: Integers | None = None
    """The workers sorted by group, for groups that begin at `starts` and have `sizes` members."""
    starts: Integers | None = None
    sizes: Integers | None = None

    @property
    def is_idle(self) -> bool:
        """No worker waits for another."""
        return not self.everybody and self.partners is None and self.order is None

    def wait(self, now: Floats) -> Floats:
        """Return when each worker's round begins, given when each is ready."""
        if self.everybody:
            return np.broadcast_to(now.max(axis=1, keepdims=True), now.shape)
        if self.partners is not None:
            begin = now.copy()
            for partner in self.partners:
                np.maximum(begin, now.take(partner, axis=1), out=begin)
            return begin
        if self.order is not None and self.starts is not None and self.sizes is not None:
            latest = np.maximum.reduceat(now.take(self.order, axis=1), self.starts, axis=1)
            begin = np.empty_like(now)
            begin[:, self.order] = np.repeat(latest, self.sizes, axis=1)
            return begin
        return now


IDLE = TimedRound()


def timed_round(round_: Round, price: float | Floats) -> TimedRound:
    """Return a round that is not idle in the clock's form."""
    groups = round_.groups
    if groups is None:
        return TimedRound(price, partners=_neighbours(round_.sources))
    if len(groups) == 1:
        return TimedRound(price, everybody=True)
    sizes = np.array([len(group) for group in groups])
    order = _joined(groups)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    if sizes.max() > FEW:
        return TimedRound(price, order=order, starts=starts, sizes=sizes)
    first, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    place = np.arange(len(order)) - first
    partners = np.empty((sizes.max() - 1, len(order)), dtype=np.int64)
    for k, row in enumerate(partners, start=1):
        row[order] = order[first + (place + k) % size]
    return TimedRound(price, partners=partners)


def _joined(groups: tuple[tuple[int, ...], ...]) -> Integers:
    return np.fromiter((rank for group in groups for rank in group), dtype=np.int64)


def _neighbours(sources: tuple[tuple[int, ...], ...]) -> Integers:
    """Return for each worker those it reads and those that read it, one per row; missing ones are the worker itself."""
    n = len(sources)
    reader = np.repeat(np.arange(n), [len(read) for read in sources])
    read = _joined(sources)
    pairs = np.unique(np.concatenate([reader * n + read, read * n + reader]))
    one, other = np.divmod(pairs[pairs // n != pairs % n], n)
    place = np.arange(len(one)) - np.searchsorted(one, one)
    partners = np.tile(np.arange(n), (place.max() + 1, 1))
    partners[place, one] = other
    return partners


@runtime_checkable
class _Matching(Protocol):
    """A strategy of pairs that can return them as an array, which is faster than as a round."""

    def matching(self, r: int, n: int, /) -> Integers: ...


class StrategyRounds:
    """The rounds of a strategy, each priced and put into the clock's form once."""

    def __init__(self, strategy: Strategy, workers: int, nbytes: int, price: RoundPrice) -> None:
        self._strategy, self._n, self._nbytes, self._price = strategy, workers, nbytes, price
        self._period = strategy.period(workers)
        self._kept: dict[int, TimedRound] = {}
        is_uniform = getattr(price, "is_uniform", False)
        self._matching = strategy if is_uniform and isinstance(strategy, _Matching) and workers > 2 else None
        self._pair_price = 0.0 if self._matching is None else float(np.max(price(strategy.round(0, workers), nbytes)))

    def __getitem__(self, r: int) -> TimedRound:
        """Return round r = 0, 1, ..."""
        if self._matching is not None:
            return self._matched(self._matching.matching(r, self._n))
        key = r if self._period is None else r % self._period
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            self._kept[key] = self._priced(self._strategy.round(r, self._n))
        return self._kept[key]

    @property
    def final(self) -> TimedRound:
        """The round that gives all replicas their mean."""
        return self._priced(self._strategy.final(self._n))

    @property
    def always(self) -> TimedRound | None:
        """The only round of the strategy, if it has one that involves all workers and costs each the same."""
        only = self[0] if self._period == 1 else None
        return only if only is not None and only.everybody and isinstance(only.price, float) else None

    def _priced(self, round_: Round) -> TimedRound:
        return IDLE if round_.is_idle else timed_round(round_, self._price(round_, self._nbytes))

    def _matched(self, pairs: Integers) -> TimedRound:
        partner = np.arange(self._n)
        partner[pairs] = pairs[:, ::-1]
        rests = self._n % 2 == 1
        price = self._pair_price * (partner != np.arange(self._n)) if rests else self._pair_price
        return TimedRound(price, partners=partner[None])
