"""The idx format, in which MNIST and its relatives come.

Two zero bytes, a byte for the type, a byte for the number of dimensions, each dimension as a big-endian uint32, then
the numbers, big-endian, last dimension fastest. Plain or gzipped.
"""

import gzip
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common.files import open_regular
from tenfold.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


def content(path: Path, limit: int) -> bytes:
    """Return what a file holds, decompressed if it is gzipped; more than `limit` bytes are an error, and not read."""
    try:
        with open_regular(path) as plain:
            gzipped = plain.read(2) == _GZIP
            plain.seek(0)
            with gzip.open(plain) if gzipped else plain as file:
                data = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it should be an idx file, plain or gzipped") from error
    if len(data) > limit:
        raise DataError(f"{path} holds more than the {limit:,} bytes that it should have")
    return data


def decode(data: bytes) -> "NDArray[Any]":
    """Turn the bytes of an idx file into an array."""
    import numpy as np

    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise DataError("the data do not begin as an idx file should (two zero bytes, then a type)")
    kind, start = np.dtype(_TYPES[data[2]]), 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"the data end within the idx header after {len(data)} bytes; they are truncated")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    size = start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(data) != size:
        raise DataError(f"the data have {len(data)} bytes where their idx header announces {size}; they are damaged")
    array = np.frombuffer(data, kind, offset=start).reshape(shape)
    return array.astype(kind.newbyteorder("="))


def encode(array: "NDArray[Any]") -> bytes:
    """Turn an array into the bytes of an idx file."""
    import numpy as np

    kind = array.dtype.newbyteorder(">")
    codes = {np.dtype(text): code for code, text in _TYPES.items()}
    if kind not in codes:
        known = ", ".join(np.dtype(text).name for text in _TYPES.values())
        raise DataError(f"idx files cannot hold {array.dtype}; convert to one of {known}")
    header = bytes([0, 0, codes[kind], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(kind).tobytes()


def compress(data: bytes) -> bytes:
    """Gzip without a time stamp: the same bytes always give the same file."""
    return gzip.compress(data, compresslevel=6, mtime=0)
