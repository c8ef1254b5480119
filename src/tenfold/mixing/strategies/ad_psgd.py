"""Asynchronous decentralised SGD: a worker averages with a random other whenever it is ready."""

import random
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tenfold.mixing.base import AsynchronousStrategy


@dataclass(frozen=True, kw_only=True)
class ADPSGD(AsynchronousStrategy):
    """x_i, x_j <- (x_i + x_j) / 2 after a step of i, j drawn at random (Lian et al. 2018).

    Even ranks ask and odd ranks answer, so that two workers never wait for each other in a circle. The gradient that
    an answering worker adds next was computed before the average: it may be stale.
    """

    name: ClassVar[str] = "ad-psgd"

    seed: int = 0
    """Another seed draws other partners."""

    def partner(self, rank: int, k: int, n: int) -> int | None:
        """Return whom `rank` asks after its k-th step: an odd rank; None for a rank that only answers."""
        answering = n // 2
        if rank % 2 or not answering:
            return None
        return 1 + 2 * int(answering * random.Random(f"ad-psgd/{self.seed}/{rank}/{k}").random())

    def exchange(self, x: Tensor, y: Tensor) -> None:
        """Give both replicas their mean, in place."""
        x.add_(y).mul_(0.5)
        y.copy_(x)
