"""Compression: what travels when replicas exchange."""

from tenfold.mixing.compression.base import Compressor, Packed

__all__ = ["Compressor", "Packed"]
