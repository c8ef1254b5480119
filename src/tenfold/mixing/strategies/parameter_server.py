"""Synchronous parameter server: workers push, the server averages, workers pull."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy
from tenfold.mixing.collectives import Server
from tenfold.mixing.round import Round, exact_round


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Strategy):
    """The exact mean, as with all-reduce, by another algorithm with another cost (see `Server`)."""

    name: ClassVar[str] = "parameter-server"
    always_exact: ClassVar[bool] = True

    servers: int = 1
    """Servers that hold an equal share of the weights each."""

    def __post_init__(self) -> None:
        Server(self.servers)

    def round(self, _r: int, n: int, /) -> Round:
        """Return the exact mean over all, by way of the servers."""
        return exact_round(n, Server(self.servers))

    def final(self, n: int, /) -> Round:
        """Return the exact mean over all, by way of the servers."""
        return self.round(0, n)

    def period(self, _n: int, /) -> int | None:
        """Return 1: every round is the same."""
        return 1
