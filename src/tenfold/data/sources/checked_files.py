"""Files on disk that are either whole and right, or not there."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from tenfold.common.files import replacing
from tenfold.data.sources import idx
from tenfold.errors import DataError


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
    with replacing(path) as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        return check(Path(file.name), sha, called=f"what came for {path.name}")
