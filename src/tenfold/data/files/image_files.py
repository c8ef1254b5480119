"""Images in files: folders of them by class, and single ones to predict."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenfold.common.files import require_regular
from tenfold.common.part_names import PARTS
from tenfold.errors import DataError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
GREY_MODES = ("1", "L", "I;16")


def read_images(folder: Path, known: tuple[str, ...] = (), size: Any = None) -> tuple[Any, tuple[str, ...]]:
    """Return images with the numbers of their classes, and the names of the classes: those of the folders they are in.

    Folders called train, validation and test are parts. `size` (one number, or [height, width]) resizes all. `known`
    are the classes of a model that was trained before, which keep their numbers.
    """
    parts = {part: folder / part for part in PARTS if (folder / part).is_dir()}
    where = parts if "train" in parts else {"": folder}
    classes = sorted({one.name for root in where.values() for one in _folders(root)})
    unknown = [name for name in classes if known and name not in known]
    if unknown:
        raise DataError(
            f"the folder {folder} has the class '{unknown[0]}', which the model was not trained on; "
            f"it knows {', '.join(known)}"
        )
    if len(classes) < (1 if known else 2):
        raise DataError(
            f"the folder {folder} has {len(classes)} folders in it; images should be in one folder for each class"
        )
    found = {part: _labelled(root, known or tuple(classes), size) for part, root in where.items()}
    empty = [] if known else sorted(set(range(len(classes))) - {one for _, labels in found.values() for one in labels})
    if empty:
        raise DataError(
            f"the folder {classes[empty[0]]} in {folder} holds no images ({', '.join(IMAGES)}); "
            "each folder should hold those of one class"
        )
    channels = max(image.shape[0] for images, _ in found.values() for image in images)
    height = min(image.shape[1] for images, _ in found.values() for image in images)
    advice = f"set data.options = {{size = {height}}} to resize all"
    data = {
        part: (_stacked(images, channels, folder, advice), np.array(labels, dtype=np.int64))
        for part, (images, labels) in found.items()
    }
    return data.get("") or data, known or tuple(classes)


def read_unlabelled(path: Path, shape: tuple[int, ...], size: Any = None) -> tuple[list[str], NDArray[np.uint8]]:
    """Return the names and the pixels of an image, or of all images in a folder, for a model that takes this shape."""
    paths = [path] if path.is_file() else sorted(_images_below(path))
    if not paths:
        raise DataError(f"the folder {path} holds no images ({', '.join(IMAGES)})")
    images = [_read(one, size, grey=shape[0] == 1) for one in paths]
    height, width = shape[-2:]
    advice = f"the model takes images of {height} x {width}: resize them, or train with data.options = {{size = ...}}"
    names = [str(one.relative_to(path)) if path.is_dir() else one.name for one in paths]
    return names, _stacked(images, shape[0], path, advice)


def may_hold_images(path: Path) -> bool:
    """Return whether a path is a folder, or named as an image is."""
    return path.is_dir() or path.suffix.lower() in IMAGES


def _folders(root: Path) -> Iterable[Path]:
    return (one for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))


def _images_below(folder: Path) -> Iterable[Path]:
    """Yield the images in a folder and in those below it, except for hidden ones and those in hidden folders."""
    for one in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in one.relative_to(folder).parts)
        if one.suffix.lower() in IMAGES and not hidden:
            yield one


def _labelled(root: Path, classes: tuple[str, ...], size: Any) -> tuple[list[Any], list[int]]:
    images, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((root / name).glob("*")):
            if path.suffix.lower() in IMAGES and not path.name.startswith("."):
                images.append(_read(path, size))
                labels.append(label)
    if not images:
        raise DataError(f"the folders in {root} hold no images ({', '.join(IMAGES)})")
    return images, labels


def _read(path: Path, size: Any, *, grey: bool = False) -> NDArray[np.uint8]:
    """Return the pixels of an image as channels x height x width: one channel if it is grey, or with `grey`."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError("reading images needs the package Pillow: pip install pillow") from None
    wanted = _height_and_width(size)
    try:
        require_regular(path)
        with Image.open(path) as image:
            shown = image.convert("L" if grey or image.mode in GREY_MODES else "RGB")
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
    if not isinstance(both, (list, tuple)) or len(both) != 2 or not all(type(one) is int and one > 0 for one in both):
        raise DataError(f"data.options: size is {size!r}; it should be a number of pixels, or [height, width]")
    return both[0], both[1]


def _stacked(images: list[Any], channels: int, folder: Path, advice: str) -> NDArray[np.uint8]:
    sizes = sorted({image.shape[1:] for image in images})
    if len(sizes) > 1:
        raise DataError(f"the images in {folder} differ in size, such as {sizes[0]} and {sizes[-1]}; {advice}")
    return np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])
