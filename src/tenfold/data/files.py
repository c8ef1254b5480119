"""Reading tables, arrays and folders of images from files, for training and for a trained model."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenfold.common import PARTS
from tenfold.common.files import open_regular, read_npy, read_npz, require_regular
from tenfold.data.sources import SOURCES, Source
from tenfold.data.tables import Categories, KnownData
from tenfold.errors import DataError


class FileData(NamedTuple):
    """The content of a file or folder."""

    data: Any
    is_table: bool = False
    """Whether the data are columns of a table."""
    class_names: tuple[str, ...] = ()
    """The names of the classes of images."""


def read_file(name: str, options: Mapping[str, Any], trained_on: KnownData | None = None) -> FileData:
    """Return the data in a file or folder; images use the classes of the data a model was `trained_on`."""
    path = Path(name).expanduser()
    if not path.exists():
        raise DataError(f"there is no file or folder '{name}' (looked in {Path.cwd()})")
    if path.is_dir():
        images, classes = read_images(
            path, trained_on.class_names if trained_on else (), **_checked(options, ("size",), name)
        )
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


def _checked(options: Mapping[str, Any], allowed: tuple[str, ...], name: str) -> dict[str, Any]:
    for option in options:
        if option not in allowed:
            takes = f"the options {', '.join(allowed)}" if allowed else "no options"
            raise DataError(f"data.options: '{name}' takes {takes}, not '{option}'")
    return dict(options)


def _read_text(path: Path, delimiter: str) -> dict[str, list[str]]:
    """Return the columns of a text file whose first row names them."""
    rows = read_rows(path, delimiter)
    if len(rows) < 2:
        raise DataError(f"{path} has column names but no rows")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names):
        raise DataError(f"{path} has two columns of the same name: {', '.join(names)}")
    if all(map(is_number, names)):
        raise DataError(f"the first row of {path} should name the columns, but it is {', '.join(names)[:60]}")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise DataError(f"row {number} of {path} has {len(row)} values; the header has {len(names)}")
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
        raise DataError(f"{path} cannot be read as UTF-8 text: {error}") from None
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
    noted = {item["name"]: item["pandas_type"] for item in (table.schema.pandas_metadata or {}).get("columns", ())}
    read: dict[str, Any] = {}
    for name in table.column_names:
        read[name] = table[name].to_pylist()
        if noted.get(name) == "categorical" or pyarrow.types.is_dictionary(table[name].type):
            read[name] = Categories("" if item is None else str(item) for item in read[name])
    return read


def _read_npy(path: Path) -> dict[str, Any]:
    """Return the columns of a matrix, named by their numbers from 0."""
    array = read_arrays(path)
    if array.ndim != 2:
        raise DataError(f"{path} holds an array of shape {array.shape}; a table should have two dimensions")
    return {str(number): array[:, number] for number in range(array.shape[1])}


def _read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays by name, or by part if they are called x_train, y_train, x_test and so on."""
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


IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
GRAY_MODES = ("1", "L", "I;16")


def read_images(folder: Path, class_names: tuple[str, ...] = (), size: Any = None) -> tuple[Any, tuple[str, ...]]:
    """Return images with their class numbers, and the class names, which are the names of the folders.

    Folders called train, validation and test are parts. `size` (one number, or [height, width]) resizes all images.
    The `class_names` of a previously trained model keep their numbers.
    """
    parts = {part: folder / part for part in PARTS if (folder / part).is_dir()}
    where = parts if "train" in parts else {"": folder}
    classes = sorted({folder.name for root in where.values() for folder in _folders(root)})
    unknown = [name for name in classes if class_names and name not in class_names]
    if unknown:
        raise DataError(
            f"the folder {folder} has the class '{unknown[0]}', which the model was not trained on; "
            f"it knows {', '.join(class_names)}"
        )
    if len(classes) < (1 if class_names else 2):
        raise DataError(
            f"the folder {folder} has {len(classes)} folders in it; images should be in one folder for each class"
        )
    by_part = {part: _labeled(root, class_names or tuple(classes), size) for part, root in where.items()}
    empty = (
        []
        if class_names
        else sorted(set(range(len(classes))) - {label for _, labels in by_part.values() for label in labels})
    )
    if empty:
        raise DataError(
            f"the folder {classes[empty[0]]} in {folder} holds no images ({', '.join(IMAGES)}); "
            "each folder should hold those of one class"
        )
    channels = max(image.shape[0] for images, _ in by_part.values() for image in images)
    height = min(image.shape[1] for images, _ in by_part.values() for image in images)
    advice = f"set data.options = {{size = {height}}} to resize all"
    data = {
        part: (_stacked(images, channels, folder, advice), np.array(labels, dtype=np.int64))
        for part, (images, labels) in by_part.items()
    }
    return data.get("") or data, class_names or tuple(classes)


def read_unlabeled(path: Path, shape: tuple[int, ...], size: Any = None) -> tuple[list[str], NDArray[np.uint8]]:
    """Return the names and the pixels of an image, or of all images in a folder, for a model with this input shape."""
    paths = [path] if path.is_file() else sorted(_images_below(path))
    if not paths:
        raise DataError(f"the folder {path} holds no images ({', '.join(IMAGES)})")
    images = [_read(path, size, gray=shape[0] == 1) for path in paths]
    height, width = shape[-2:]
    advice = f"the model takes images of {height} x {width}: resize them, or train with data.options = {{size = ...}}"
    names = [str(item.relative_to(path)) if path.is_dir() else item.name for item in paths]
    return names, _stacked(images, shape[0], path, advice)


def may_hold_images(path: Path) -> bool:
    """Return whether a path is a folder or has the extension of an image."""
    return path.is_dir() or path.suffix.lower() in IMAGES


def _folders(root: Path) -> Iterable[Path]:
    return (path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images_below(folder: Path) -> Iterable[Path]:
    """Yield the images in a folder and in those below it, except for hidden ones and those in hidden folders."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in IMAGES and not hidden:
            yield path


def _labeled(root: Path, classes: tuple[str, ...], size: Any) -> tuple[list[Any], list[int]]:
    images, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((root / name).glob("*")):
            if path.suffix.lower() in IMAGES and not path.name.startswith("."):
                images.append(_read(path, size))
                labels.append(label)
    if not images:
        raise DataError(f"the folders in {root} hold no images ({', '.join(IMAGES)})")
    return images, labels


def _read(path: Path, size: Any, *, gray: bool = False) -> NDArray[np.uint8]:
    """Return the pixels of an image as channels x height x width: one channel if it is gray, or with `gray`."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError("reading images needs the package Pillow: pip install pillow") from None
    wanted = _height_and_width(size)
    try:
        require_regular(path)
        with Image.open(path) as image:
            shown = image.convert("L" if gray or image.mode in GRAY_MODES else "RGB")
            if wanted is not None:
                shown = shown.resize(wanted[::-1])
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"the image {path} cannot be read: {error}") from None
    pixels = np.asarray(shown, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _height_and_width(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    both = [size, size] if isinstance(size, int) else size
    if (
        not isinstance(both, (list, tuple))
        or len(both) != 2
        or not all(type(item) is int and item > 0 for item in both)
    ):
        raise DataError(f"data.options: size is {size!r}; it should be a number of pixels, or [height, width]")
    return both[0], both[1]


def _stacked(images: list[Any], channels: int, folder: Path, advice: str) -> NDArray[np.uint8]:
    sizes = sorted({image.shape[1:] for image in images})
    if len(sizes) > 1:
        raise DataError(f"the images in {folder} differ in size, such as {sizes[0]} and {sizes[-1]}; {advice}")
    return np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])


KEYS = ("x", "X", "images", "inputs", "data")
"""The arrays of an .npz file that may hold the samples, in order of preference."""
TABLES = (".csv", ".tsv", ".parquet")


class Inputs(NamedTuple):
    """Samples, and their names if they have any."""

    x: NDArray[Any]
    names: list[str] | None = None


def read_inputs(path: Path, trained_on: Mapping[str, Any], options: Mapping[str, Any]) -> Inputs:
    """Return the samples in a file, one per row.

    `trained_on` is the metadata of the model's training data, and `options` are the options it was read with. Columns
    of a table are selected by name, and others are ignored; images are resized to the size of the training images.
    """
    if not path.exists():
        raise DataError(f"there is no file {path}")
    if trained_on.get("features") and path.suffix.lower() in TABLES:
        table_inputs = KnownData(tuple(trained_on["features"]))
        return Inputs(table_inputs.inputs(read_file(str(path), {}).data, str(path)))
    shape, source = trained_on["shape"], _source(trained_on.get("name"))
    are_images = isinstance(shape, list) and len(shape) == 3 and shape[0] in (1, 3)
    if may_hold_images(path) and are_images and (source is None or source.scale is not None):
        names, pixels = read_unlabeled(path, tuple(shape), options.get("size"))
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
    keys = [name for name in KEYS if name in arrays] or (list(arrays) if len(arrays) == 1 else [])
    if not keys:
        raise DataError(f"{path} holds the arrays {', '.join(arrays)}; call the one with the samples x")
    return arrays[keys[0]]


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
    return np.array([list(map(float, row)) for row in rows])
