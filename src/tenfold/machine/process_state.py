"""The memory that this process uses and keeps, and whether other processes of this machine are running."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

MEMORY_METRICS = ("memory", "gpu_memory")
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 1 << 30
USUAL = 1 << 25
"""What glibc's threshold grows to by itself when large blocks are freed; that for trimming is twice as high."""


def peak_memory() -> int:
    """Return the most memory that this process has had in use, in bytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def memory_use(device: "torch.device") -> dict[str, float]:
    """Return bytes by the metric's name: the memory of this process, and the most that was allocated on its GPU."""
    found = {"memory": float(psutil.Process().memory_info().rss)}
    if device.type == "cuda":
        import torch

        found["gpu_memory"] = float(torch.cuda.max_memory_allocated(device))
    return found


def keep_freed_memory() -> None:
    """Keep memory that is freed in this process, up to 1 GB, for the next allocation; for our own worker processes.

    Activations are freed and allocated again in every step. By default glibc returns large blocks to the system, which
    clears their pages each time it hands them out: up to a third of a step of `cnn`, and half of an evaluation. Other C
    libraries are left alone.
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
    """Return glibc; None where there is another C library."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            if library.mallopt and library.malloc_trim and library.gnu_get_libc_version:
                return library
    return None
