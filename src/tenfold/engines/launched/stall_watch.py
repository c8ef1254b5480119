"""Noticing that a launched rank makes no progress although its process is alive."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tenfold.errors import WorkerLost
from tenfold.launch.detect import World
from tenfold.machine.liveness import LOOK_SECONDS, LifeWatch, WorkerProgress, describe_stall
from tenfold.machine.rank_guard import start_guard
from tenfold.transport import Network
from tenfold.transport.network.abstract_network import LEAVE_SECONDS
from tenfold.transport.network.startup_store import REPORT_STOP


@contextmanager
def watch_progress(world: World, network: Network, stall_after: float | None) -> Iterator[WorkerProgress]:
    """Yield what this rank publishes its progress to; a thread tells all ranks when there is none for too long.

    The thread that trains may be blocked for ever then, so the process ends when the others had time to learn why. If
    it keeps Python's lock, so that no thread runs, the rank's guard ends the process.
    """
    guard, over = start_guard(world, REPORT_STOP), threading.Event()
    progress = guard.watch_progress(stall_after) if guard is not None else WorkerProgress()
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
        progress.clear()


def _watch(network: Network, progress: WorkerProgress, stall_after: float | None, over: threading.Event) -> None:
    watch = LifeWatch([progress], stall_after)
    while not over.wait(LOOK_SECONDS):
        now = time.monotonic()
        watch.look(now)
        if stalled := watch.find_stalled(now, {0: os.getpid()}):
            name = f"worker {network.rank} (process {os.getpid()} on {socket.gethostname()})"
            network.report_failure(WorkerLost(network.rank, f"{name} {describe_stall(stalled[0], stall_after)}"))
            if not over.wait(LEAVE_SECONDS):
                os._exit(1)
