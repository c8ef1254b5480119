"""Reserving memory that processes share."""

import errno
import os

from tenfold.errors import MachineError


def reserve(fd: int, nbytes: int) -> None:
    """Give an empty file in memory its size; where the system refuses, close it and say why."""
    try:
        os.ftruncate(fd, nbytes)
    except OSError as error:
        os.close(fd)
        hint = "; `ulimit -f` limits its size" if error.errno == errno.EFBIG else ""
        raise MachineError(
            f"{nbytes:,} bytes of memory that the workers share cannot be reserved ({error.strerror}){hint}"
        ) from None
