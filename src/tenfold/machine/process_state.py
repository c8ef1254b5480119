"""What other processes of this machine are doing."""

import psutil


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
