"""Samples without targets from a file: arrays (.npy, .npz), rows of numbers, or a table like the one trained on."""

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenfold.data.files.column_values import select_features
from tenfold.data.files.data_files import read_file
from tenfold.errors import DataError

KEYS = ("x", "X", "images", "inputs", "data")
"""The arrays of an .npz file that may hold the samples, in the order in which they are looked for."""


TABLES = (".csv", ".tsv", ".parquet")


def read_inputs(path: Path, features: Sequence[str] = ()) -> NDArray[Any]:
    """Return the samples that a file holds, one a row.

    `features` are the inputs of a model that was trained on a table; another table is then read by the names of its
    columns, and may have more.
    """
    if features and path.suffix.lower() in TABLES:
        table, _ = read_file(str(path), {})
        return select_features(table, features, str(path))
    readers = {".npy": _npy, ".npz": _npz, ".csv": _csv}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path} cannot be read; samples come from {', '.join(readers)} files")
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        return readers[path.suffix.lower()](path)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
        raise DataError(f"{path} cannot be read: {reason}") from None


def _npy(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, allow_pickle=False)
    return array


def _npz(path: Path) -> NDArray[Any]:
    with np.load(path, allow_pickle=False) as arrays:
        names = list(arrays)
        known = [name for name in KEYS if name in names] or (names if len(names) == 1 else [])
        if not known:
            raise DataError(f"{path} holds the arrays {', '.join(names)}; call the one with the samples x")
        array: NDArray[Any] = arrays[known[0]]
        return array


def _csv(path: Path) -> NDArray[Any]:
    """Read one sample a line; a first line without numbers is a header."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if rows and not any(_is_number(cell) for cell in rows[0]):
        rows = rows[1:]
    width = len(rows[0]) if rows else 0
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise DataError(f"{path}: sample {number} has {len(row)} columns, the first has {width}")
        for column, cell in enumerate(row, 1):
            if not _is_number(cell):
                raise DataError(f"{path}: column {column} of sample {number} is '{cell}', not a number")
    return np.array(rows, dtype=np.float32)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
