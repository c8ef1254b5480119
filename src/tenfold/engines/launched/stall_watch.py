"""Noticing that a launched rank makes no progress although its process is alive."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tenfold.errors import WorkerLost
from tenfold.transport import Network
from tenfold.transport.network.abstract_network import LEAVE_SECONDS
from tenfold.workers.pool.worker_reports import StallWatch, WorkerProgress, describe_stall

LOOK_SECONDS = 0.5


@contextmanager
def watch_progress(network: Network, stall_after: float | None) -> Iterator[WorkerProgress]:
    """Yield what this rank publishes its progress to; a thread tells all ranks when there is none for too long.

    The thread that trains may be blocked for ever then, so the process ends when the others had time to learn why.
    """
    progress, over = WorkerProgress(), threading.Event()
    network.waiting = progress.mark_waiting
    thread = threading.Thread(
        target=_watch, args=(network, progress, stall_after, over), daemon=True, name="tenfold-stall-watch"
    )
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        network.waiting = None


def _watch(network: Network, progress: WorkerProgress, stall_after: float | None, over: threading.Event) -> None:
    watch, looked = StallWatch([progress], stall_after), time.monotonic()
    while not over.wait(LOOK_SECONDS):
        now = time.monotonic()
        if now - looked > 4 * LOOK_SECONDS:  # this process itself was paused
            watch.restart(now)
        looked = now
        if stalled := watch.find_stalled(now):
            name = f"worker {network.rank} (process {os.getpid()} on {socket.gethostname()})"
            network.report_failure(WorkerLost(network.rank, f"{name} {describe_stall(stalled[0], stall_after)}"))
            if not over.wait(LEAVE_SECONDS):
                os._exit(1)
