"""Hopping ring: a one-sided ring whose reach changes every round."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy, require
from tenfold.mixing.round import Round, shifted_round


@dataclass(frozen=True, kw_only=True)
class HoppingRing(Strategy):
    """x_i <- (x_i + x_{(i - h) mod N}) / 2 with the hop h_t = 2^(t mod ceil(lg N)), or h_t = 1 + t mod (N-1).

    The doubling hop reaches the exact mean after lg N rounds without steps between when N is a power of two.
    """

    name: ClassVar[str] = "hopping-ring"

    hops: str = "doubling"
    """How the hop grows from round to round: "doubling" (1, 2, 4, ...) or "linear" (1, 2, 3, ...)."""

    def __post_init__(self) -> None:
        known = ("doubling", "linear")
        require(self.hops in known, f"hopping-ring: hops is '{self.hops}'; it must be 'doubling' or 'linear'")

    def hop(self, r: int, n: int, /) -> int:
        """Return how far everyone reaches back in round `r`."""
        turn = r % self.period(n)
        return 1 << turn if self.hops == "doubling" else 1 + turn

    def round(self, r: int, n: int, /) -> Round:
        """Return the ring with this round's hop."""
        return shifted_round(n, (-self.hop(r, n),))

    def period(self, n: int, /) -> int:
        """Return ceil(lg n) for doubling hops, n - 1 for linear ones (at least 1)."""
        return max(1, (n - 1).bit_length() if self.hops == "doubling" else n - 1)
