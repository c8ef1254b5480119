"""A few numbers that processes of one machine share; imports no torch."""

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH = 8


class SharedFloats:
    """A list of floats in memory that other processes open by name; it needs no writable /dev/shm."""

    def __init__(self, size: int) -> None:
        if hasattr(os, "memfd_create"):
            self._fd = os.memfd_create(f"tenfold-{os.getpid()}")
            self.name = f"/proc/{os.getpid()}/fd/{self._fd}"
        else:
            self._fd, self.name = tempfile.mkstemp(prefix=f"tenfold-{os.getpid()}-")
        os.ftruncate(self._fd, WIDTH * size)
        self._map()

    def _map(self) -> None:
        self._memory = mmap.mmap(self._fd, 0)
        self._floats: Any = memoryview(self._memory).cast("d")

    def __len__(self) -> int:
        return len(self._floats)

    def __iter__(self) -> Iterator[float]:
        return iter(self._floats)

    def __getitem__(self, index: int) -> float:
        return float(self._floats[index])

    def __setitem__(self, index: int, value: float) -> None:
        self._floats[index] = value

    def close(self) -> None:
        """Let go of the memory; other processes that have it open keep it."""
        if self._fd >= 0:
            self._floats.release()
            self._memory.close()
            os.close(self._fd)
            self._fd = -1
            if not self.name.startswith("/proc/"):
                Path(self.name).unlink(missing_ok=True)

    def __getstate__(self) -> str:
        return self.name

    def __setstate__(self, name: str) -> None:
        self.name = name
        self._fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        self._map()
        os.close(self._fd)
        self._fd = -1
