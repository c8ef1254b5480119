"""Transports move weights between the workers of a run.

The replicas' weights are in flat buffers; `Transport.mix` carries out one round on them. `SingleWorkerTransport` is for
one worker, `SharedMemoryTransport` for the processes of one machine; `meeting.join` connects the ranks that torchrun or
mpirun started on any number of hosts.
"""

from tenfold.transport.base import SingleWorkerTransport, Transport, average_in_rank_order, compute_shares
from tenfold.transport.network import Network
from tenfold.transport.segment import Segment, SharedTensor, StopReason, clean_up_orphans
from tenfold.transport.shared_memory import SharedMemoryTransport

__all__ = [
    "Network",
    "Segment",
    "SharedMemoryTransport",
    "SharedTensor",
    "SingleWorkerTransport",
    "StopReason",
    "Transport",
    "average_in_rank_order",
    "clean_up_orphans",
    "compute_shares",
]
