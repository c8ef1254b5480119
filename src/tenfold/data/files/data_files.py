"""Data in files: tables (CSV, Parquet), arrays of NumPy, and folders of images by class."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tenfold.common.part_names import PARTS
from tenfold.data.files.column_values import Categories
from tenfold.errors import DataError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")


def read_file(name: str, options: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the data in a file or folder, and whether they are columns of a table."""
    path = Path(name).expanduser()
    if not path.exists():
        raise DataError(f"there is no file or folder '{name}' (looked in {Path.cwd()})")
    if path.is_dir():
        return read_images(path, **_checked(options, ("size",), name)), False
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
    return readers[suffix](path), suffix != ".npz"


def _checked(options: Mapping[str, Any], known: tuple[str, ...], name: str) -> dict[str, Any]:
    for option in options:
        if option not in known:
            takes = f"the options {', '.join(known)}" if known else "no options"
            raise DataError(f"data.options: '{name}' takes {takes}, but was given '{option}'")
    return dict(options)


def _read_text(path: Path, delimiter: str) -> dict[str, list[str]]:
    """Return the columns of a text file whose first row names them; ";" and tabs are recognized, too."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            delimiter = max((delimiter, ";", "\t"), key=first.count)
            rows = [row for row in csv.reader(file, delimiter=delimiter) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a table of text in UTF-8: {error}") from None
    if len(rows) < 2:
        raise DataError(f"{path} has no rows below the names of its columns")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two columns of the same name: {', '.join(names)}")
    if all(_is_number(name) for name in names):
        raise DataError(f"the first row of {path} should name the columns, but it is {', '.join(names)[:60]}")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise DataError(f"row {number} of {path} has {len(row)} values; the first row names {len(names)} columns")
    return {name: [row[place] for row in rows[1:]] for place, name in enumerate(names)}


def _is_number(text: str) -> bool:
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
    array = _load(path)
    if array.ndim != 2:
        raise DataError(f"{path} holds an array of shape {array.shape}; a table should have two dimensions")
    return {str(number): array[:, number] for number in range(array.shape[1])}


def _read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays by name, or by parts where they are called x_train, y_train, x_test and so on."""
    with _load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    parts = {part: (f"x_{part}", f"y_{part}") for part in PARTS}
    if all(name in arrays for name in parts["train"]):
        return {part: (arrays[x], arrays[y]) for part, (x, y) in parts.items() if x in arrays and y in arrays}
    return arrays


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as arrays of numbers: {error}") from None


def read_images(folder: Path, size: Any = None) -> Any:
    """Return images and the numbers of their classes, which are the names of the folders they are in.

    Folders called train, validation and test are parts. `size` (one number, or [height, width]) resizes all.
    """
    parts = {part: folder / part for part in PARTS if (folder / part).is_dir()}
    where = parts if "train" in parts else {"": folder}
    classes = sorted({one.name for root in where.values() for one in root.iterdir() if one.is_dir()})
    if len(classes) < 2:
        raise DataError(
            f"the folder {folder} has {len(classes)} folders in it; images should be in one folder for each class"
        )
    found = {part: _images_in(root, classes, size) for part, root in where.items()}
    channels = max(max(image.shape[0] for image in images) for images, _ in found.values())
    data = {part: (_stacked(images, channels, folder), np.array(labels)) for part, (images, labels) in found.items()}
    return data.get("") or data


def _images_in(root: Path, classes: list[str], size: Any) -> tuple[list[Any], list[int]]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError("reading images needs the package Pillow: pip install pillow") from None
    images, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((root / name).glob("*")):
            if path.suffix.lower() not in IMAGES:
                continue
            try:
                with Image.open(path) as image:
                    shown = image.convert("L" if image.mode in ("1", "L", "I;16") else "RGB")
                    if size is not None:
                        height, width = (size, size) if isinstance(size, int) else size
                        shown = shown.resize((width, height))
            except (UnidentifiedImageError, OSError) as error:
                raise DataError(f"the image {path} cannot be read: {error}") from None
            pixels = np.asarray(shown, dtype=np.uint8)
            images.append(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
            labels.append(label)
    if not images:
        raise DataError(f"the folders in {root} hold no images ({', '.join(IMAGES)})")
    return images, labels


def _stacked(images: list[Any], channels: int, folder: Path) -> Any:
    sizes = sorted({image.shape[1:] for image in images})
    if len(sizes) > 1:
        raise DataError(
            f"the images in {folder} differ in size, such as {sizes[0]} and {sizes[-1]}; "
            f"set data.options = {{size = {sizes[0][0]}}} to resize all"
        )
    return np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])
