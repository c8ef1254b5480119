"""What a built-in data set is: its files, where they come from, and how they become tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenfold.common import catalog
from tenfold.common.registry import Registry

if TYPE_CHECKING:
    from tenfold.data.part import Tensors


@dataclass(frozen=True, kw_only=True)
class Source:
    """A built-in data set."""

    name: str
    description: str
    load: "Callable[[Mapping[str, bytes]], tuple[Tensors, Tensors]]"
    """Makes the standard train and test parts out of the contents of the files."""
    files: Mapping[str, str] = field(default_factory=dict)
    """File name without .gz -> sha256 of the unzipped content, so that it does not matter who gzipped it."""
    mirrors: tuple[str, ...] = ()
    """Web folders that hold the files with .gz appended."""
    fallback: Callable[[], Mapping[str, bytes]] | None = None
    """Gets the contents of the files when no mirror answers."""


SOURCES: Registry[Source] = catalog.SOURCES
