"""Where the files of built-in data sets are: looked for in a few folders, in order, else fetched.

    $TENFOLD_DATA/<name>, or $TENFOLD_DATA itself
    $TENFOLD_CACHE/data/<name>; where that is not set, the user's cache folder/tenfold/data/<name>
    /usr/share/datasets/<name>, where Debian's packages put theirs

Every file is checked against its sha256 whenever it is used; a wrong one is named in a warning and passed over.
"""

import os
import warnings
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_path

from tenfold.data.sources.fetch import FetchProgress, fetch, find, read
from tenfold.data.sources.source import SOURCES, Source
from tenfold.errors import DataError

DEBIAN = Path("/usr/share/datasets")


class SourceStatus(NamedTuple):
    """A built-in data set and where its files are."""

    name: str
    description: str
    where: Path | None
    """Its folder; None if it needs no files, or is not downloaded yet."""


def cache() -> Path:
    """Return the folder that fetched data go to."""
    chosen = os.environ.get("TENFOLD_CACHE")
    return (Path(chosen).expanduser() if chosen else user_cache_path("tenfold")) / "data"


def places(name: str) -> list[Path]:
    """Return the folders to look in, in order."""
    chosen = os.environ.get("TENFOLD_DATA")
    own = [Path(chosen).expanduser() / name, Path(chosen).expanduser()] if chosen else []
    return [*own, cache() / name, DEBIAN / name]


def where(name: str) -> Path | None:
    """Return the first folder that holds all files of a data set, unchecked; None if there is none."""
    source = SOURCES[name]
    if source.find is not None:
        return source.find()
    return next((folder for folder in places(name) if source.files and _complete(source, folder)), None)


def available() -> list[SourceStatus]:
    """List the built-in data sets."""
    return [SourceStatus(name, SOURCES[name].description, where(name)) for name in SOURCES]


def get(name: str, progress: FetchProgress | None = None) -> Path | None:
    """Return the folder with the checked files of a data set, fetching them if need be; None if it has no files."""
    return contents(SOURCES[name], progress)[0] if SOURCES[name].files else where(name)


def contents(source: Source, progress: FetchProgress | None = None) -> tuple[Path, dict[str, bytes]]:
    """Return the folder of a data set that has files, and their checked contents."""
    for folder in places(source.name):
        if _complete(source, folder):
            try:
                return folder, {name: read(folder, name, file) for name, file in source.files.items()}
            except DataError as error:
                warnings.warn(f"{error}; looking for another copy", stacklevel=2)
    folder = cache() / source.name
    return folder, fetch(source, folder, progress)


def _complete(source: Source, folder: Path) -> bool:
    return all(find(folder, name) for name in source.files)
