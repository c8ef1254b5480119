"""Who averages with whom, what the average is used for, and what travels: pure functions of their arguments."""

from tenfold.common.registry import Registry
from tenfold.mixing.base import AsynchronousStrategy, Strategy
from tenfold.mixing.collectives import COLLECTIVES
from tenfold.mixing.compression import COMPRESSIONS
from tenfold.mixing.learning_rate import LEARNING_RATE_SCALES, due, learning_rate_scale
from tenfold.mixing.outer import OUTER
from tenfold.mixing.round import Round
from tenfold.mixing.strategies.ad_psgd import ADPSGD
from tenfold.mixing.strategies.allreduce import AllReduce
from tenfold.mixing.strategies.butterfly import Butterfly
from tenfold.mixing.strategies.downpour import Downpour
from tenfold.mixing.strategies.easgd import EASGD
from tenfold.mixing.strategies.gossip import Gossip
from tenfold.mixing.strategies.hierarchical import Hierarchical
from tenfold.mixing.strategies.hopping_ring import HoppingRing
from tenfold.mixing.strategies.none import NoMixing
from tenfold.mixing.strategies.parameter_server import ParameterServer
from tenfold.mixing.strategies.ring import Ring

STRATEGIES: Registry[type[Strategy]] = Registry(
    "strategy",
    {
        member.name: member
        for member in (
            AllReduce,
            Butterfly,
            Ring,
            HoppingRing,
            Gossip,
            Hierarchical,
            ParameterServer,
            NoMixing,
            Downpour,
            EASGD,
            ADPSGD,
        )
    },
)

__all__ = [
    "COLLECTIVES",
    "COMPRESSIONS",
    "LEARNING_RATE_SCALES",
    "OUTER",
    "STRATEGIES",
    "AsynchronousStrategy",
    "Round",
    "Strategy",
    "due",
    "learning_rate_scale",
]
