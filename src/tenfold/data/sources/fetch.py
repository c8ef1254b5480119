"""Downloading the files of a data set into the cache, safely when several processes do so at once.

Nothing larger than announced is received, the hash of what was received is verified before it is decompressed, and no
more is decompressed than the content should have.
"""

import logging
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tenfold.common.files import sweep, write_atomically
from tenfold.data.sources import idx
from tenfold.data.sources.checked_files import read, verify
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
                    contents[name] = _download(f"{mirror}{name}.gz", file, folder, progress)
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


def _download(url: str, file: SourceFile, folder: Path, progress: FetchProgress | None) -> bytes:
    """Download one file into a folder, and return its verified content."""
    import pooch

    name = url.rpartition("/")[2]
    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with tempfile.TemporaryDirectory(prefix="tenfold-") as scratch:
            received = pooch.retrieve(
                url, f"sha256:{file.download_sha256}", name, scratch, downloader=_Downloader(file, progress)
            )
            content = verify(idx.content(Path(received), file.size), file, f"the content of {name}")
            write_atomically(folder / name, Path(received).read_bytes())
            return content
    except ValueError:  # from pooch, whose message speaks of a hash for other files
        raise DataError(f"{name} is damaged or not the expected file: its sha256 is wrong") from None
    finally:
        logger.setLevel(level)


class _Downloader:
    """Receives a file for pooch, and stops when it is larger than it should be."""

    def __init__(self, file: SourceFile, progress: FetchProgress | None) -> None:
        self._limit = file.download_size
        self._progress = progress

    def __call__(self, url: str, output_file: str | Path, _pooch: Any) -> None:
        name, done = url.rpartition("/")[2], 0
        limit, began = _GRACE_SECONDS + self._limit / _SLOWEST_BYTES, time.monotonic()
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer, Path(output_file).open("wb") as out:
                length = answer.headers.get("Content-Length")
                while chunk := answer.read1(_CHUNK_BYTES):  # what has come, where `read` waits for all of it
                    done += len(chunk)
                    if time.monotonic() - began > limit:
                        raise DataError(f"{name}: only {done:,} bytes came within {limit:.0f} s")
                    if done > self._limit:
                        raise DataError(f"{name} is larger than the {self._limit:,} bytes that it should have")
                    out.write(chunk)
                    if self._progress:
                        self._progress(done, int(length) if length else None, name)
        except urllib.error.URLError as error:
            raise DataError(f"{name}: {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise DataError(f"{name}: {error}") from error
