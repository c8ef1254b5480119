"""What the C library does with memory that a step has freed."""

import ctypes
import sys
from contextlib import suppress
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
KEPT = 1 << 30


@cache
def keep_freed() -> None:
    """Keep memory that is freed in this process, up to 1 GB, for whoever asks next.

    Activations are freed and asked for again in every step. By itself glibc hands large blocks back to the system,
    which has to clear their pages each time it hands them out: up to a third of a step of `cnn`, and half of an
    evaluation. Other C libraries are left alone.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(MMAP_THRESHOLD, KEPT)
            library.mallopt(TRIM_THRESHOLD, KEPT)
