"""Ring: everyone averages with the neighbours on a circle. (Not the ring all-reduce, which is exact.)"""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy, require
from tenfold.mixing.round import Round, shifted_round


@dataclass(frozen=True, kw_only=True)
class Ring(Strategy):
    """x_i <- (x_{i-1} + x_i + x_{i+1}) / 3, or one-sided x_i <- (x_{i-1} + x_i) / 2."""

    name: ClassVar[str] = "ring"

    sides: int = 2
    """Read from both neighbours (2) or from the one before only (1)."""

    def __post_init__(self) -> None:
        require(self.sides in (1, 2), f"ring: sides is {self.sides}; it must be 1 or 2")

    def round(self, _r: int, n: int, /) -> Round:
        """Return the neighbours on the circle."""
        return shifted_round(n, (-1, 1)[: self.sides])

    def period(self, _n: int, /) -> int | None:
        """Return 1: every round is the same."""
        return 1
