"""How many files this process may have open, and whether that is enough for its workers."""

import psutil

from tenfold.errors import MachineError

PER_WORKER = 4
"""Files for each worker process: its connection, two ends of pipes that show its death, and one in passing."""
SPARE = 16
"""For shared memory, the store of runs and imports."""


def limit() -> int | None:
    """The largest number of open files; None where there is no limit."""
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def workers_within(most: int) -> int:
    """For how many workers so many open files are enough, beside those that are open now."""
    return max(0, (most - _open() - SPARE) // PER_WORKER)


def check(workers: int) -> None:
    """Refuse more worker processes than the limit allows."""
    most = limit()
    if most is not None and workers > workers_within(most):
        needed = _open() + SPARE + PER_WORKER * workers
        raise MachineError(
            f"{workers} workers need about {needed} open files, but the limit is {most}; "
            f"raise it with `ulimit -n {max(1024, 2 * needed)}`, or use at most {workers_within(most)} workers"
        )


def _open() -> int:
    """The number of files that are open in this process."""
    process = psutil.Process()
    return int(process.num_fds()) if hasattr(process, "num_fds") else 0
