"""The claim on a run: a kernel lock, and a lease for file systems that do not share locks between machines.

The process that trains a run holds a kernel lock on the file `lock` in the run's folder. The kernel releases the lock
when the process dies for any reason, independent of host names and clocks. Not every shared file system propagates
locks to other machines, so the holder also touches the file every few seconds. Another machine that acquires the lock
watches the file for a while before it concludes that the holder is gone.
"""

import errno
import fcntl
import os
import stat
import threading
import time
import uuid
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from tenfold.common.files import short_path
from tenfold.errors import RunTakenOver

LOCK = "lock"
REGULAR = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open the lock file that guard against a pipe or a link in its place."""
TOUCH_SECONDS = 2.0
"""How often the holder touches the file."""
WATCH_SECONDS = 7.0
"""How long a file must stay untouched before its holder on another machine is considered gone."""
FRESH_SECONDS = 30.0
"""A file touched within this time is shown as held; used only for lists of runs, which cannot wait and watch."""
RETRY_SECONDS = 0.5
"""How long to retry: a process that only checks the claim also holds the lock for an instant."""
_HELD: "weakref.WeakSet[Claim]" = weakref.WeakSet()


class Claim:
    """This process's exclusive right to write to a run, until it is released or the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._stop = threading.Event()
        _HELD.add(self)
        threading.Thread(target=_beat, args=(path, self._stop), name="tenfold-lease", daemon=True).start()

    @classmethod
    def take(cls, folder: Path, *, force: bool = False) -> Self | None:
        """Claim the run of a folder; return None while another process holds it, unless `force` is set."""
        path = folder / LOCK
        if force:
            path.unlink(missing_ok=True)
        until = time.monotonic() + RETRY_SECONDS
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | REGULAR, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, f"{path.name} is not a regular file", str(path))
                locked = _lock(descriptor)
                before = os.read(descriptor, 100).decode(errors="replace")
                if locked is not False and _is_at(descriptor, path):
                    conclusive = locked and before in ("", _kernel())
                    if not conclusive and before and _is_touched(path, WATCH_SECONDS):
                        os.close(descriptor)
                        return None
                    os.truncate(descriptor, 0)
                    os.pwrite(descriptor, _kernel().encode(), 0)
                    return cls(path, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
            if time.monotonic() > until:
                return None
            time.sleep(0.02)

    @property
    def is_lost(self) -> bool:
        """Whether another process has since taken over the run by force or removed it."""
        if self._descriptor is None:
            return False
        try:
            return not _is_at(self._descriptor, self.path)
        except OSError:  # unknown
            return False

    def loss(self) -> RunTakenOver:
        """Return the error for a lost claim: this process may no longer write to the run."""
        folder = short_path(self.path.parent)
        what = f"another process has taken over the run in {folder} (resume --force), or has removed it"
        with suppress(OSError):
            if self._descriptor is not None and os.fstat(self._descriptor).st_nlink and not self.path.exists():
                what = f"the folder of the run, {folder}, was renamed or moved{_now_at(self._descriptor)}"
        return RunTakenOver(f"{what}; this process stops and writes nothing more to it")

    def release(self) -> None:
        if self._descriptor is not None:
            with suppress(OSError):
                if _is_at(self._descriptor, self.path):
                    self.path.unlink()
        self._close()

    def _close(self) -> None:
        self._stop.set()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def __del__(self) -> None:
        self._close()


def check_claim(folder: Path) -> None:
    """Raise RunTakenOver if this process has claimed the run of a folder and then lost the claim to another."""
    held = [claim for claim in list(_HELD) if claim.path == folder / LOCK]
    if held and all(claim.is_lost for claim in held):
        raise held[-1].loss()


def is_claimed(folder: Path) -> bool:
    """Return whether a process works on the run of a folder; without reliable locks, whether its lease is fresh."""
    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_RDONLY | REGULAR)
    except OSError:
        return False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        locked = _lock(descriptor, shared=True)
        before = os.read(descriptor, 100).decode(errors="replace")
        touched = os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
    if locked is False:
        return True
    if locked and before in ("", _kernel()):
        return False
    return abs(time.time() - touched) < FRESH_SECONDS


def _lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Return whether the lock was acquired; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether `path` is still this file: another process may have removed or replaced it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _now_at(descriptor: int) -> str:
    """Return a phrase with the current folder of an open file; "" if the system does not provide it."""
    with suppress(OSError):
        return f" to {short_path(Path(f'/proc/self/fd/{descriptor}').readlink().parent)}"
    return ""


def _is_touched(path: Path, seconds: float) -> bool:
    """Return whether any process touches the file within this time."""
    before, until = path.stat().st_mtime_ns, time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(0.2, seconds))
        if path.stat().st_mtime_ns != before:
            return True
    return False


def _beat(path: Path, stop: threading.Event) -> None:
    while not stop.wait(TOUCH_SECONDS):
        with suppress(OSError):
            os.utime(path)


@cache
def _kernel() -> str:
    """Return an identifier of the running kernel, all of whose processes see the same locks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{uuid.getnode():x}"


def _leave_to_parent() -> None:
    """Drop the claims in a forked process: they belong to the parent and must end with it."""
    for claim in list(_HELD):
        claim._close()


os.register_at_fork(after_in_child=_leave_to_parent)
