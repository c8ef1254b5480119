"""Tensors that exist once, whatever the number of processes that read them."""

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tenfold.transport.memory.reserve import reserve


class SharedTensor:
    """A tensor in memory that other processes of this machine open by name; it lives while its maker keeps it."""

    def __init__(self, tensor: Tensor) -> None:
        tensor = tensor.detach().cpu().contiguous()
        self.shape, self.dtype = tuple(tensor.shape), tensor.dtype
        if hasattr(os, "memfd_create"):
            self._fd, self._file = os.memfd_create(f"tenfold-{os.getpid()}"), None
            self.name = f"/proc/{os.getpid()}/fd/{self._fd}"
        else:
            self._fd, self.name = tempfile.mkstemp(prefix=f"tenfold-{os.getpid()}-")
            self._file = Path(self.name)
        reserve(self._fd, max(1, tensor.nbytes), self._file)
        if tensor.nbytes:
            self._map()[:] = tensor.reshape(-1).view(torch.uint8)

    def open(self) -> Tensor:
        """Return the tensor, not a copy of it."""
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        if self._fd < 0:
            self._fd = os.open(self.name, os.O_RDWR | os.O_CLOEXEC)
        return self._map().view(self.dtype).view(self.shape)

    def close(self) -> None:
        """Let go; who has it open keeps it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _map(self) -> Tensor:
        return torch.frombuffer(mmap.mmap(self._fd, 0), dtype=torch.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "shape": self.shape, "dtype": self.dtype, "_fd": -1, "_file": None}
