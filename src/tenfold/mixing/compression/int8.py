"""8-bit integers per block: 1 byte a number and 4 a block."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.base import require
from tenfold.mixing.compression.base import Compressor, Packed, in_blocks

STEPS = 127


@dataclass
class Int8(Compressor):
    """Per block, with s = max |u|: q = round(127 u / s), rebuilt as (q / 127) s; off by s / 254 at most."""

    name: ClassVar[str] = "int8"

    block: int = field(default=256, kw_only=True)
    """Numbers that share a scale."""

    def __post_init__(self) -> None:
        require(self.block >= 1, f"int8: block is {self.block}; it must be at least 1")

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        """Rebuild each block from its integers and its scale."""
        steps, scales = packed.tensors
        # The scale comes last so that the largest number of a block, 127 / 127 of the scale, is rebuilt exactly.
        rebuilt = in_blocks(steps, self.block).float().div_(STEPS).mul_(scales[:, None])
        return out.copy_(rebuilt.view(-1)[: self.size])

    def _pack(self, u: Tensor) -> Packed:
        blocks = in_blocks(u, self.block)
        scales = torch.linalg.vector_norm(blocks, ord=float("inf"), dim=1)
        divisor = scales.masked_fill(scales == 0, 1)[:, None]
        steps = (blocks / divisor).mul_(STEPS).round_().to(torch.int8)
        return Packed((steps.view(-1)[: self.size].clone(), scales))
