"""Locks between processes that need no semaphore: the kernel releases them when their holder dies."""

import fcntl

FIRST = 1 << 40
"""Locks are on bytes beyond the end of the file, so that they do not meet those of `LockedIntegers`."""


class FileLock:
    """Lock number `number` of an open file; not for several threads of one process."""

    def __init__(self, fd: int, number: int) -> None:
        self._fd = fd
        self._at = FIRST + number

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._at)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._at)
