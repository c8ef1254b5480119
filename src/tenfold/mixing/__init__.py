"""Who averages with whom, what the average is used for, and what travels: pure functions of their arguments."""

from tenfold.mixing.ad_psgd import ADPSGD
from tenfold.mixing.allreduce import AllReduce
from tenfold.mixing.base import AsynchronousStrategy, Strategy
from tenfold.mixing.butterfly import Butterfly
from tenfold.mixing.collectives import COLLECTIVES
from tenfold.mixing.compression import COMPRESSIONS
from tenfold.mixing.downpour import Downpour
from tenfold.mixing.easgd import EASGD
from tenfold.mixing.gossip import Gossip
from tenfold.mixing.hierarchical import Hierarchical
from tenfold.mixing.hopping_ring import HoppingRing
from tenfold.mixing.none import NoMixing
from tenfold.mixing.outer import OUTER
from tenfold.mixing.parameter_server import ParameterServer
from tenfold.mixing.ring import Ring
from tenfold.mixing.round import Round
from tenfold.mixing.schedule import LEARNING_RATE_SCALES, due, learning_rate_scale
from tenfold.registry import Registry

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
