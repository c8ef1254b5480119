"""Files that are either whole or not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

PARTIAL = ".part"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes `path`'s place when the block ends well; on any error `path` stays as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PARTIAL)
    os.close(handle)
    try:
        with Path(temporary).open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise


def write_atomically(path: Path, content: bytes) -> None:
    """Write the content to the path, whole or not at all."""
    with replacing(path) as file:
        file.write(content)


def sweep(folder: Path) -> None:
    """Remove what a process that died in the middle of writing has left in a folder and below."""
    for path in folder.rglob(f".*{PARTIAL}"):
        with suppress(OSError):
            path.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
