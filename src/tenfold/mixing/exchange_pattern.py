"""Which strategies exchange exactly the same for a given number of workers."""

from typing import Any

from tenfold.mixing.base import AsynchronousStrategy, Strategy

ROUNDS = 32
"""How many rounds are compared; the patterns of all strategies repeat within these, or never."""


def exchange_pattern(strategy: Strategy, workers: int, *, priced: bool = False) -> Any:
    """Return a value that two strategies have in common if they exchange the same in every round.

    Where exchanges are `priced`, on a virtual cluster, they must also take the means of groups by the same algorithm.
    No other strategy has the value of an asynchronous one.
    """
    if isinstance(strategy, AsynchronousStrategy):
        return strategy
    rounds = [*(strategy.round(r, workers) for r in range(ROUNDS)), strategy.final(workers)]
    return tuple((one.sources, one.collective if priced else None) for one in rounds)
