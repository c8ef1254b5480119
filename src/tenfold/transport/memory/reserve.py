"""Reserving memory that processes share."""

import errno
import os
from pathlib import Path

from tenfold.errors import MachineError


def reserve(fd: int, nbytes: int, file: Path | None = None) -> None:
    """Give an empty file its size; where the system refuses, close it, remove one that has a name, and say why."""
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        if file is not None:
            file.unlink(missing_ok=True)
        hint = "; `ulimit -f` limits its size" if error.errno == errno.EFBIG else ""
        raise MachineError(
            f"{nbytes:,} bytes of memory that the workers share cannot be reserved ({error.strerror}){hint}"
        ) from None
