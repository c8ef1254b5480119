"""What this process and others of this machine are doing."""

import sys
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

MEMORY_METRICS = ("memory", "gpu_memory")


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


def is_alive(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
