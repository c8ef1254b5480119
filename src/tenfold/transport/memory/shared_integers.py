"""Shared integers that order what is stored around them."""

import fcntl
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

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
