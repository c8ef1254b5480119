"""Starting failure detection among ranks that can already exchange messages."""

import os
import socket
from typing import Any

from tenfold.transport.network.abstract_network import Network
from tenfold.transport.network.failure_detector import FailureDetector
from tenfold.transport.network.start_watch import START_SECONDS


def start_detector(network: Network, store: Any) -> FailureDetector | None:
    """Return this rank's failure detector, which uses a store that all ranks reach; None without a store.

    All ranks call this together.
    """
    here = socket.gethostname()
    places = network.all_gather((here, os.getpid()))
    if store is None:
        return None
    import torch.distributed as dist

    names = [f"worker {rank} (process {pid} on {host})" for rank, (host, pid) in enumerate(places)]
    store = dist.PrefixStore("failure-detector", store)  # type: ignore[attr-defined]
    detector = FailureDetector(store, network.rank, names)
    network.barrier(START_SECONDS)
    detector.start({rank: pid for rank, (host, pid) in enumerate(places) if host == here and rank != network.rank})
    return detector
