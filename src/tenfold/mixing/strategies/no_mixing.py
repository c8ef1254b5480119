"""No mixing: replicas train independently and are averaged once, at the end."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy
from tenfold.mixing.round import Round, idle_round


@dataclass(frozen=True, kw_only=True)
class NoMixing(Strategy):
    """x_i stays x_i; only the final round takes the mean (one-shot averaging)."""

    name: ClassVar[str] = "none"

    def round(self, _r: int, n: int, /) -> Round:
        """Return an idle round."""
        return idle_round(n)

    def period(self, _n: int, /) -> int | None:
        """Return 1: every round is the same."""
        return 1
