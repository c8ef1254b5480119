"""No compression: 4 bytes a number."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tenfold.mixing.compression.base import Compressor, Packed


@dataclass
class NoCompression(Compressor):
    """Sends float32 as it is."""

    name: ClassVar[str] = "none"
    error_feedback: ClassVar[bool] = False

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        """Copy the numbers."""
        return out.copy_(packed.tensors[0])

    def _pack(self, u: Tensor) -> Packed:
        return Packed((u.clone(),))
