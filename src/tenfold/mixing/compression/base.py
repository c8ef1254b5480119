"""What is sent: fewer bits for the same vector, and a record of what was lost.

When weights are averaged, not the weights are compressed, which are large and similar, but their difference from the
last common reference, the weights that all replicas had after an earlier exact round: each worker encodes
u = x_i - reference, all decode all, and continue from reference + mean(decoded). `Rounds` does that; this module only
encodes and decodes.

Error feedback (Seide et al. 2014, Karimireddy et al. 2019): e is what earlier rounds have not sent;
encode u + e, then e <- (u + e) - decoded. What was sent over all rounds then differs from the exact sum by the last e
alone.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packed:
    """A vector as it is sent: the tensors to send, in an order that its compressor knows."""

    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        """The bytes that are sent."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass
class Compressor(ABC):
    """Packs flat float32 vectors of one size. Each sender has its own; any of that size and options can decode."""

    name: ClassVar[str]
    error_feedback: ClassVar[bool] = True

    size: int
    """Numbers in a vector."""

    error: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    """What has not been sent yet; None before the first vector. Saved and loaded with the replica."""

    def encode(self, u: Tensor) -> Packed:
        """Pack `u`, which is not changed, and keep what is lost in `error`."""
        if u.shape != (self.size,) or u.dtype != torch.float32:
            raise ValueError(f"{self.name} got {u.dtype} of shape {tuple(u.shape)}; it packs float32 of ({self.size},)")
        if not self.error_feedback:
            return self._pack(u)
        meant = u.clone() if self.error is None else u + self.error
        packed = self._pack(meant)
        self.error = meant.sub_(self.decode(packed, torch.empty_like(meant)))
        return packed

    @abstractmethod
    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        """Unpack into `out` and return it; depends on nothing but `packed`."""

    @abstractmethod
    def _pack(self, u: Tensor) -> Packed: ...


def in_blocks(u: Tensor, block: int) -> Tensor:
    """Return `u` as rows of `block` numbers, the last one filled up with zeros."""
    return torch.nn.functional.pad(u, (0, -u.numel() % block)).view(-1, block)
