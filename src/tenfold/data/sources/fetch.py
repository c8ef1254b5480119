"""Fetching the files of a data set into the cache, safely when several processes do so at once."""

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock

from tenfold.common.files import sweep
from tenfold.data.sources import checked_files as files
from tenfold.data.sources import idx
from tenfold.data.sources.source import Source
from tenfold.errors import DataError

Progress = Callable[[int, int | None, str], None]
"""Called with the bytes done, the bytes in all (None where the server does not say) and the file's name."""

_TIMEOUT_SECONDS = 10
_CHUNK_BYTES = 2**18


def fetch(source: Source, folder: Path, progress: Progress | None = None) -> dict[str, bytes]:
    """Bring every file of a source into `folder`, and return their checked contents."""
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


def _fetch_missing(source: Source, folder: Path, progress: Progress | None) -> dict[str, bytes]:
    """Under the lock: keep what another process has brought meanwhile, and get the rest."""
    right: dict[str, bytes] = {}
    for name, sha in source.files.items():
        try:
            right[name] = files.read(folder, name, sha)
        except DataError:
            continue
    tried = []
    for mirror in source.mirrors:
        try:
            for name, sha in source.files.items():
                if name not in right:
                    right[name] = files.write(folder / f"{name}.gz", _download(f"{mirror}{name}.gz", progress), sha)
        except DataError as error:
            tried.append(f"{mirror} ({error})")
        else:
            return right
    if source.fallback:
        try:
            for name, data in source.fallback().items():
                right[name] = files.write(folder / f"{name}.gz", [idx.compress(data)], source.files[name])
        except DataError as error:
            tried.append(str(error))
        else:
            return right
    raise DataError(
        f"{source.name} is not on this machine and could not be fetched; tried {'; '.join(tried) or 'no mirror'}. "
        f"Put {', '.join(f'{name}.gz' for name in source.files)} into {folder} by hand, or use data 'digits'"
    )


def _download(url: str, progress: Progress | None) -> Iterator[bytes]:
    """Yield the bytes behind an address; whatever goes wrong on the way there is a DataError."""
    done, name = 0, url.rsplit("/", 1)[-1]
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            while chunk := answer.read(_CHUNK_BYTES):
                done += len(chunk)
                yield chunk
                if progress:
                    progress(done, total, name)
    except urllib.error.URLError as error:
        raise DataError(f"{name}: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise DataError(f"{name}: {error}") from error
