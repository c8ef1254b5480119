"""Files: opening regular ones only, reading TOML with an error message, and writing whole files or nothing."""

import errno
import json
import math
import os
import re
import secrets
import stat
import tomllib
import zipfile
from collections.abc import Collection, Iterator
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
        raise StoreError(f"{short_path(folder)} cannot be made: {error.strerror or error}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise StoreError(
            f"{short_path(folder)} should be a folder of yours that only you can write to: code in it "
            "is run; remove it, or use another run store"
        )


def names_data_file(name: str) -> bool:
    """Return whether a name of data is that of a file or folder, and neither built in nor an import path."""
    return ":" not in name and (bool(Path(name).suffix) or "/" in name or Path(name).exists())


def check_output(path: Path, what: str, *endings: str, in_place: bool = False) -> None:
    """Raise a StoreError if a file cannot be written: before the work whose result it is for.

    With `in_place`, a file that exists is written to; by default a new one replaces it, as `replacing` does.
    """
    try:
        if endings and path.suffix.lower() not in endings and not _is_stream(path):
            raise StoreError(f"{what} is written to a file that ends with {' or '.join(endings)}, not to {path}")
        if path.is_dir():
            raise StoreError(f"{path} is a folder; name a file in it")
        above = next((folder for folder in path.absolute().parents if folder.exists()), path.parent)
        if not above.is_dir():
            raise StoreError(f"{path} cannot be written: {above} is not a folder")
        opened = path if _is_stream(path) or (in_place and path.exists()) else above
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


SMALL = 2**20
"""Bytes and elements that any array may have: one without any bytes may still have a shape."""
MOST_COMPRESSED = 1100
"""How many times larger than in the file its content can be: what deflate reaches with zeros."""
ENDING = ".npy"


def read_npy(path: Path) -> "NDArray[Any]":
    """Return the array in an .npy file; ValueError or OSError if it cannot be read."""
    with _with_readable_errors(), open_regular(path) as file:
        if file.peek(2)[:2] == b"PK":
            raise ValueError("it holds an archive of arrays")
        return _read_array(file, path.stat().st_size)


def read_npz(path: Path, wanted: Collection[str] | None = None) -> "dict[str, NDArray[Any]]":
    """Return the arrays of an .npz file by name, all or those that are wanted; ValueError or OSError as above."""
    with _with_readable_errors(), open_regular(path) as file:
        if file.peek(6).startswith(b"\x93NUMPY"):
            raise ValueError("it holds one array")
        with zipfile.ZipFile(file) as archive:
            return _read_members(archive, path.stat().st_size, wanted)


@contextmanager
def _with_readable_errors() -> Iterator[None]:
    """Raise ValueError for any error of a damaged header or archive, which depends on the place of the damage."""
    try:
        yield
    except (OSError, ValueError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _read_members(archive: zipfile.ZipFile, size: int, wanted: Collection[str] | None) -> "dict[str, NDArray[Any]]":
    """Return the arrays in an archive of `size` bytes."""
    members = archive.infolist()
    if sum(member.compress_size for member in members) > size:
        raise ValueError("it is smaller than what it should hold")
    members_read = {}
    for member in members:
        name = member.filename.removesuffix(ENDING)
        if member.filename.endswith(ENDING) and (wanted is None or name in wanted):
            if member.file_size > max(SMALL, MOST_COMPRESSED * member.compress_size):
                raise ValueError(f"{name} is smaller than it should be")
            with archive.open(member) as content:
                members_read[name] = _read_array(content, member.file_size)
    return members_read


def _read_array(file: Any, size: int) -> "NDArray[Any]":
    """Return an array from a file of `size` bytes that begins with its header."""
    import numpy as np

    shape, dtype = _read_header(file)
    left = max(SMALL, size - file.tell())
    if any(length < 0 for length in shape) or math.prod(max(1, n) for n in shape) * max(1, dtype.itemsize) > left:
        raise ValueError(f"an array of shape {_short(shape)} and type {dtype} does not fit into {size:,} bytes")
    file.seek(0)
    try:
        return np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError:
        raise ValueError(f"there is not enough memory for an array of shape {_short(shape)}") from None


def _read_header(file: BinaryIO) -> tuple[tuple[int, ...], Any]:
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _short(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
