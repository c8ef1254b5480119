"""What the C library does with memory that a training step has freed."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 1 << 30
USUAL = 1 << 25
"""What glibc's threshold grows to by itself when large blocks are freed; that for trimming is twice as high."""


def keep_freed() -> None:
    """Keep memory that is freed in this process, up to 1 GB, for the next allocation; for our own worker processes.

    Activations are freed and allocated again in every step. By default glibc returns large blocks to the system, which
    clears their pages each time it hands them out: up to a third of a step of `cnn`, and half of an evaluation. Other C
    libraries are left alone.
    """
    _set_thresholds(KEPT, KEPT)


@contextmanager
def keeping_freed() -> Iterator[None]:
    """Keep freed memory while the block lasts, in a user's process; afterwards return it to the system."""
    keep_freed()
    try:
        yield
    finally:
        _set_thresholds(USUAL, 2 * USUAL)
        library = _library()
        if library is not None:
            library.malloc_trim(0)


def _set_thresholds(mmap: int, trim: int) -> None:
    library = _library()
    if library is not None:
        library.mallopt(MMAP_THRESHOLD, mmap)
        library.mallopt(TRIM_THRESHOLD, trim)


def _library() -> ctypes.CDLL | None:
    """Return glibc; None where there is another C library."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            if library.mallopt and library.malloc_trim and library.gnu_get_libc_version:
                return library
    return None
