"""The files of a data set: found and read on disk, or downloaded, safely when several processes do so at once.

Nothing larger than announced is received, the hash of what was received is verified before it is decompressed, and no
more is decompressed than the content should have.
"""

import time
import urllib.error
import urllib.request
from collections.abc import Callable
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path

from tenfold.common.files import sweep, write_atomically
from tenfold.data.sources import idx
from tenfold.data.sources.source import Source, SourceFile
from tenfold.errors import DataError

FetchProgress = Callable[[int, int | None, str], None]
"""Called with the bytes received, the bytes in all (None where the server does not say) and the file's name."""

_TIMEOUT_SECONDS = 10
_SLOWEST_BYTES = 10_000
"""Bytes per second that a server must send on average after the first minute; a slower one is given up."""
_GRACE_SECONDS = 60.0
_CHUNK_BYTES = 2**18


def fetch(source: Source, folder: Path, progress: FetchProgress | None = None) -> dict[str, bytes]:
    """Bring every file of a source into `folder`, and return their verified contents."""
    from filelock import FileLock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            sweep(folder)
            return _fetch_missing(source, folder, progress)
    except OSError as error:
        raise DataError(
            f"{source.name} cannot be stored in {folder}: {error.strerror or error}; "
            f"free some space there, or set TENFOLD_CACHE to a folder that can be written to"
        ) from error


def _fetch_missing(source: Source, folder: Path, progress: FetchProgress | None) -> dict[str, bytes]:
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
                    contents[name] = _download(mirror, name, file, folder, progress)
        except DataError as error:
            tried.append(f"{mirror} ({error})")
        else:
            return contents
    if source.fallback:
        try:
            for name, data in source.fallback().items():
                contents[name] = verify(data, source.files[name], f"the content of {name}")
                write_atomically(folder / f"{name}.gz", idx.compress(data))
        except DataError as error:
            tried.append(str(error))
        else:
            return contents
    package = f"Install Debian's package {source.package}, or put" if source.package else "Put"
    raise DataError(
        f"{source.name} is not on this machine and could not be downloaded; tried {'; '.join(tried) or 'no mirror'}. "
        f"{package} {', '.join(f'{name}.gz' for name in source.files)} into {folder}, or use data 'digits'"
    )


def _download(mirror: str, name: str, file: SourceFile, folder: Path, progress: FetchProgress | None) -> bytes:
    """Download one file into a folder, and return its verified content."""
    received = _receive(f"{mirror}{name}.gz", f"{name}.gz", file.download_size, progress)
    if sha256(received).hexdigest() != file.download_sha256:
        raise DataError(f"{name}.gz is damaged or not the expected file: its sha256 is wrong")
    write_atomically(folder / f"{name}.gz", received)
    return read(folder, name, file)


def _receive(url: str, name: str, size: int, progress: FetchProgress | None) -> bytes:
    """Return what a server sends; more bytes than `size`, and a server that is too slow, are an error."""
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
                if progress:
                    progress(len(received), int(length) if length else None, name)
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
