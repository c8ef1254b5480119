"""Compressed messages: fewer bits for the same vector, and a record of the error.

Weights are large and similar, so workers compress not the weights but the difference from the last common reference,
the weights of all replicas after an earlier exact round: each worker encodes u = x_i - reference, all decode all, and
continue from reference + mean(decoded). `Rounds` does this; this module only encodes and decodes.

Error feedback (Seide et al. 2014, Karimireddy et al. 2019): e is the part that earlier rounds have not sent;
encode u + e, then e <- (u + e) - decoded. The total sent over all rounds then differs from the exact sum only by the
last e.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from tenfold.mixing.strategies import require


@dataclass(frozen=True)
class Packed:
    """An encoded vector: the tensors to send, in the order of its compressor."""

    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass
class Compressor(ABC):
    """Packs flat vectors of one size, of float32 or float64. Each sender has its own; any of the same size and options
    can decode."""

    name: ClassVar[str]
    error_feedback: ClassVar[bool] = True

    size: int
    """Numbers in a vector."""

    rows: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    """The lengths of the rows of the weight matrices that make up a vector; empty if unknown."""
    error: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    """The part that has not been sent yet; None before the first vector. Saved and loaded with the replica."""

    def encode(self, u: Tensor) -> Packed:
        """Pack `u`, which is not modified, and store the loss of precision in `error`."""
        if u.shape != (self.size,) or u.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"{self.name} got {u.dtype} of shape {tuple(u.shape)}; it needs float32 or float64 of shape "
                f"({self.size},)"
            )
        if not self.error_feedback:
            return self.pack(u)
        meant = u.clone() if self.error is None else u + self.error
        packed = self.pack(meant)
        self.error = meant.sub_(self.decode(packed, torch.empty_like(meant)))
        return packed

    @abstractmethod
    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        """Unpack into `out` and return it; the result depends only on `packed`."""

    @abstractmethod
    def pack(self, u: Tensor) -> Packed:
        """Pack `u`, which is not modified."""


def in_blocks(u: Tensor, block: int) -> Tensor:
    """Return `u` as rows of `block` numbers, the last one padded with zeros."""
    return torch.nn.functional.pad(u, (0, -u.numel() % block)).view(-1, block)


@dataclass
class NoCompression(Compressor):
    """Sends numbers as they are."""

    name: ClassVar[str] = "none"
    error_feedback: ClassVar[bool] = False
    sent_dtype: ClassVar[torch.dtype | None] = None

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        return out.copy_(packed.tensors[0])

    def pack(self, u: Tensor) -> Packed:
        return Packed((u.to(self.sent_dtype or u.dtype, copy=True),))


@dataclass
class BF16(NoCompression):
    """Rounds to the nearest bfloat16: the range of float32 with 8 significant bits, a relative error up to 2^-8."""

    name: ClassVar[str] = "bf16"
    sent_dtype: ClassVar[torch.dtype | None] = torch.bfloat16


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
        steps, scales = packed.tensors
        # The scale comes last so that the largest number of a block, 127 / 127 of the scale, is rebuilt exactly.
        rebuilt = in_blocks(steps, self.block).to(scales.dtype).div_(STEPS).mul_(scales[:, None])
        return out.copy_(rebuilt.view(-1)[: self.size])

    def pack(self, u: Tensor) -> Packed:
        blocks = in_blocks(u, self.block)
        scales = torch.linalg.vector_norm(blocks, ord=float("inf"), dim=1)
        divisor = scales.masked_fill(scales == 0, 1)[:, None]
        steps = (blocks / divisor).mul_(STEPS).round_().to(torch.int8)
        return Packed((steps.view(-1)[: self.size].clone(), scales))


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
        return min(self.size, max(1, round(self.fraction * self.size)))

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        places, values = packed.tensors
        return out.zero_().index_copy_(0, places.long(), values)

    def pack(self, u: Tensor) -> Packed:
        places = torch.topk(u.abs(), self.k, sorted=False).indices.sort().values
        return Packed((places.to(torch.int32), u[places]))


BYTE = 8
USUAL_COLUMN = 1024
"""The size of a column if the rows of the weight matrices are unknown."""


@dataclass
class OneBit(Compressor):
    """Sends signs; each is rebuilt as the mean of the positives or of the negatives of its column (Seide et al. 2014).

    A column is a row of a weight matrix, the weights of one neuron, or a vector of biases; with `column`, so many
    numbers that follow one another. Zero counts as positive.
    """

    name: ClassVar[str] = "1bit"

    column: int | None = field(default=None, kw_only=True)
    """Numbers that share their two means. Default: a row of a weight matrix."""

    def __post_init__(self) -> None:
        require(self.column is None or self.column >= 1, f"1bit: column is {self.column}; it must be at least 1")

    def decode(self, packed: Packed, out: Tensor) -> Tensor:
        octets, means = packed.tensors
        bits = octets[:, None].bitwise_right_shift(_places(octets)).bitwise_and_(1).view(-1)[: self.size]
        return out.copy_(means.view(-1)[2 * self._columns(out) + 1 - bits])

    def pack(self, u: Tensor) -> Packed:
        positive = u >= 0
        places = 2 * self._columns(u) + ~positive
        count = 2 * len(self._lengths)
        # float64 holds the sum of a column of equal numbers exactly
        total = torch.zeros(count, dtype=torch.float64, device=u.device).index_add_(0, places, u.double())
        means = (total / torch.bincount(places, minlength=count).clamp_min(1)).to(u.dtype).view(-1, 2)
        bits = in_blocks(positive.to(torch.uint8), BYTE)
        return Packed((bits.bitwise_left_shift(_places(bits)).sum(dim=1, dtype=torch.uint8), means))

    @property
    def _lengths(self) -> tuple[int, ...]:
        if self.column is None and self.rows:
            return self.rows
        column = self.column or USUAL_COLUMN
        full, rest = divmod(self.size, column)
        return (column,) * full + (rest,) * (rest > 0)

    def _columns(self, like: Tensor) -> Tensor:
        return _numbered(self._lengths, like.device)


def row_lengths(shapes: Sequence[Sequence[int]], alignment: int = 1) -> tuple[int, ...]:
    """Return the lengths of the rows of tensors that follow one another, each padded to a multiple of `alignment`.

    A vector, such as biases, is one row; the padding of a tensor is a separate row.
    """
    lengths: list[int] = []
    for shape in shapes:
        size = torch.Size(shape).numel()
        rows = shape[0] if len(shape) > 1 else 1
        lengths += [size // rows] * rows if size else []
        lengths += [-size % alignment] if size % alignment else []
    return tuple(lengths)


@lru_cache(maxsize=8)
def _numbered(lengths: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the column index of each element of a vector."""
    return torch.repeat_interleave(torch.tensor(lengths, device=device, dtype=torch.int64))


def _places(like: Tensor) -> Tensor:
    return torch.arange(BYTE, dtype=torch.uint8, device=like.device)
