"""Samples without targets from files: arrays (.npy, .npz), rows of numbers, a table like the one trained on, images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenfold.data.files.image_files import may_hold_images, read_unlabelled
from tenfold.data.files.known_data import KnownData
from tenfold.data.files.read_files import is_number, read_arrays, read_file, read_rows
from tenfold.data.sources.source import SOURCES, Source
from tenfold.errors import DataError

KEYS = ("x", "X", "images", "inputs", "data")
"""The arrays of an .npz file that may hold the samples, in the order in which they are looked for."""
TABLES = (".csv", ".tsv", ".parquet")


class Inputs(NamedTuple):
    """Samples, and what they are called where they have names."""

    x: NDArray[Any]
    names: list[str] | None = None


def read_inputs(path: Path, trained_on: Mapping[str, Any], options: Mapping[str, Any]) -> Inputs:
    """Return the samples that a file holds, one per row.

    `trained_on` are the facts of the data that the model was trained on, and `options` those they were read with: a
    table is read by the names of its columns, and may have more; images become as large as those were.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if trained_on.get("features") and path.suffix.lower() in TABLES:
        known = KnownData(tuple(trained_on["features"]))
        return Inputs(known.inputs(read_file(str(path), {}).data, str(path)))
    shape, source = trained_on["shape"], _source(trained_on.get("name"))
    are_images = isinstance(shape, list) and len(shape) == 3 and shape[0] in (1, 3)
    if may_hold_images(path) and are_images and (source is None or source.scale is not None):
        names, pixels = read_unlabelled(path, tuple(shape), options.get("size"))
        largest = source.largest_pixel if source is not None else 255
        return Inputs(pixels if largest == 255 else np.rint(pixels * (largest / 255)).astype(np.uint8), names)
    readers = {".npy": read_arrays, ".npz": _npz, ".csv": _csv}
    if path.suffix.lower() not in readers:
        images = "; images are for models that were trained on images" if may_hold_images(path) else ", or images"
        raise DataError(f"{path} cannot be read; samples come from {', '.join(readers)} files{images}")
    return Inputs(readers[path.suffix.lower()](path))


def _source(data: str | None) -> Source | None:
    """Return the built-in data set of this name; None for the user's own data."""
    return SOURCES[data] if data is not None and data in SOURCES else None


def _npz(path: Path) -> NDArray[Any]:
    arrays: dict[str, NDArray[Any]] = read_arrays(path)
    known = [name for name in KEYS if name in arrays] or (list(arrays) if len(arrays) == 1 else [])
    if not known:
        raise DataError(f"{path} holds the arrays {', '.join(arrays)}; call the one with the samples x")
    return arrays[known[0]]


def _csv(path: Path) -> NDArray[Any]:
    """Read one sample per line; a first line without numbers is a header."""
    rows = read_rows(path)
    if rows and not any(map(is_number, rows[0])):
        rows = rows[1:]
    width = len(rows[0]) if rows else 0
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise DataError(f"{path}: sample {number} has {len(row)} columns, the first has {width}")
        for column, cell in enumerate(row, 1):
            if not is_number(cell):
                raise DataError(f"{path}: column {column} of sample {number} is '{cell}', not a number")
    return np.array([list(map(float, row)) for row in rows], dtype=np.float32)
