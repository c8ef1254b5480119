"""Gossip: random pairs average, new ones every round."""

import random
from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy
from tenfold.mixing.round import Round


@dataclass(frozen=True, kw_only=True)
class Gossip(Strategy):
    """A random perfect matching each round; pairs take their mean (Boyd et al. 2006). With odd N one replica rests.

    The matching is a function of (seed, round): every worker draws the same one without talking.
    """

    name: ClassVar[str] = "gossip"

    seed: int = 0
    """Another seed draws other pairs."""

    def round(self, r: int, n: int, /) -> Round:
        """Return this round's pairs."""
        # Only random() is promised to give the same numbers in every Python; shuffle() is not.
        draw = random.Random(f"gossip/{self.seed}/{r}")
        keys = [draw.random() for _ in range(n)]
        order = sorted(range(n), key=keys.__getitem__)
        sources: list[tuple[int, ...]] = [(rank,) for rank in range(n)]
        for one, other in zip(order[::2], order[1::2], strict=False):
            sources[one] = sources[other] = (min(one, other), max(one, other))
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
