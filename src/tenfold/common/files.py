"""Files: open only regular files, read TOML with clear errors, and write files atomically."""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tenfold.errors import ExperimentError, StoreError

if TYPE_CHECKING:
    from numpy.typing import NDArray


PARTIAL = ".part"
OCTAL = re.compile(r"\\([0-7]{3})")
"""How a list of mounts writes spaces and the like in names."""
LARGEST_TEXT = 2**26
"""Bytes of a TOML or JSON file that are read at most."""


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read it; OSError for anything else, since a pipe or a device may keep a reader waiting."""
    require_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return os.fdopen(_checked(descriptor, path), "rb")


def open_to_update(path: Path) -> BufferedRandom:
    """Open a regular file to read and write it, made if it is missing; OSError for anything else, and for links."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    return os.fdopen(_checked(descriptor, path), "r+b")


def require_regular(path: Path, *, links: bool = True) -> None:
    """Raise OSError for anything but a regular file, or a link to one where `links` are allowed."""
    _check_kind(path.stat() if links else path.lstat(), path)


def make_own_folder(folder: Path) -> None:
    """Make a folder to write into, if it is missing; OSError if it is a link, or holds a link to another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in (folder, *folder.iterdir()):
        if path.is_symlink() and path.is_dir():
            raise OSError(errno.ENOTDIR, f"{short_path(path)} is a link", str(path))


def read_regular(path: Path, most: int = LARGEST_TEXT) -> bytes:
    """Return the content of a regular file; OSError for anything else, and for more than `most` bytes."""
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return content


def _checked(descriptor: int, path: Path) -> int:
    """Return a descriptor of a regular file; of any other, close it and raise OSError."""
    try:
        _check_kind(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_kind(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def make_private(folder: Path) -> None:
    """Make a folder that only this user can write to; StoreError if there is one into which others could have written.

    Also what was in it before counts: a folder of somebody else, or a link, may hold files that were put there for us.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise StoreError(f"{short_path(folder)} cannot be created: {error.strerror or error}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise StoreError(
            f"{short_path(folder)} should be a folder of yours that nobody else can write to, because code in it "
            "is run; remove it, or use another run store"
        )


def names_data_file(name: str) -> bool:
    """Return whether a name of data is that of a file or folder, and neither built in nor an import path."""
    return ":" not in name and (bool(Path(name).suffix) or "/" in name or Path(name).exists())


def check_output(path: Path, what: str, *endings: str) -> None:
    """Raise a StoreError if a file cannot be written: before the work whose result it is for."""
    try:
        if endings and path.suffix.lower() not in endings and not _is_stream(path):
            raise StoreError(f"{what} needs a file name that ends with {' or '.join(endings)}, not {path}")
        if path.is_dir():
            raise StoreError(f"{path} is a folder; name a file in it")
        above = next((folder for folder in path.absolute().parents if folder.exists()), path.parent)
        if not above.is_dir():
            raise StoreError(f"{path} cannot be written: {above} is not a folder")
        opened = path if _is_stream(path) else above
        if not os.access(opened, os.W_OK):
            raise StoreError(f"{path} cannot be written: permission denied")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None


def _is_stream(path: Path) -> bool:
    """Return whether a path is a device or a pipe, such as /dev/stdout, which is written to and never replaced."""
    return path.is_char_device() or path.is_fifo() or path.parent == Path("/dev")


_SYNCS = ContextVar("syncs", default=True)
"""Whether files are forced to the disk one by one."""


@contextmanager
def unsynced() -> Iterator[None]:
    """Leave it to the system when files that this block writes reach the disk; a process that dies loses none."""
    before = _SYNCS.set(False)
    try:
        yield
    finally:
        _SYNCS.reset(before)


@contextmanager
def replacing(path: Path, *, named_by_user: bool = False) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends; after an error in it, `path` stays as it was.

    Devices and pipes are written to where a user has named them; in the folder of a run, they are replaced.
    """
    if path.parent == Path("/dev") or (named_by_user and _is_stream(path)):
        with path.open("wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name[:200]}.{secrets.token_hex(8)}{PARTIAL}"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            if _SYNCS.get():
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_atomically(path: Path, content: bytes, *, named_by_user: bool = False) -> None:
    """Write the content to the path, whole or not at all; `named_by_user` as in `replacing`."""
    with replacing(path, named_by_user=named_by_user) as file:
        file.write(content)


def read_toml(path: Path, kind: str, missing: str) -> dict[str, Any]:
    """Return the content of a TOML file; `kind` names it in sentences, `missing` says what to do without it."""
    try:
        return tomllib.loads(read_regular(path).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ExperimentError(f"there is no file {path}; {missing}") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{path} is not a text file in UTF-8; {kind} is a TOML file") from None
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ExperimentError(f"{path} is not {kind}: its values are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
        raise ExperimentError(f"{path} is not valid TOML: {error}") from None


def write_toml(path: Path, content: dict[str, Any]) -> None:
    """Write a TOML file that a user has named, whole or not at all."""
    import tomli_w

    write_atomically(path, tomli_w.dumps(content).encode(), named_by_user=True)


def nearest_folder(path: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def file_system_of(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Return the type of the file system that a path is on, such as ext4 or nfs4; "" where the system does not say."""
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    place, innermost, name = nearest_folder(path).resolve(), "", ""
    for _, mounted, kind, *_ in lines:
        mounted = OCTAL.sub(lambda code: chr(int(code[1], 8)), mounted)
        if place.is_relative_to(mounted) and len(mounted) >= len(innermost):
            innermost, name = mounted, kind
    return name


def short_path(path: Path) -> Path:
    """Return a path as messages show it: relative where it is in the current folder."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def remove_partial_files(folder: Path) -> None:
    """Remove temporary files that a process that died while writing has left in a folder and below."""
    for path in folder.rglob(f".*{PARTIAL}"):
        with suppress(OSError):
            path.unlink()


def read_npy(path: Path) -> "NDArray[Any]":
    """Return the array in an .npy file; ValueError or OSError if it cannot be read."""
    with _loaded(path) as content:
        if isinstance(content, Mapping):
            raise ValueError("it is an archive of arrays")
        return _with_bytes(content)


def read_npz(path: Path, wanted: Collection[str] | None = None) -> "dict[str, NDArray[Any]]":
    """Return the arrays of an .npz file by name, all or those that are wanted; ValueError or OSError as above."""
    with _loaded(path) as content:
        if not isinstance(content, Mapping):
            raise ValueError("it is a single array")
        named = {name: content[name] for name in content if wanted is None or name in wanted}
        return {name: _with_bytes(item) for name, item in named.items() if not isinstance(item, bytes)}


def _with_bytes(array: "NDArray[Any]") -> "NDArray[Any]":
    """Return an array, unless it has a large shape without holding anything."""
    if max(array.shape, default=0) > max(2**20, array.nbytes):
        raise ValueError(f"an array of shape {array.shape} and type {array.dtype} has {array.nbytes} bytes")
    return array


@contextmanager
def _loaded(path: Path) -> Iterator[Any]:
    """Yield the array in a file of NumPy, or its arrays by name; ValueError for anything wrong with them."""
    import numpy as np

    try:
        with open_regular(path) as file:
            if not file.peek(6).startswith((b"\x93NUMPY", b"PK")):
                raise ValueError("it is not a NumPy file")
            yield np.load(file, allow_pickle=False)
    except (OSError, ValueError):
        raise
    except MemoryError as error:
        raise ValueError(f"not enough memory: {error}") from None
    except Exception as error:  # that of a damaged header or archive depends on the place of the damage
        raise ValueError(f"{type(error).__name__}: {error}") from None


CHECKSUM = "checksum"


def sealed_json(values: dict[str, Any]) -> str:
    """Return a table as JSON, with a checksum of the others as its last entry."""
    return json.dumps(values | {CHECKSUM: _checksum(json.dumps(values))})


def read_sealed(text: Any) -> dict[str, Any] | None:
    """Return the table that `sealed_json` has written; None if it has changed since."""
    try:
        values = json.loads(text)
        checksum = values.pop(CHECKSUM)
        return values if checksum == _checksum(json.dumps(values)) else None
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError):
        return None


def _checksum(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def json_text(value: Any, **how: Any) -> str:
    """Return a value as JSON, with null in place of NaN and infinity; `how` are options of `json.dumps`."""
    return json.dumps(replace_nonfinite(value), allow_nan=False, **how)


def replace_nonfinite(value: Any) -> Any:
    """Return a nested value with None in place of NaN and infinity, which JSON cannot hold."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    return [replace_nonfinite(item) for item in value] if isinstance(value, list | tuple) else value
