"""What a built-in data set is: its files, where they come from, and how they become tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common import catalog
from tenfold.common.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from tenfold.data.part import Splits, Tensors


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of a data set: what it holds, and the gzipped form in which mirrors serve it."""

    size: int
    """Bytes of the content."""
    sha256: str
    """Of the content, so that it does not matter who compressed it."""
    download_size: int
    download_sha256: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """A built-in data set."""

    name: str
    description: str
    load: "Callable[[Mapping[str, bytes]], tuple[Tensors, Tensors]] | None" = None
    """Makes the standard train and test parts out of the contents of the files."""
    make: "Callable[[Mapping[str, Any]], Splits] | None" = None
    """In place of `load`: makes the data out of the options of the experiment, and finds what it needs by itself."""
    find: Callable[[], Path | None] | None = None
    """Returns the folder that `make` reads; None where it is missing."""
    absent: str = ""
    """What to do where it is missing."""
    scale: "Callable[[Tensor], Tensor] | None" = None
    """Turns pixels as the files hold them into the inputs that `load` returns, for samples that come later."""
    largest_pixel: int = 255
    """The largest value of these pixels; those of image files are converted from 0 to 255."""
    files: Mapping[str, SourceFile] = field(default_factory=dict)
    """The files by name, without .gz."""
    mirrors: tuple[str, ...] = ()
    """Web folders that hold the files with .gz appended, tried in order."""
    fallback: Callable[[], Mapping[str, bytes]] | None = None
    """Gets the contents of the files when no mirror answers."""
    package: str = ""
    """The Debian package that installs the files."""


SOURCES: Registry[Source] = catalog.SOURCES
