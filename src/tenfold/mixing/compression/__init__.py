"""Compression: what is sent when replicas exchange."""

from tenfold.mixing.compression.base import Compressor, Packed

__all__ = ["Compressor", "Packed"]
