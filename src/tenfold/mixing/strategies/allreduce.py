"""All-reduce: everyone takes the mean of everyone, every round."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy
from tenfold.mixing.collectives import COLLECTIVES
from tenfold.mixing.round import Round, exact_round


@dataclass(frozen=True, kw_only=True)
class AllReduce(Strategy):
    """x_i <- sum_j w_j x_j with w_j = samples of j / all samples: the exact mean."""

    name: ClassVar[str] = "allreduce"
    always_exact: ClassVar[bool] = True

    algorithm: str = "ring"
    """The algorithm: ring, tree, recursive-doubling, halving-doubling or server. Changes the time only."""

    def __post_init__(self) -> None:
        COLLECTIVES[self.algorithm]

    def round(self, _r: int, n: int, /) -> Round:
        """Return the exact mean over all."""
        return exact_round(n, COLLECTIVES[self.algorithm])

    def final(self, n: int, /) -> Round:
        """Return the exact mean over all."""
        return self.round(0, n)

    def period(self, _n: int, /) -> int | None:
        """Return 1: every round is the same."""
        return 1
