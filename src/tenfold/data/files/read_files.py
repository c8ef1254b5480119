"""Reading data from files: tables (CSV, Parquet), arrays of NumPy, and folders of images."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tenfold.common.array_files import read_npy, read_npz
from tenfold.common.files import open_regular, require_regular
from tenfold.common.part_names import PARTS
from tenfold.data.files.column_values import Categories
from tenfold.data.files.image_files import read_images
from tenfold.data.files.known_data import KnownData
from tenfold.errors import DataError


class FileData(NamedTuple):
    """What a file or folder holds."""

    data: Any
    is_table: bool = False
    """Whether the data are columns of a table."""
    class_names: tuple[str, ...] = ()
    """What the classes of images are called."""


def read_file(name: str, options: Mapping[str, Any], known: KnownData | None = None) -> FileData:
    """Return the data in a file or folder; images by the classes of the `known` ones, where these are given."""
    path = Path(name).expanduser()
    if not path.exists():
        raise DataError(f"there is no file or folder '{name}' (looked in {Path.cwd()})")
    if path.is_dir():
        images, classes = read_images(path, known.class_names if known else (), **_checked(options, ("size",), name))
        return FileData(images, class_names=classes)
    _checked(options, (), name)
    readers: dict[str, Callable[[Path], Any]] = {
        ".csv": lambda path: _read_text(path, ","),
        ".tsv": lambda path: _read_text(path, "\t"),
        ".parquet": _read_parquet,
        ".npy": _read_npy,
        ".npz": _read_npz,
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise DataError(f"'{name}' is not a known kind of file; known: {', '.join(readers)}, and folders of images")
    return FileData(readers[suffix](path), is_table=suffix != ".npz")


def _checked(options: Mapping[str, Any], known: tuple[str, ...], name: str) -> dict[str, Any]:
    for option in options:
        if option not in known:
            takes = f"the options {', '.join(known)}" if known else "no options"
            raise DataError(f"data.options: '{name}' takes {takes}, but was given '{option}'")
    return dict(options)


def _read_text(path: Path, delimiter: str) -> dict[str, list[str]]:
    """Return the columns of a text file whose first row names them."""
    rows = read_rows(path, delimiter)
    if len(rows) < 2:
        raise DataError(f"{path} has no rows below the names of its columns")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two columns of the same name: {', '.join(names)}")
    if all(map(is_number, names)):
        raise DataError(f"the first row of {path} should name the columns, but it is {', '.join(names)[:60]}")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise DataError(f"row {number} of {path} has {len(row)} values; the first row names {len(names)} columns")
    return {name: [row[place] for row in rows[1:]] for place, name in enumerate(names)}


def read_rows(path: Path, delimiter: str = ",") -> list[list[str]]:
    """Return the rows of a text file, without empty ones; ";" and tabs between values are recognized, too."""
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max((delimiter, ";", "\t"), key=first.count)
            return [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a table of text in UTF-8: {error}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> dict[str, Any]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"reading {path} needs the package pyarrow: pip install 'tenfold[parquet]'; or save it as CSV"
        ) from None
    try:
        require_regular(path)
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file: {str(error).partition(chr(10))[0]}") from None
    noted = {one["name"]: one["pandas_type"] for one in (table.schema.pandas_metadata or {}).get("columns", ())}
    found: dict[str, Any] = {}
    for name in table.column_names:
        found[name] = table[name].to_pylist()
        if noted.get(name) == "categorical" or pyarrow.types.is_dictionary(table[name].type):
            found[name] = Categories("" if one is None else str(one) for one in found[name])
    return found


def _read_npy(path: Path) -> dict[str, Any]:
    """Return the columns of a matrix, named by their numbers from 0."""
    array = read_arrays(path)
    if array.ndim != 2:
        raise DataError(f"{path} holds an array of shape {array.shape}; a table should have two dimensions")
    return {str(number): array[:, number] for number in range(array.shape[1])}


def _read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays by name, or by parts where they are called x_train, y_train, x_test and so on."""
    arrays: dict[str, Any] = read_arrays(path)
    parts = {part: (f"x_{part}", f"y_{part}") for part in PARTS}
    if all(name in arrays for name in parts["train"]):
        return {part: (arrays[x], arrays[y]) for part, (x, y) in parts.items() if x in arrays and y in arrays}
    return arrays


def read_arrays(path: Path) -> Any:
    """Return the array in a file of NumPy, or all arrays of an archive by name."""
    try:
        return read_npy(path) if path.suffix.lower() == ".npy" else read_npz(path)
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{path} cannot be read as arrays of numbers: {reason}") from None
