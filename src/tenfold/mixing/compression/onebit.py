"""1-bit SGD: a bit a number and 8 bytes a column."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.base import require
from tenfold.mixing.compression.base import Compressor, Packed, in_blocks

BYTE = 8


@dataclass
class OneBit(Compressor):
    """Sends signs; each is rebuilt as the mean of the positives or of the negatives of its column (Seide et al. 2014).

    A flat vector has no columns of its own: every `column` numbers in a row make one. Zero counts as positive.
    """

    name: ClassVar[str] = "1bit"

    column: int = field(default=1024, kw_only=True)
    """Numbers that share their two means."""

    def __post_init__(self) -> None:
        require(self.column >= 1, f"1bit: column is {self.column}; it must be at least 1")

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        """Rebuild each number as one of its column's two means."""
        octets, means = packed.tensors
        bits = octets[:, None].bitwise_right_shift(_places(octets)).bitwise_and_(1).view(-1)[: self.size]
        positive = in_blocks(bits, self.column).bool()
        rebuilt = torch.where(positive, means[:, :1], means[:, 1:])
        return out.copy_(rebuilt.view(-1)[: self.size])

    def _pack(self, u: Tensor) -> Packed:
        columns = in_blocks(u, self.column)
        real = in_blocks(torch.ones_like(u, dtype=torch.bool), self.column)
        means = torch.stack([_mean(columns, real & (columns >= 0)), _mean(columns, real & (columns < 0))], dim=1)
        bits = in_blocks((u >= 0).to(torch.uint8), BYTE)
        return Packed((bits.bitwise_left_shift(_places(bits)).sum(dim=1, dtype=torch.uint8), means))


def _mean(columns: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the chosen numbers of each row, 0 where there are none.

    In float64, which holds the sum of a column of equal numbers exactly.
    """
    total = columns.where(chosen, 0).sum(dim=1, dtype=torch.float64)
    return (total / chosen.sum(dim=1).clamp_min(1)).float()


def _places(like: Tensor) -> Tensor:
    return torch.arange(BYTE, dtype=torch.uint8, device=like.device)
