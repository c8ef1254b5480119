"""Memory that the processes of one machine share: tensors that exist once, and lists of numbers."""

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import MachineError

FLOAT_BYTES = 8


def allocate(nbytes: int, directory: Path | None = None) -> tuple[int, str, Path | None]:
    """Return new memory that other processes open by name: its descriptor, its name, and its file if it has one.

    It is a memfd, which needs no writable /dev/shm; where there is none, or with a directory, it is a file.
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
        raise MachineError(
            f"{nbytes:,} bytes of memory that the workers share cannot be reserved ({error.strerror}){hint}"
        ) from None
    return fd, name, file


class SharedTensor:
    """A tensor in memory that other processes of this machine open by name; it exists while its creator keeps it."""

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
        """Return the tensor, not a copy of it."""
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


class SharedFloats:
    """A list of floats in memory that other processes open by name."""

    def __init__(self, size: int) -> None:
        self._fd, self.name, self._file = allocate(FLOAT_BYTES * size)
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
        """Release the memory; processes that have it open keep it."""
        if self._fd >= 0:
            self._floats.release()
            self._memory.close()
            os.close(self._fd)
            self._fd = -1
            if self._file is not None:
                self._file.unlink(missing_ok=True)

    def __getstate__(self) -> str:
        return self.name

    def __setstate__(self, name: str) -> None:
        self.name, self._file = name, None
        try:
            self._fd = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # the program was killed while it started this process, which ends, too
            raise SystemExit(1) from None
        self._map()
        os.close(self._fd)
        self._fd = -1
