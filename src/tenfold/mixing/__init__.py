"""Averaging as pure functions: strategies, outer optimizers, compression, and the messages of a round."""

from typing import TYPE_CHECKING

from tenfold import registry
from tenfold.mixing.round import COLLECTIVES, Round, group_round, is_round_due
from tenfold.mixing.strategies import AsynchronousStrategy, Strategy
from tenfold.registry import Registry

if TYPE_CHECKING:  # both need torch, which commands that only read runs do not import
    from tenfold.mixing.compression import Compressor
    from tenfold.mixing.outer import OuterOptimizer

STRATEGIES: Registry[type[Strategy]] = registry.STRATEGIES
OUTER: "Registry[type[OuterOptimizer]]" = registry.OUTER
COMPRESSIONS: "Registry[type[Compressor]]" = registry.COMPRESSIONS

__all__ = [
    "COLLECTIVES",
    "COMPRESSIONS",
    "OUTER",
    "STRATEGIES",
    "AsynchronousStrategy",
    "Round",
    "Strategy",
    "group_round",
    "is_round_due",
]
