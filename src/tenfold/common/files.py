"""Files: reading TOML with an error message for what is wrong, and writing whole files or nothing."""

import os
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tenfold.errors import ExperimentError, StoreError

PARTIAL = ".part"


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


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends; after an error in it, `path` stays as it was."""
    if _is_stream(path):
        with path.open("wb") as file:
            yield file
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name[:200]}.{secrets.token_hex(8)}{PARTIAL}"
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write the content to the path, whole or not at all."""
    with replacing(path) as file:
        file.write(content)


def read_toml(path: Path, kind: str, missing: str) -> dict[str, Any]:
    """Return what a TOML file holds; `kind` says in sentences what it should be, `missing` what to do without it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
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
    """Write a TOML file, whole or not at all."""
    import tomli_w

    write_atomically(path, tomli_w.dumps(content).encode())


def short_path(path: Path) -> Path:
    """Return a path as messages show it: relative where it is in the current folder."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):
        return path


def sweep(folder: Path) -> None:
    """Remove temporary files that a process that died while writing has left in a folder and below."""
    for path in folder.rglob(f".*{PARTIAL}"):
        with suppress(OSError):
            path.unlink()
