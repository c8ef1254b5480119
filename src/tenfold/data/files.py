"""Files on disk that are either whole and right, or not there."""

import os
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from tenfold.data import idx
from tenfold.errors import DataError

PARTIAL = ".part"


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file, gzipped or plain, or None."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def check(path: Path, sha: str, called: str | None = None) -> bytes:
    """Return the unzipped content of a file if its sha256 is right; an error calls it `called`."""
    data = idx.content(path, called)
    found = sha256(data).hexdigest()
    if found != sha:
        raise DataError(
            f"{called or path} is damaged or belongs to another data set: "
            f"its content has sha256 {found[:12]}..., which should be {sha[:12]}..."
        )
    return data


def read(folder: Path, name: str, sha: str) -> bytes:
    """Return the checked content of a file in a folder."""
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder} holds no {name}, neither plain nor as .gz")
    return check(path, sha)


def write(path: Path, chunks: Iterable[bytes], sha: str) -> bytes:
    """Write a file whole or not at all, and only if its unzipped content is right; return that content."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=PARTIAL)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        data = check(partial, sha, called=f"what came for {path.name}")
        partial.chmod(0o644)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return data


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written; call it under the folder's lock."""
    for leftover in folder.glob(f"*{PARTIAL}"):
        leftover.unlink(missing_ok=True)
