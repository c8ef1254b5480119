"""Top-k: only the largest numbers are sent, 8 bytes each."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.base import require
from tenfold.mixing.compression.base import Compressor, Packed

LARGEST_SIZE = 2**31


@dataclass
class TopK(Compressor):
    """Sends the k = fraction x size numbers of largest magnitude and their places (Aji & Heafield 2017)."""

    name: ClassVar[str] = "topk"

    fraction: float = field(default=0.01, kw_only=True)
    """The share of the numbers that is sent each round."""

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, f"topk: fraction is {self.fraction}; it must be more than 0 and at most 1")
        require(
            self.size <= LARGEST_SIZE, f"topk: {self.size} numbers are too many; places are 32-bit, use int8 or 1bit"
        )

    @property
    def k(self) -> int:
        """How many numbers are sent: at least one, if there are any."""
        return min(self.size, max(1, round(self.fraction * self.size)))

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        """Put the numbers in their places, zero elsewhere."""
        places, values = packed.tensors
        return out.zero_().index_copy_(0, places.long(), values)

    def _pack(self, u: Tensor) -> Packed:
        places = torch.topk(u.abs(), self.k, sorted=False).indices.sort().values
        return Packed((places.to(torch.int32), u[places]))
