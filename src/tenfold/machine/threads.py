"""How many threads each worker computes with: threads x workers = cores, never more; and how these threads wait."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from tenfold.errors import MachineError

HIGH_LOAD = 0.75
"""Processes that want to run, for each cpu, from which others take cores from a worker's threads."""
WAIT_POLICY = "OMP_WAIT_POLICY"


def share(budget: int, workers: int, threads: int | None = None, *, oversubscribe: bool = False) -> int:
    """Threads for each worker: those asked for, or an equal share of the budget of cores, max(1, budget // workers)."""
    if workers < 1:
        raise MachineError(f"cannot share {budget} cores among {workers} workers; there must be at least 1")
    if threads is None:
        return max(1, budget // workers)
    if threads < 1:
        raise MachineError(f"cannot give each worker {threads} threads; there must be at least 1")
    if workers * threads > budget and not oversubscribe:
        raise MachineError(
            f"{workers} workers x {threads} threads need {workers * threads} cores, but this process may use {budget}; "
            f"{_what_fits(budget, workers)}, or set oversubscribe to true"
        )
    return threads


def load_is_high() -> bool:
    """Whether other programs use most of the cores: by the mean of the last minute, and still now.

    What this program did itself in the last minute, such as a calibration, does not make a machine busy.
    """
    high = HIGH_LOAD * (os.cpu_count() or 1)
    try:
        if os.getloadavg()[0] < high:
            return False
    except (OSError, AttributeError):
        return False
    running = running_elsewhere()
    return running is None or running >= high


def running_elsewhere(looks: int = 5) -> float | None:
    """Return how many other threads want to run now, the mean of a few looks; None where the system does not say."""
    seen = []
    for _ in range(looks):
        sleep(0.01)
        try:
            text = Path("/proc/loadavg").read_text(encoding="ascii")
        except OSError:
            return None
        seen.append(int(text.split()[3].partition("/")[0]) - 1)  # this thread runs, too
    return max(0.0, sum(seen) / len(seen))


@contextmanager
def wait_policy_for_children() -> Iterator[None]:
    """Let processes that start in this block put waiting threads to sleep, if the machine is busy now.

    By default the threads of OpenMP spin while they wait for one another. On an idle machine that is faster (LeNet-5 on
    16 cores: 5.7 against 7.1 ms a step with 2 threads, 3.1 against 4.7 ms with 8). On a busy one it takes the cores
    from the threads that are waited for (2 cores under a load of 10: 246 against 18 ms with 2 threads). What the user
    has set stays.
    """
    if WAIT_POLICY in os.environ or not load_is_high():
        yield
        return
    os.environ[WAIT_POLICY] = "PASSIVE"
    try:
        yield
    finally:
        del os.environ[WAIT_POLICY]


def set_wait_policy() -> None:
    """Let waiting threads of this process sleep if the machine is busy now; it works until torch is imported."""
    if WAIT_POLICY not in os.environ and load_is_high():
        os.environ[WAIT_POLICY] = "PASSIVE"


def _what_fits(budget: int, workers: int) -> str:
    if workers > budget:
        return f"use at most {budget} workers of 1 thread"
    return f"use at most {budget // workers} threads each"
