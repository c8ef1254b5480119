"""How weights move between the workers of one run.

The replicas' weights lie in flat buffers; `Transport.mix` carries out one round on them. `Alone` is the world of one,
`SharedMemory` joins processes on one machine, `join` the ranks that torchrun or mpirun started on any number of hosts.
"""

from tenfold.transport.alone import Alone
from tenfold.transport.average import average_in_rank_order, shares
from tenfold.transport.base import Transport
from tenfold.transport.memory.segment import Segment, StopReason, clean_up_orphans
from tenfold.transport.memory.shared_memory import SharedMemory
from tenfold.transport.memory.shared_tensor import SharedTensor
from tenfold.transport.network.join import Joined, join
from tenfold.transport.network.network import Network

__all__ = [
    "Alone",
    "Joined",
    "Network",
    "Segment",
    "SharedMemory",
    "SharedTensor",
    "StopReason",
    "Transport",
    "average_in_rank_order",
    "clean_up_orphans",
    "join",
    "shares",
]
