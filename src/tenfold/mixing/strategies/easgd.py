"""Elastic averaging: a spring between each replica and a common centre."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import AsynchronousStrategy, require
from tenfold.mixing.exchange import CENTRE, Exchange, ExchangeVectors


@dataclass(frozen=True, kw_only=True)
class EASGD(AsynchronousStrategy):
    """Every tau steps: d = alpha (x_i - centre); x_i <- x_i - d; centre <- centre + d (Zhang et al. 2015)."""

    name: ClassVar[str] = "easgd"
    has_centre: ClassVar[bool] = True

    alpha: float | None = None
    """How hard the spring pulls; stable for N x alpha up to 1. Default: 0.9 / N, as in the paper."""

    tau: int = 10
    """Steps between two exchanges of a worker."""

    def __post_init__(self) -> None:
        alpha = self.alpha
        require(alpha is None or 0 < alpha <= 1, f"easgd: alpha is {alpha}; it must be more than 0 and at most 1")
        require(self.tau >= 1, f"easgd: tau is {self.tau}; it must be at least 1")

    def exchange(self, _rank: int, step: int, _n: int, /) -> Exchange | None:
        """Exchange weights with the centre every tau steps."""
        return Exchange(CENTRE) if step % self.tau == 0 else None

    def strength(self, n: int) -> float:
        """Return alpha among `n` replicas."""
        return self.alpha if self.alpha is not None else 0.9 / n

    def apply(self, _exchange: Exchange, vectors: ExchangeVectors, n: int, /) -> None:
        """Pull the replica and the centre towards each other; their sum is kept."""
        pull = (vectors.mine - vectors.theirs).mul_(self.strength(n))
        vectors.mine.sub_(pull)
        vectors.theirs.add_(pull)
