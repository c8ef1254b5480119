"""Liveness: the progress that workers publish, and whether processes of this machine are running."""

import ctypes
import math
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import torch


MEMORY_METRICS = ("memory", "gpu_memory")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 1 << 30
USUAL = 1 << 25
"""The size to which glibc raises its mmap threshold when large blocks are freed; its trim threshold is twice that."""


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def memory_use(device: "torch.device") -> dict[str, float]:
    """Return the memory of this process and the peak memory on its GPU, in bytes, by the name of the metric."""
    use = {"memory": float(psutil.Process().memory_info().rss)}
    if device.type == "cuda":
        import torch

        use["gpu_memory"] = float(torch.cuda.max_memory_allocated(device))
    return use


def keep_freed_memory() -> None:
    """Keep memory that is freed in this process, up to 1 GB, for the next allocation; for processes that train.

    Activations are freed and allocated again in every step. By default glibc returns large blocks to the system, which
    clears their pages before each reuse: up to a third of a step of `cnn`, and half of an evaluation. The frequency
    depends on the addresses of blocks, and differs between runs of one program. Other C libraries are not changed.
    """
    _set_thresholds(KEPT, KEPT)


@contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Keep freed memory while the block lasts, in a user's process; afterwards return it to the system."""
    keep_freed_memory()
    try:
        yield
    finally:
        _set_thresholds(USUAL, 2 * USUAL)
        library = _glibc()
        if library is not None:
            library.malloc_trim(0)


def is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal; one that a debugger holds was not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used; 0 for one that has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def _set_thresholds(mmap: int, trim: int) -> None:
    library = _glibc()
    if library is not None:
        library.mallopt(MMAP_THRESHOLD, mmap)
        library.mallopt(TRIM_THRESHOLD, trim)


def _glibc() -> ctypes.CDLL | None:
    """Return glibc; None if there is another C library."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            if library.mallopt and library.malloc_trim and library.gnu_get_libc_version:
                return library
    return None


# Detect stopped processes and workers without progress.
#
# The kernel is asked whether a process runs, not a thread of that process, because a call into C may hold Python's
# global lock for minutes while the process is healthy. Workers publish their progress in shared memory. `LifeWatch`
# watches worker processes, the processes of folds, and ranks.

STOPPED_SECONDS = 4.0
"""How long a worker or a rank may be stopped by a signal before it counts as lost."""
LOOK_SECONDS = 0.5
"""Seconds between two checks of the watched processes."""
GAP_SECONDS = 2.0
"""A longer time between two checks means that the watching process itself was paused or busy."""
SHORTEST_LIMIT_SECONDS = 60.0
"""Seconds without progress that are always allowed, unless the experiment sets a limit."""
SLOW_LIMIT_SECONDS = 600.0
"""Seconds allowed in phases that may take long without a step: startup, the first steps, saving."""
LIMIT_FACTOR = 20
"""Maximum time without progress, as a multiple of the longest interval so far."""
FIRST_STEPS = 3
"""Number of first steps, after which further steps should take about as long."""
BUSY_SECONDS = 0.1
"""Processor time between two checks that shows that a process is working."""
BEGAN, AT, COUNT, LONGEST, SLOW = range(5)
FIELDS = 5


class WorkerProgress:
    """One worker's progress, in memory shared with its watcher: when its last step was, and how long steps took."""

    def __init__(self, floats: Any = None, process: int = 0) -> None:
        """Use the fields of one process in a list of floats; by default those of a worker that nobody watches."""
        self._floats = [0.0] * FIELDS if floats is None else floats
        self._first = FIELDS * process

    def begin(self) -> None:
        """Publish that the process runs its own code."""
        self._floats[self._first + BEGAN] = 1.0

    def mark(self) -> None:
        """Publish that a step or the evaluation of a batch is done."""
        floats, first, now = self._floats, self._first, time.monotonic()
        elapsed = now - floats[first + AT]
        if floats[first + COUNT] >= FIRST_STEPS and elapsed > floats[first + LONGEST]:
            floats[first + LONGEST] = elapsed
        floats[first + COUNT] += 1
        floats[first + AT] = now

    def mark_waiting(self) -> None:
        """Publish that this worker waits for others, so it does not count as stalled; called repeatedly."""
        self._floats[self._first + AT] = time.monotonic()

    @contextmanager
    def allow_more_time(self) -> Iterator[None]:
        """Raise the limit on time without progress during this block."""
        self._floats[self._first + SLOW] = 1.0
        self.mark_waiting()
        try:
            yield
        finally:
            self.mark_waiting()
            self._floats[self._first + SLOW] = 0.0

    def clear(self) -> None:
        """Publish that this worker is idle, so no progress is expected."""
        for field in (AT, COUNT, LONGEST, SLOW):
            self._floats[self._first + field] = 0.0

    def reset(self) -> None:
        """Forget everything, for the process that replaces this one."""
        self.clear()
        self._floats[self._first + BEGAN] = 0.0

    def get(self, field: int) -> float:
        """Return one of the published numbers; all are 0 for a worker that publishes nothing."""
        return float(self._floats[self._first + field])


class LifeWatch:
    """Detects stopped processes, and workers without progress for too long.

    Call `look` about every `LOOK_SECONDS`. After a gap between two calls all time limits start again, because this
    process was paused, perhaps together with the others, which may continue later.
    """

    def __init__(self, workers: Sequence[WorkerProgress] = (), stall_after: float | None = None) -> None:
        """Watch the progress of these workers; `stall_after` is the limit in seconds, or None to derive it."""
        self._workers = workers
        self.stall_after = stall_after
        self._looked: float | None = None
        self._since = 0.0
        self._stopped: dict[int, float] = {}
        self._busy: dict[int, tuple[float, float]] = {}
        """For each process, its processor time at the last check, and when an increase was last seen."""

    def look(self, now: float) -> bool:
        """Begin a check; return whether this process was paused since the last one, so all time limits restart."""
        held_up = self._looked is not None and now - self._looked > GAP_SECONDS
        self._looked = now
        if held_up:
            self._since = now
            self._stopped = {}
        return held_up

    def stopped_for(self, pids: Iterable[int], now: float) -> dict[int, float]:
        """Return the processes stopped by a signal, with the seconds since this was first seen."""
        self._stopped = {pid: self._stopped.get(pid, now) for pid in pids if is_stopped(pid)}
        return {pid: now - since for pid, since in self._stopped.items()}

    def find_stalled(self, now: float, pids: Mapping[int, int] | None = None) -> dict[int, float]:
        """Return the positions of stalled workers, with the limit that each has exceeded.

        `pids` are their processes. At startup and while saving, a process that uses the processor makes progress: it
        may unpickle millions of objects.
        """
        last = [worker.get(AT) for worker in self._workers]  # read once: a worker may clear it at any moment
        ages = {}
        for index, at in enumerate(last):
            if at:
                pid = (pids or {}).get(index)
                busy = self._last_busy(pid, now) if pid is not None and self._workers[index].get(SLOW) else 0.0
                ages[index] = now - max(at, self._since, min(busy, at + SLOW_LIMIT_SECONDS))
        limits = {index: self._allowed(self._workers[index]) for index in ages}
        if not any(ages[index] > limits[index] for index in limits):
            return {}
        # Waiting workers publish that they wait, so those that are close to the limit are stalled as well.
        return {index: limit for index, limit in limits.items() if ages[index] > 0.75 * limit}

    def _last_busy(self, pid: int, now: float) -> float:
        """Return when a process was last seen using the processor between two checks; 0 if never."""
        used, (before, busy) = cpu_seconds(pid), self._busy.get(pid, (math.inf, 0.0))
        if used > before + BUSY_SECONDS:
            before, busy = used, now
        self._busy[pid] = min(before, used), busy
        return busy

    def _allowed(self, worker: WorkerProgress) -> float:
        slow = bool(worker.get(SLOW))
        if self.stall_after is not None:
            return max(self.stall_after, SHORTEST_LIMIT_SECONDS) if slow else self.stall_after
        longest = max(other.get(LONGEST) for other in self._workers)
        derived = max(SHORTEST_LIMIT_SECONDS, LIMIT_FACTOR * longest)
        return max(derived, SLOW_LIMIT_SECONDS) if slow or worker.get(COUNT) < FIRST_STEPS else derived


def describe_stall(seconds: float, stall_after: float | None, also: str = "") -> str:
    """Return the text that follows the name of a worker without progress for `seconds`."""
    value = "derived from the times of steps" if stall_after is None else f"{stall_after:g}"
    return (
        f"has made no progress for {seconds:.3g} s{also}; it may wait for a lock or for data. "
        f"If a step can take that long, set machine.stall_after ({value}) to more seconds"
    )
