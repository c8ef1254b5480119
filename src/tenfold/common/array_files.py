"""Arrays in files of NumPy, read only if the file is as large as its headers say; nothing is unpickled."""

import math
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tenfold.common.files import open_regular

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL = 2**20
"""Bytes and elements that any array may have: one without any bytes may still have a shape."""
MOST_COMPRESSED = 1100
"""How many times larger than in the file its content can be: what deflate reaches with zeros."""
ENDING = ".npy"


def read_npy(path: Path) -> "NDArray[Any]":
    """Return the array in an .npy file; ValueError or OSError if it cannot be read."""
    with open_regular(path) as file:
        if file.peek(2)[:2] == b"PK":
            raise ValueError("it holds an archive of arrays")
        return _read_array(file, path.stat().st_size)


def read_npz(path: Path, wanted: Collection[str] | None = None) -> "dict[str, NDArray[Any]]":
    """Return the arrays of an .npz file by name, all or those that are wanted; ValueError or OSError as above."""
    try:
        with open_regular(path) as file:
            if file.peek(6).startswith(b"\x93NUMPY"):
                raise ValueError("it holds one array")
            with zipfile.ZipFile(file) as archive:
                return _read_members(archive, path.stat().st_size, wanted)
    except (OSError, ValueError, MemoryError):
        raise
    except Exception as error:  # what a damaged archive raises depends on the place of the damage
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _read_members(archive: zipfile.ZipFile, size: int, wanted: Collection[str] | None) -> "dict[str, NDArray[Any]]":
    """Return the arrays in an archive of `size` bytes."""
    members = archive.infolist()
    if sum(member.compress_size for member in members) > size:
        raise ValueError("it is smaller than what it should hold")
    found = {}
    for member in members:
        name = member.filename.removesuffix(ENDING)
        if member.filename.endswith(ENDING) and (wanted is None or name in wanted):
            if member.file_size > max(SMALL, MOST_COMPRESSED * member.compress_size):
                raise ValueError(f"{name} is smaller than it should be")
            with archive.open(member) as content:
                found[name] = _read_array(content, member.file_size)
    return found


def _read_array(file: Any, size: int) -> "NDArray[Any]":
    """Return an array from a file of `size` bytes that begins with its header."""
    import numpy as np

    shape, dtype = _read_header(file)
    left = max(SMALL, size - file.tell())
    if any(length < 0 for length in shape) or math.prod(max(1, n) for n in shape) * max(1, dtype.itemsize) > left:
        raise ValueError(f"an array of shape {_short(shape)} and type {dtype} does not fit into {size:,} bytes")
    file.seek(0)
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError:
        raise ValueError(f"there is not enough memory for an array of shape {_short(shape)}") from None


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], Any]:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _short(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 60 else f"{text[:57]}..."
