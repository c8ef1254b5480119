"""Compression: what travels when replicas exchange."""

from tenfold.common.registry import Registry
from tenfold.mixing.compression.base import Compressor, Packed
from tenfold.mixing.compression.bf16 import BF16
from tenfold.mixing.compression.int8 import Int8
from tenfold.mixing.compression.none import NoCompression
from tenfold.mixing.compression.onebit import OneBit
from tenfold.mixing.compression.topk import TopK

COMPRESSIONS: Registry[type[Compressor]] = Registry(
    "compression", {member.name: member for member in (NoCompression, BF16, Int8, TopK, OneBit)}
)

__all__ = ["BF16", "COMPRESSIONS", "Compressor", "Int8", "NoCompression", "OneBit", "Packed", "TopK"]
