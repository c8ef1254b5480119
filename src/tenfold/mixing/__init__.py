"""Who averages with whom, what the average is used for, and what travels: pure functions of their arguments."""

from tenfold.common import catalog
from tenfold.common.registry import Registry
from tenfold.mixing.base import AsynchronousStrategy, Strategy
from tenfold.mixing.collectives import COLLECTIVES
from tenfold.mixing.compression import Compressor
from tenfold.mixing.outer import OuterOptimizer
from tenfold.mixing.round import Round
from tenfold.mixing.round_schedule import due

STRATEGIES: Registry[type[Strategy]] = catalog.STRATEGIES
OUTER: Registry[type[OuterOptimizer]] = catalog.OUTER
COMPRESSIONS: Registry[type[Compressor]] = catalog.COMPRESSIONS

__all__ = [
    "COLLECTIVES",
    "COMPRESSIONS",
    "OUTER",
    "STRATEGIES",
    "AsynchronousStrategy",
    "Round",
    "Strategy",
    "due",
]
