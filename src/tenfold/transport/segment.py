"""Shared memory of processes on one machine: segments for workers' weights, tensors, and lists of numbers."""

import errno
import fcntl
import mmap
import os
import platform
import shutil
import tempfile
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenfold.errors import MachineError, TrainingError
from tenfold.machine.cores import free_memory


def allocate(nbytes: int, directory: Path | None = None) -> tuple[int, str, Path | None]:
    """Return new memory that other processes can open by name: its descriptor, its name, and its file, if any.

    It is a memfd, which needs no writable /dev/shm; without memfd support, or with a directory, it is a file.
    """
    file = None
    if directory is None and hasattr(os, "memfd_create"):
        fd = os.memfd_create(f"tenfold-{os.getpid()}")
        name = f"/proc/{os.getpid()}/fd/{fd}"
    else:
        fd, name = tempfile.mkstemp(prefix=f"tenfold-{os.getpid()}-", dir=directory)
        file = Path(name)
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        if file is not None:
            file.unlink(missing_ok=True)
        hint = "; `ulimit -f` limits its size" if error.errno == errno.EFBIG else ""
        raise MachineError(f"{nbytes:,} bytes of shared memory cannot be reserved ({error.strerror}){hint}") from None
    return fd, name, file


class SharedTensor:
    """A tensor in memory that other processes of this machine can open by name, as long as its creator keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach().cpu().contiguous()
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        self._fd, self.name, self._file = allocate(max(1, tensor.nbytes))
        try:
            if tensor.nbytes:
                self._map()[:] = tensor.reshape(-1).view(torch.uint8)
        except BaseException:
            self.close()
            raise

    def open(self) -> Tensor:
        """Return the tensor without a copy."""
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        if self._fd < 0:
            self._fd = os.open(self.name, os.O_RDWR | os.O_CLOEXEC)
        return self._map().view(self.dtype).view(self.shape)

    def close(self) -> None:
        """Release the memory; processes that have it open keep it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _map(self) -> Tensor:
        return torch.frombuffer(mmap.mmap(self._fd, 0), dtype=torch.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "shape": self.shape, "dtype": self.dtype, "_fd": -1, "_file": None}


WORD = 8
"""Bytes of a word; processors read and write an aligned one as a whole."""
KEEPS_STORES_IN_ORDER = platform.machine() in ("x86_64", "AMD64")


class SharedIntegers(Protocol):
    """Shared 8-byte integers: a process that reads a word also sees all earlier stores of its writer."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class LockedIntegers:
    """Shared integers for processors that reorder stores (all but x86): each access holds a file lock."""

    def __init__(self, words: SharedIntegers, fd: int) -> None:
        self._words = words
        self._fd = fd

    def __getitem__(self, index: int) -> int:
        with FileLock(self._fd, index * WORD, WORD, fcntl.LOCK_SH):
            return self._words[index]

    def __setitem__(self, index: int, value: int) -> None:
        with FileLock(self._fd, index * WORD, WORD):
            self._words[index] = value


class FileLock:
    """A lock on bytes of an open file; the kernel releases it when the holder dies. It is not for several threads."""

    def __init__(self, fd: int, at: int, nbytes: int = 1, kind: int = fcntl.LOCK_EX) -> None:
        self._fd, self._at, self._nbytes, self._kind = fd, at, nbytes, kind

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, self._kind, self._nbytes, self._at)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, self._nbytes, self._at)


# The memory that the workers of one machine share.
#
# Layout, in cache lines of 128 bytes (two real ones, since processors fetch neighbors in pairs):
#
#     header       magic, number of workers, elements per buffer, type, whether there are channels
#     stop reason  why all workers must stop (0: no reason), and the rank concerned; the requested membership
#     counters     one line a worker, see `Counters`
#     pids         one line a worker
#     mailboxes    four lines a worker, for `gather`
#     channels     where requested, one line for each pair of workers, see `shared_messages.py`
#     buffers      one per worker, each starting on a page
#
# The memory is a memfd, which workers open as /proc/<pid>/fd/<number>. It is freed with the last process that maps it,
# even after kill -9, needs no resource tracker, and is not limited by the size of /dev/shm (64 MB in many
# containers). Without memfd support, or if a directory is given, it is a file `tenfold-<pid>-...`, which the creator
# removes on close, or `clean_up_orphans` if the creator was killed.

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
            raise TrainingError(f"'{name}' is not shared memory from this version of tenfold; start the run again")
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
        """Create memory for `size` workers with `numel` weights each; with a directory, as a file in it.

        `contents` names the elements in errors, if they are not weights. With `channels` there are words for each pair
        of workers.
        """
        if dtype not in DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            raise MachineError(f"weights of type {dtype} cannot be averaged in shared memory; supported: {names}")
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
                "the process that created it must be alive and keep it open"
            ) from None
        return cls(name, fd)

    def counter_at(self, rank: int) -> int:
        return (2 + rank) * LINE

    def pid_at(self, rank: int) -> int:
        return (2 + self.size + rank) * LINE

    def channel_at(self, sender: int, receiver: int) -> int:
        """Return the index of the first word for messages from one worker to another, in a segment with channels."""
        return _control_words(self.size) + (sender * self.size + receiver) * LINE

    def _mailboxes_at(self) -> int:
        return (2 + 2 * self.size) * LINE

    def stop(self, reason: StopReason, rank: int = 0) -> None:
        """Make every worker that waits, now or later, raise an error; only the first reason is kept.

        Workers detect themselves that one of them dies after it has joined; for a worker that dies earlier, the process
        that starts the workers must call this with `StopReason.DIED`.
        """
        if not self.words[LINE]:
            self.words[LINE + 1] = rank
            self.words[LINE] = reason

    @property
    def membership(self) -> int:
        """The number of the requested membership; workers with another one pause until they have it."""
        return self.words[LINE + 2]

    @membership.setter
    def membership(self, number: int) -> None:
        self.words[LINE + 2] = number

    @property
    def stop_reason(self) -> tuple[StopReason, int]:
        return StopReason(self.words[LINE]), self.words[LINE + 1]

    def lock(self, number: int) -> FileLock:
        """Return the lock with this number (any number is valid), for a process that has opened the segment."""
        return FileLock(self._fd, FIRST_LOCK + number)

    def abort(self) -> None:
        self.stop(StopReason.ASKED)

    def close(self) -> None:
        """Close the file; the creator also removes it. Mapped memory stays valid."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if self._owned_file is not None:
            self._owned_file.unlink(missing_ok=True)


def clean_up_orphans(directory: Path | None = None) -> list[Path]:
    """Remove segment files whose creator has died, by default in the temporary folder, and return them."""
    removed = []
    for path in (directory or Path(tempfile.gettempdir())).glob("tenfold-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and path.is_file() and not psutil.pid_exists(int(pid)):
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def round_up(number: int, multiple: int) -> int:
    """Round a number up to the next multiple."""
    return -(-number // multiple) * multiple


def _control_words(size: int, channels: int = False) -> int:
    return (2 + 2 * size) * LINE + size * MAILBOX + (size * size * LINE if channels else 0)


def _first_buffer(size: int, channels: int) -> int:
    return round_up(_control_words(size, channels) * WORD, PAGE)


def _row_bytes(numel: int, dtype: torch.dtype) -> int:
    return round_up(numel * dtype.itemsize, PAGE)
