"""A segment of shared memory in which workers average: the counters that order them, and the arithmetic."""

import fcntl
import math
import mmap
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from tenfold.errors import MachineError, TrainingError, WorkerLost
from tenfold.machine.limits import free_memory
from tenfold.machine.liveness import is_alive
from tenfold.transport.base import CHECK_SECONDS, SPINS, wait
from tenfold.transport.shared_arrays import allocate

WORD = 8
"""Bytes of a word; processors read and write an aligned one as a whole."""
KEEPS_STORES_IN_ORDER = platform.machine() in ("x86_64", "AMD64")


class SharedIntegers(Protocol):
    """Shared 8-byte integers: what was stored before a word is visible to any process that reads the word."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class LockedIntegers:
    """For processors that reorder stores (all but x86): each access holds a file lock, which orders memory."""

    def __init__(self, words: SharedIntegers, fd: int) -> None:
        self._words = words
        self._fd = fd

    def __getitem__(self, index: int) -> int:
        with self._locked(index, fcntl.LOCK_SH):
            return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        with self._locked(index, fcntl.LOCK_EX):
            self._words[index] = value

    @contextmanager
    def _locked(self, index: int, kind: int) -> Iterator[None]:
        fcntl.lockf(self._fd, kind, WORD, index * WORD)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, WORD, index * WORD)


# The memory that the workers of one machine share.
#
# Layout, in cache lines of 128 bytes (two real ones, since processors fetch neighbors in pairs):
#
#     header       magic, number of workers, elements per buffer, type, whether there are channels
#     stop reason  why all workers must stop (0: they need not), the rank that it is about; the membership asked for
#     counters     one line a worker, see `Counters`
#     pids         one line a worker
#     mailboxes    four lines a worker, for `gather`
#     channels     where asked for, one line for each pair of workers, see `shared_messages.py`
#     buffers      one per worker, each starting on a page
#
# The memory is a memfd, which workers open as /proc/<pid>/fd/<number>. It vanishes with the last process that maps
# it, even after kill -9, needs no resource tracker, and is not limited by the size of /dev/shm (64 MB in many
# containers). Where there is no memfd, or a directory is asked for, it is a file there, `tenfold-<pid>-...`, which
# the creator removes on close, and `clean_up_orphans` if the creator was killed.

MAGIC = 0x74656E666F6C6402
LINE, MAILBOX = 16, 64
PAGE = 4096
DTYPES = (torch.float32, torch.float64)
FIRST_LOCK = 1 << 40
"""Locks are on bytes beyond the end of the file, so that they do not conflict with those of `LockedIntegers`."""


class StopReason(IntEnum):
    """Why the workers must stop."""

    NONE = 0
    ASKED = 1
    DIED = 2
    LATE = 3
    LEFT = 4
    STOPPED = 5


class Segment:
    """One shared block of memory with a control part and a flat buffer for each worker."""

    def __init__(self, name: str, fd: int, owned_file: Path | None = None) -> None:
        self.name = name
        self._fd = fd
        self._owned_file = owned_file
        self._memory = mmap.mmap(fd, 0)
        magic, size, numel, code, channels = (int(word) for word in np.frombuffer(self._memory, np.int64, 5))
        if magic != MAGIC:
            raise TrainingError(f"'{name}' is not shared memory of this version of tenfold; start the run again")
        self.size, self.numel, self.dtype = size, numel, DTYPES[code]
        control = _control_words(self.size, channels) * WORD
        raw: Any = memoryview(self._memory)[:control].cast("q")
        self.words: SharedIntegers = raw if KEEPS_STORES_IN_ORDER else LockedIntegers(raw, fd)
        self.mailboxes: NDArray[np.float64] = np.frombuffer(
            self._memory, np.float64, self.size * MAILBOX, self._mailboxes_at() * WORD
        ).reshape(self.size, MAILBOX)
        row = _row_bytes(self.numel, self.dtype) // self.dtype.itemsize
        kind = torch.empty(0, dtype=self.dtype).numpy().dtype
        self.buffers: NDArray[Any] = np.frombuffer(
            self._memory, kind, self.size * row, _first_buffer(self.size, channels)
        ).reshape(self.size, row)[:, : self.numel]

    @classmethod
    def create(
        cls,
        size: int,
        numel: int,
        dtype: torch.dtype = torch.float32,
        directory: Path | None = None,
        *,
        contents: str = "weights",
        channels: bool = False,
    ) -> Self:
        """Make the memory for `size` workers with `numel` weights each; with a directory, as a file in it.

        `contents` says in errors what the numbers are, where they are not weights. With `channels` there are words for
        each pair of workers.
        """
        if dtype not in DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise MachineError(f"shared memory cannot hold weights of type {dtype}; known: {names}")
        nbytes = _first_buffer(size, channels) + size * _row_bytes(numel, dtype)
        if directory is None and not hasattr(os, "memfd_create"):
            directory = Path(tempfile.gettempdir())
        free = free_memory() if directory is None else shutil.disk_usage(directory).free
        if nbytes > free:
            where = "memory" if directory is None else str(directory)
            raise MachineError(
                f"{size} workers with {numel:,} {contents} each need {nbytes / 1e6:,.0f} MB of {where} "
                f"but only {free / 1e6:,.0f} MB are free; use fewer workers or a smaller model"
            )
        fd, name, path = allocate(nbytes, directory)
        header = np.array([MAGIC, size, numel, DTYPES.index(dtype), channels], np.int64)
        os.pwrite(fd, header.tobytes(), 0)
        return cls(name, fd, path)

    @classmethod
    def attach(cls, name: str) -> Self:
        """Open the memory that another process has created."""
        try:
            fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise TrainingError(
                f"the shared memory '{name}' cannot be opened ({error.strerror}); "
                "its creator must be alive and keep it open"
            ) from None
        return cls(name, fd)

    def counter_at(self, rank: int) -> int:
        """Return the index of a worker's counter among the words."""
        return (2 + rank) * LINE

    def pid_at(self, rank: int) -> int:
        """Return the index of a worker's process id among the words."""
        return (2 + self.size + rank) * LINE

    def channel_at(self, sender: int, receiver: int) -> int:
        """Return the index of the first word for messages from one worker to another, of a segment with channels."""
        return _control_words(self.size) + (sender * self.size + receiver) * LINE

    def _mailboxes_at(self) -> int:
        return (2 + 2 * self.size) * LINE

    def stop(self, reason: StopReason, rank: int = 0) -> None:
        """Make every worker that waits, now or later, raise an error; the first reason is kept.

        Workers notice by themselves when one of them dies after it has joined; the process that starts them must call
        this with `StopReason.DIED` for one that dies before.
        """
        if not self.words[LINE]:
            self.words[LINE + 1] = rank
            self.words[LINE] = reason

    @property
    def membership(self) -> int:
        """The number of the membership that is asked for; workers with another one pause until they have it."""
        return self.words[LINE + 2]

    @membership.setter
    def membership(self, number: int) -> None:
        self.words[LINE + 2] = number

    @property
    def stop_reason(self) -> tuple[StopReason, int]:
        """Why all workers must stop, and the rank that it is about."""
        return StopReason(self.words[LINE]), self.words[LINE + 1]

    def lock(self, number: int) -> "FileLock":
        """Return the lock with this number, of any number of locks; for a process that has the segment open."""
        return FileLock(self._fd, number)

    def abort(self) -> None:
        """Stop all workers on request."""
        self.stop(StopReason.ASKED)

    def close(self) -> None:
        """Close the file; the creator also removes it. Mapped memory stays valid."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if self._owned_file is not None:
            self._owned_file.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileLock:
    """Lock number `number` of an open file, which the kernel releases when its holder dies; not for several threads."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._at = FIRST_LOCK + number

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._at)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._at)


def clean_up_orphans(directory: Path | None = None) -> list[Path]:
    """Remove the segment files whose creator is dead, and return them; the default is the folder for such files."""
    removed = []
    for path in (directory or Path(tempfile.gettempdir())).glob("tenfold-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and path.is_file() and not psutil.pid_exists(int(pid)):
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def round_up(number: int, multiple: int) -> int:
    """Return the next multiple that is not smaller than a number."""
    return -(-number // multiple) * multiple


def _control_words(size: int, channels: int = False) -> int:
    return (2 + 2 * size) * LINE + size * MAILBOX + (size * size * LINE if channels else 0)


def _first_buffer(size: int, channels: int) -> int:
    return _whole_pages(_control_words(size, channels) * WORD)


def _row_bytes(numel: int, dtype: torch.dtype) -> int:
    return _whole_pages(numel * dtype.itemsize)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


# Synchronization through shared counters.
#
# Every worker has one counter, which only it writes and which only grows. All workers run through the same
# operations, and an operation moves the counter by the same number of ticks on every worker, whether or not it has
# anything to do. So "worker j has reached tick t" means the same to every worker, a worker that is ahead has simply
# passed it, and each can wait for just those that it depends on.
#
# On x86 stores become visible in order, so a tick also publishes the weights written before it; elsewhere the words
# are locked (see `LockedIntegers`).

Until = Callable[[Callable[[], bool]], None]
"""Returns when the function that it is given returns True."""
Check = Callable[[float], None]
"""Raises when ranks have failed; called repeatedly while waiting, about every given number of seconds."""


class MembersChanged(Exception):  # noqa: N818 - it is no error
    """Other workers take part from now on; what the members were doing together must be repeated with them."""


class Counters:
    """One worker's counter, and its view of the others'."""

    def __init__(
        self,
        segment: Segment,
        rank: int,
        timeout: float,
        ranks: Sequence[int] | None = None,
        until: Until | None = None,
        check: Check | None = None,
    ) -> None:
        """Join as `rank`; `ranks` are the workers' numbers in error messages, where these differ.

        `until` is how to wait where several workers share a process, so that polling would block the others. `check`
        knows of failures that cannot be seen in the shared memory.
        """
        self._segment = segment
        self._ranks = range(segment.size) if ranks is None else ranks
        self._words = segment.words
        self._timeout = timeout
        self._until = until
        self._check = check
        self._mine = segment.counter_at(rank)
        self._members = tuple(range(segment.size))
        self._theirs = [segment.counter_at(other) for other in self._members]
        self._ticks = self._words[self._mine]
        self._membership: int | None = None
        self._words[segment.pid_at(rank)] = os.getpid()

    def regroup(self, members: Sequence[int], membership: int, ticks: int) -> None:
        """Take part with these members of the segment only, all of which count from `ticks`, until that changes.

        From the first call on, `MembersChanged` is raised when another membership is asked for, and the process that
        changes memberships handles workers that die.
        """
        self._members, self._membership = tuple(members), membership
        self._theirs = [self._segment.counter_at(member) for member in members]
        self._ticks = ticks
        self._words[self._mine] = ticks

    def check_members(self) -> None:
        """Raise MembersChanged if another membership is asked for."""
        if self._is_outdated():
            raise MembersChanged

    def _is_outdated(self) -> bool:
        return self._membership is not None and self._segment.membership != self._membership

    def tick(self) -> int:
        """Advance this worker's counter by one tick, and return that tick."""
        self._ticks += 1
        self._words[self._mine] = self._ticks
        return self._ticks

    def arrival(self, ranks: Sequence[int]) -> "Arrival":
        """Return a function that says whether each of the ranks has reached this worker's tick."""
        return Arrival(self._words, self._theirs, ranks, self._ticks)

    def wait(self, ranks: Iterable[int], timeout: float | None = None, ticks: int | None = None) -> None:
        """Wait until each of the ranks has reached a tick, by default this worker's."""
        words, until = self._words, self._until
        ticks = self._ticks if ticks is None else ticks
        for rank in ranks:
            at = self._theirs[rank]
            if until is not None:
                until(lambda at=at: words[at] >= ticks)  # type: ignore[misc]
                continue
            for _ in range(SPINS):
                if words[at] >= ticks:
                    break
            else:
                self._wait_long(rank, timeout if timeout is not None else self._timeout, ticks)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` is true; raise WorkerLost or MembersChanged where that is pointless."""
        if self._until is not None:
            self._until(ready)
            return
        for _ in range(SPINS):
            if ready():
                return

        def check(_: float) -> None:
            if self._check is not None:
                self._check(CHECK_SECONDS)
            self._raise_if_stopped()

        wait(lambda: ready() or self._is_outdated(), check)
        if self._is_outdated():
            raise MembersChanged

    def _wait_long(self, rank: int, timeout: float, ticks: int) -> None:
        words, at = self._words, self._theirs[rank]
        wait(
            lambda: words[at] >= ticks or self._is_outdated(),
            lambda waited: self.check_for_failure(rank, waited, timeout, ticks),
            timeout,
        )
        if words[at] < ticks:
            raise MembersChanged

    def check_for_failure(self, rank: int, waited: float, timeout: float, ticks: int) -> None:
        """Raise an error if this rank, which has not reached a tick, is dead or late, or if all must stop."""
        if self._check is not None:
            self._check(CHECK_SECONDS)
        segment = self._segment
        pid = self._words[segment.pid_at(self._members[rank])]
        # The counter is read after the death is seen: a worker may finish its part and then leave.
        dead = self._membership is None and pid and not is_alive(pid)
        if dead and self._words[self._theirs[rank]] < ticks:
            segment.stop(StopReason.DIED, rank)
        elif waited >= timeout:
            segment.stop(StopReason.LATE, rank)
        self._raise_if_stopped(timeout)

    def _raise_if_stopped(self, timeout: float = math.inf) -> None:
        """Raise the error that says why all workers must stop, if they must."""
        segment = self._segment
        reason, about = segment.stop_reason
        if reason is StopReason.NONE:
            return
        worker = f"worker {self._ranks[about]} (pid {self._words[segment.pid_at(about)] or 'unknown'})"
        if reason is StopReason.ASKED:
            raise TrainingError("training was stopped by another worker or by the main process; see its message")
        if reason is StopReason.LATE:
            sentence = f"{worker} did not respond within {timeout:g} s; it hangs, or needs a longer timeout"
        else:
            sentence = f"{worker} died; look for its own error message, or for a lack of memory on this machine"
        raise WorkerLost(self._ranks[about], sentence)


class Arrival:
    """Says when called whether each of the ranks has reached a tick; ranks that have are not asked again."""

    __slots__ = ("_counters", "_left", "_ticks", "_words")

    def __init__(self, words: SharedIntegers, counters: Sequence[int], ranks: Sequence[int], ticks: int) -> None:
        self._words, self._counters, self._ticks = words, counters, ticks
        self._left = list(ranks)

    def __call__(self) -> bool:
        """Return whether all of them have."""
        words, counters, ticks, left = self._words, self._counters, self._ticks, self._left
        while left:
            if words[counters[left[-1]]] < ticks:
                return False
            left.pop()
        return True

    def missing(self) -> list[int]:
        """Return the ranks that have not reached the tick yet."""
        return sorted(rank for rank in self._left if self._words[self._counters[rank]] < self._ticks)
