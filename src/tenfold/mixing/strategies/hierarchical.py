"""Hierarchical: exact inside each node every round, among all nodes now and then."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import Strategy, require
from tenfold.mixing.round import Round, exact_round, group_round


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Strategy):
    """Ranks 0..s-1 share the first node, s..2s-1 the next, ...; the last node may be smaller.

    Replicas take the exact mean of their node every round, and that of everyone each `outer_every` rounds: with
    `sync_every` = h1 steps between rounds, nodes meet every h2 = h1 x outer_every steps.
    """

    name: ClassVar[str] = "hierarchical"

    node_size: int = 4
    """Replicas in a node."""

    outer_every: int = 4
    """Rounds from one meeting of all nodes to the next."""

    def __post_init__(self) -> None:
        require(self.node_size >= 1, f"hierarchical: node_size is {self.node_size}; it must be at least 1")
        require(self.outer_every >= 1, f"hierarchical: outer_every is {self.outer_every}; it must be at least 1")

    def round(self, r: int, n: int, /) -> Round:
        """Return the nodes as groups, or all in one group when the nodes meet."""
        if (r + 1) % self.outer_every == 0:
            return exact_round(n)
        return group_round(tuple(tuple(range(n)[at : at + self.node_size]) for at in range(0, n, self.node_size)))

    def period(self, _n: int, /) -> int | None:
        """Return `outer_every`."""
        return self.outer_every
