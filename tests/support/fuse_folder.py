"""Shows a folder in another place, on a file system (FUSE) without shared memory maps, and if asked without locks.

python fuse_folder.py FOLDER MOUNT_POINT [no-locks]
"""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

STAT = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")
MOUNT_SECONDS = 10.0


@contextmanager
def mounted(folder: Path, place: Path, *options: str) -> Iterator[None]:
    """Show a folder in an empty one for the duration of the block; OSError with the reason if that is impossible."""
    if not Path("/dev/fuse").exists():
        raise OSError("there is no /dev/fuse")
    command = [sys.executable, __file__, str(folder), str(place), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        until = time.monotonic() + MOUNT_SECONDS
        while not place.is_mount() and server.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        try:
            if not place.is_mount():
                server.kill()
                raise OSError(f"FUSE cannot be used: {server.communicate()[1].strip().rpartition(chr(10))[2]}")
            yield
        finally:
            subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
            server.kill()


@contextmanager
def mounted_or_skipped(folder: Path, place: Path, *options: str) -> Iterator[None]:
    """Do the same in a test, which is skipped where it is impossible."""
    with ExitStack() as stack:
        try:
            stack.enter_context(mounted(folder, place, *options))
        except OSError as error:
            pytest.skip(str(error))
        yield


def serve(folder: str, place: str, *options: str) -> None:
    """Serve the folder until it is unmounted."""
    import mfusepy

    class Folder(mfusepy.Operations):  # type: ignore[misc]
        use_ns = False

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.lstat(folder + path)
            return {key: getattr(found, key) for key in STAT}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *(found.name for found in Path(folder + path).iterdir())]

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            return os.open(folder + path, os.O_RDWR | os.O_CREAT, mode)

        def open(self, path: str, flags: int) -> int:
            return os.open(folder + path, flags)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: int | None = None) -> None:
            os.truncate(folder + path, length)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def rename(self, old: str, new: str) -> None:
            Path(folder + old).rename(folder + new)

        def chmod(self, path: str, mode: int) -> None:
            Path(folder + path).chmod(mode)

        def mkdir(self, path: str, mode: int) -> None:
            Path(folder + path).mkdir(mode)

        def rmdir(self, path: str) -> None:
            Path(folder + path).rmdir()

        def unlink(self, path: str) -> None:
            Path(folder + path).unlink()

    if "no-locks" in options:

        def lock(self: Any, path: str, fh: int, cmd: int, lock: Any) -> int:
            raise mfusepy.FuseOSError(errno.ENOLCK)

        Folder.lock = lock
    mfusepy.FUSE(Folder(), place, foreground=True, nothreads=True, direct_io=True, default_permissions=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
