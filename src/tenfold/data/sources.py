"""A built-in data set: its files, where they come from, and how they become tensors."""

import gzip
import os
import struct
import time
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from platformdirs import user_cache_path
from pydantic import ValidationError

from tenfold import registry
from tenfold.common.files import open_regular, remove_partial_files, write_atomically
from tenfold.errors import DataError
from tenfold.experiment.section_fields import Section
from tenfold.experiment.values import explain
from tenfold.registry import Registry

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from tenfold.data.part import Splits, Tensors


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of a data set: its size and hash, and those of the gzipped form in which mirrors serve it."""

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


SOURCES: Registry[Source] = registry.SOURCES


# The idx format, in which MNIST and its relatives come.
#
# Two zero bytes, a byte for the type, a byte for the number of dimensions, each dimension as a big-endian uint32,
# then the numbers, big-endian, last dimension fastest. Plain or gzipped.

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"


def content(path: Path, limit: int) -> bytes:
    """Return the content of a file, decompressed if it is gzipped; more than `limit` bytes are an error."""
    try:
        with open_regular(path) as plain:
            gzipped = plain.read(2) == _GZIP
            plain.seek(0)
            with gzip.open(plain) if gzipped else plain as file:
                data = file.read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); it should be an idx file, plain or gzipped") from error
    if len(data) > limit:
        raise DataError(f"{path} holds more than the {limit:,} bytes that it should have")
    return data


def decode(data: bytes) -> "NDArray[Any]":
    """Turn the bytes of an idx file into an array."""
    import numpy as np

    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES:
        raise DataError("the data do not begin as an idx file should (two zero bytes, then a type)")
    kind, start = np.dtype(_TYPES[data[2]]), 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"the data end within the idx header after {len(data)} bytes; they are truncated")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    size = start + kind.itemsize * int(np.prod(shape, dtype=np.int64))
    if len(data) != size:
        raise DataError(f"the data have {len(data)} bytes where their idx header announces {size}; they are damaged")
    array = np.frombuffer(data, kind, offset=start).reshape(shape)
    return array.astype(kind.newbyteorder("="))


def encode(array: "NDArray[Any]") -> bytes:
    """Turn an array into the bytes of an idx file."""
    import numpy as np

    kind = array.dtype.newbyteorder(">")
    codes = {np.dtype(text): code for code, text in _TYPES.items()}
    if kind not in codes:
        dtypes = ", ".join(np.dtype(text).name for text in _TYPES.values())
        raise DataError(f"idx files cannot hold {array.dtype}; convert to one of {dtypes}")
    header = bytes([0, 0, codes[kind], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(kind).tobytes()


def compress(data: bytes) -> bytes:
    """Gzip without a time stamp: the same bytes always give the same file."""
    return gzip.compress(data, compresslevel=6, mtime=0)


class SourceOptions(Section):
    """The options of a data set, as `data.options` gives them."""

    def __init__(self, /, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            lines = explain(error, type(self)).splitlines()
            raise DataError("\n".join(f"data.options.{line}" for line in lines)) from None


# The files of a data set: found and read on disk, or downloaded, safely when several processes do so at once.
#
# Nothing larger than announced is received, the hash of what was received is verified before it is decompressed, and
# no more is decompressed than the content should have.

FetchProgress = Callable[[int, int | None, str], None]
"""Called with the bytes received, the bytes in all (None where the server does not say) and the file's name."""

_show_progress: ContextVar[FetchProgress | None] = ContextVar("show_progress", default=None)


@contextmanager
def showing_downloads(show: FetchProgress) -> Iterator[None]:
    """Call a function with the progress of every download of this thread while the block lasts."""
    before = _show_progress.set(show)
    try:
        yield
    finally:
        _show_progress.reset(before)


_TIMEOUT_SECONDS = 10
_SLOWEST_BYTES = 10_000
"""Bytes per second that a server must send on average after the first minute; a slower one is given up."""
_GRACE_SECONDS = 60.0
_CHUNK_BYTES = 2**18


def fetch(source: Source, folder: Path) -> dict[str, bytes]:
    """Bring every file of a source into `folder`, and return their verified contents."""
    from filelock import FileLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            remove_partial_files(folder)
            return _fetch_missing(source, folder)
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be stored in {folder}: {error.strerror or error}; "
            f"free some space there, or set TENFOLD_CACHE to a folder that can be written to"
        ) from error


def _fetch_missing(source: Source, folder: Path) -> dict[str, bytes]:
    """Under the lock: keep what another process has downloaded meanwhile, and get the rest."""
    contents: dict[str, bytes] = {}
    for name, file in source.files.items():
        try:
            contents[name] = read(folder, name, file)
        except DataError:
            continue
    tried = []
    for mirror in source.mirrors:
        try:
            for name, file in source.files.items():
                if name not in contents:
                    contents[name] = _download(mirror, name, file, folder)
        except DataError as error:
            tried.append(f"{mirror} ({error})")
        else:
            return contents
    if source.fallback:
        try:
            for name, data in source.fallback().items():
                contents[name] = verify(data, source.files[name], f"the content of {name}")
                write_atomically(folder / f"{name}.gz", compress(data))
        except DataError as error:
            tried.append(str(error))
        else:
            return contents
    package = f"Install Debian's package {source.package}, or put" if source.package else "Put"
    raise DataError(
        f"{source.name} is not on this machine and could not be downloaded; tried {'; '.join(tried) or 'no mirror'}. "
        f"{package} {', '.join(f'{name}.gz' for name in source.files)} into {folder}, or use data 'digits'"
    )


def _download(mirror: str, name: str, file: SourceFile, folder: Path) -> bytes:
    """Download one file into a folder, and return its verified content."""
    received = _receive(f"{mirror}{name}.gz", f"{name}.gz", file.download_size)
    if sha256(received).hexdigest() != file.download_sha256:
        raise DataError(f"{name}.gz is damaged or not the expected file: its sha256 is wrong")
    write_atomically(folder / f"{name}.gz", received)
    return read(folder, name, file)


def _receive(url: str, name: str, size: int) -> bytes:
    """Return the answer of a server; more bytes than `size`, and a server that is too slow, are an error."""
    received = bytearray()
    limit, began = _GRACE_SECONDS + size / _SLOWEST_BYTES, time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            while chunk := answer.read1(_CHUNK_BYTES):  # what has come, where `read` waits for all of it
                received += chunk
                if time.monotonic() - began > limit:
                    raise DataError(f"{name}: only {len(received):,} bytes came within {limit:.0f} s")
                if len(received) > size:
                    raise DataError(f"{name} is larger than the {size:,} bytes that it should have")
                if (show := _show_progress.get()) is not None:
                    show(len(received), int(length) if length else None, name)
    except urllib.error.URLError as error:
        raise DataError(f"{name}: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise DataError(f"{name}: {error}") from error
    return bytes(received)


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file, gzipped or plain, or None."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def read(folder: Path, name: str, file: SourceFile) -> bytes:
    """Return the verified content of a file in a folder."""
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder} holds no {name}, neither plain nor as .gz")
    return verify(content(path, file.size), file, str(path))


def verify(content: bytes, file: SourceFile, called: str) -> bytes:
    """Return the content if its sha256 is right; an error calls it `called`."""
    digest = sha256(content).hexdigest()
    if digest != file.sha256:
        raise DataError(
            f"{called} is damaged or belongs to another data set: "
            f"its content has sha256 {digest[:12]}..., which should be {file.sha256[:12]}..."
        )
    return content


# Where the files of built-in data sets are: looked for in a few folders, in order, else fetched.
#
#     $TENFOLD_DATA/<name>, or $TENFOLD_DATA itself
#     $TENFOLD_CACHE/data/<name>; where that is not set, the user's cache folder/tenfold/data/<name>
#     /usr/share/datasets/<name>, where Debian's packages put theirs
#
# Every file is checked against its sha256 whenever it is used; a wrong one is named in a warning and passed over.

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


def get(name: str) -> Path | None:
    """Return the folder with the checked files of a data set, fetching them if need be; None if it has no files."""
    return contents(SOURCES[name])[0] if SOURCES[name].files else where(name)


def contents(source: Source) -> tuple[Path, dict[str, bytes]]:
    """Return the folder of a data set that has files, and their checked contents."""
    for folder in places(source.name):
        if _complete(source, folder):
            try:
                return folder, {name: read(folder, name, file) for name, file in source.files.items()}
            except DataError as error:
                warnings.warn(f"{error}; looking for another copy", stacklevel=2)
    folder = cache() / source.name
    return folder, fetch(source, folder)


def _complete(source: Source, folder: Path) -> bool:
    return all(find(folder, name) for name in source.files)
