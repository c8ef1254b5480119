"""bfloat16: 2 bytes a number."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.compression.base import Compressor, Packed


@dataclass
class BF16(Compressor):
    """Rounds to the nearest bfloat16: the range of float32 with 8 significant bits, a relative error up to 2^-8."""

    name: ClassVar[str] = "bf16"
    error_feedback: ClassVar[bool] = False

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        """Convert back to float32."""
        return out.copy_(packed.tensors[0])

    def _pack(self, u: Tensor) -> Packed:
        return Packed((u.to(torch.bfloat16),))
