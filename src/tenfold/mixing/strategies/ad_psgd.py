"""Asynchronous decentralised SGD: a worker averages with a random other whenever it is ready."""

import random
from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import AsynchronousStrategy
from tenfold.mixing.exchange import Exchange, ExchangeVectors


@dataclass(frozen=True, kw_only=True)
class ADPSGD(AsynchronousStrategy):
    """x_i, x_j <- (x_i + x_j) / 2 after a step of i, j drawn at random (Lian et al. 2018).

    Even ranks ask and odd ranks answer, so that two workers never wait for each other in a circle. The gradient that
    an answering worker adds next was computed before the average: it may be stale.
    """

    name: ClassVar[str] = "ad-psgd"

    seed: int = 0
    """Another seed draws other partners."""

    def exchange(self, rank: int, step: int, n: int, /) -> Exchange | None:
        """Average an even rank with a random odd one after every step; odd ranks only answer."""
        answering = n // 2
        if rank % 2 or not answering:
            return None
        drawn = random.Random(f"ad-psgd/{self.seed}/{rank}/{step}").random()
        return Exchange(1 + 2 * int(answering * drawn))

    def apply(self, _exchange: Exchange, vectors: ExchangeVectors, _n: int, /) -> None:
        """Give both replicas their mean."""
        vectors.mine.add_(vectors.theirs).mul_(0.5)
        vectors.theirs.copy_(vectors.mine)
