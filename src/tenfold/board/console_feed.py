"""What is new on the console of a run: complete lines, and the line that is being written."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenfold.common.files import open_regular
from tenfold.runs.console import FILE, LIMIT


@dataclass(frozen=True)
class ConsolePosition:
    """How much of a console a page has."""

    inode: int
    """Which file it was: one that has grown too long is replaced by its last part."""
    size: int
    """Bytes of complete lines."""
    written: int
    """When the file was written last, in nanoseconds."""


def console_since(folder: Path, before: ConsolePosition | None) -> tuple[dict[str, Any] | None, ConsolePosition | None]:
    """Return the lines after a position with the unfinished one, None if nothing is new, and the new position.

    "again" says that they replace what the page has.
    """
    try:
        with open_regular(folder / FILE) as file:
            state = os.fstat(file.fileno())
            if before is not None and (before.inode, before.written) == (state.st_ino, state.st_mtime_ns):
                return None, before
            again = before is None or before.inode != state.st_ino or before.size > state.st_size
            start = max(0, state.st_size - LIMIT) if again or before is None else before.size
            file.seek(start)
            content = file.read(2 * LIMIT)
    except OSError:  # it has printed nothing yet, or is gone
        return None, before
    end = content.rfind(b"\n") + 1
    first = content.find(b"\n") + 1 if again and start else 0
    lines, rest = (part.decode(errors="replace") for part in (content[first:end], content[end:]))
    return {"lines": lines, "rest": rest, "again": again}, ConsolePosition(state.st_ino, start + end, state.st_mtime_ns)
