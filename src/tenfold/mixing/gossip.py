"""Gossip: random pairs average, new ones every round."""

import random
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tenfold.mixing.base import Strategy
from tenfold.mixing.round import Round

MANY = 4096
"""From here on it is worth while to hand the drawing over to NumPy."""


@dataclass(frozen=True, kw_only=True)
class Gossip(Strategy):
    """A random perfect matching each round; pairs take their mean (Boyd et al. 2006). With odd N one replica rests.

    The matching is a function of (seed, round): every worker draws the same one without talking.
    """

    name: ClassVar[str] = "gossip"

    seed: int = 0
    """Another seed draws other pairs."""

    def matching(self, r: int, n: int, /) -> NDArray[np.int64]:
        """Return this round's pairs, an array [n // 2, 2]."""
        order = np.argsort(_uniform(random.Random(f"gossip/{self.seed}/{r}"), n), kind="stable")
        return order[: n // 2 * 2].reshape(-1, 2)

    def round(self, r: int, n: int, /) -> Round:
        """Return this round's pairs; who has none rests."""
        sources: list[tuple[int, ...]] = [(rank,) for rank in range(n)]
        for one, other in np.sort(self.matching(r, n)).tolist():
            sources[one] = sources[other] = (one, other)
        return Round(tuple(sources))

    def period(self, n: int, /) -> int | None:
        """Return None: the pairs are drawn anew for ever (two replicas have no choice)."""
        return None if n > 2 else 1

    def _sentence(self, n: int, /) -> str:
        if n == 2:
            return "Two replicas take their exact mean every round."
        pairs = "1 pair" if n == 3 else f"{n // 2} pairs"
        rests = ", and one rests" if n % 2 else ""
        return f"Every round, {pairs} drawn at random from the {n} replicas average{rests}."


def _uniform(draw: random.Random, n: int) -> NDArray[np.float64]:
    """Return n numbers of `draw.random()`, the only draw that is promised to be the same in every Python."""
    if n < MANY:
        return np.array([draw.random() for _ in range(n)])
    *key, position = draw.getstate()[1]
    faster = np.random.RandomState()  # the same generator, and it makes the same fractions from its words
    faster.set_state(("MT19937", np.array(key, dtype=np.uint32), position, 0, 0.0))
    return faster.random_sample(n)
