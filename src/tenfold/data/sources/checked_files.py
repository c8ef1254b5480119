"""The files of a data set on disk: found plain or gzipped, read with a limit on their size, and verified."""

from hashlib import sha256
from pathlib import Path

from tenfold.data.sources import idx
from tenfold.data.sources.source import SourceFile
from tenfold.errors import DataError


def find(folder: Path, name: str) -> Path | None:
    """Return the path of a file, gzipped or plain, or None."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)


def read(folder: Path, name: str, file: SourceFile) -> bytes:
    """Return the verified content of a file in a folder."""
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder} holds no {name}, neither plain nor as .gz")
    return verify(idx.content(path, file.size), file, str(path))


def verify(content: bytes, file: SourceFile, called: str) -> bytes:
    """Return the content if its sha256 is right; an error calls it `called`."""
    found = sha256(content).hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{called} is damaged or belongs to another data set: "
            f"its content has sha256 {found[:12]}..., which should be {file.sha256[:12]}..."
        )
    return content
