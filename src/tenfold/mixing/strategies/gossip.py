"""Gossip: random pairs average, new ones every round."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tenfold.mixing.base import Strategy
from tenfold.mixing.round import Round


@dataclass(frozen=True, kw_only=True)
class Gossip(Strategy):
    """A random perfect matching each round; pairs take their mean (Boyd et al. 2006). With odd N one replica rests.

    The matching is a function of (seed, round): every worker draws the same one without communicating.
    """

    name: ClassVar[str] = "gossip"

    seed: int = 0
    """Another seed draws other pairs."""

    def matching(self, r: int, n: int, /) -> NDArray[np.int64]:
        """Return this round's pairs, an array [n // 2, 2].

        The replicas are sorted by words of PCG64, which are promised to be the same in every NumPy; the last bits of
        each word give way to the replica's number, so no two are equal and any sort finds the same order.
        """
        bits = np.uint64(n.bit_length())
        words = np.random.PCG64([self.seed % 2**64, r]).random_raw(n)
        order = np.sort((words << bits) | np.arange(n, dtype=np.uint64)) & np.uint64((1 << n.bit_length()) - 1)
        return order[: n // 2 * 2].astype(np.int64).reshape(-1, 2)

    def round(self, r: int, n: int, /) -> Round:
        """Return this round's pairs; a replica without a partner rests."""
        sources: list[tuple[int, ...]] = [(rank,) for rank in range(n)]
        for one, other in np.sort(self.matching(r, n)).tolist():
            sources[one] = sources[other] = (one, other)
        return Round(tuple(sources))

    def period(self, n: int, /) -> int | None:
        """Return None: the pairs never repeat (two replicas have no choice)."""
        return None if n > 2 else 1
