"""Elastic averaging: a spring between each replica and a common centre."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tenfold.mixing.base import AsynchronousStrategy, require


@dataclass(frozen=True, kw_only=True)
class EASGD(AsynchronousStrategy):
    """Every tau steps: d = alpha (x_i - centre); x_i <- x_i - d; centre <- centre + d (Zhang et al. 2015)."""

    name: ClassVar[str] = "easgd"
    has_centre: ClassVar[bool] = True

    alpha: float | None = None
    """How hard the spring pulls; stable for N x alpha up to 1. Unset: 0.9 / N, as in the paper."""

    tau: int = 10
    """Steps between two exchanges of a worker."""

    def __post_init__(self) -> None:
        alpha = self.alpha
        require(alpha is None or 0 < alpha <= 1, f"easgd: alpha is {alpha}; it takes more than 0 and at most 1")
        require(self.tau >= 1, f"easgd: tau is {self.tau}; it takes at least 1")

    def exchanges(self, steps: int) -> bool:
        """Say whether a worker meets the centre after its `steps`-th step (1, 2, ...)."""
        return steps % self.tau == 0

    def strength(self, n: int) -> float:
        """Return alpha among `n` replicas."""
        return self.alpha if self.alpha is not None else 0.9 / n

    def exchange(self, x: Tensor, centre: Tensor, n: int) -> None:
        """Let one of `n` replicas and the centre pull at each other, in place; their sum is kept."""
        pull = (x - centre).mul_(self.strength(n))
        x.sub_(pull)
        centre.add_(pull)
