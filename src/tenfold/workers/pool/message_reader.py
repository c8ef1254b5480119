"""Reading messages from a connection without ever waiting for the rest of one."""

import os
import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any

CHUNK = 1 << 20


class MessageReader:
    """Collects what `Connection.send_bytes` wrote: each message after its length, 4 bytes, or -1 and 8 bytes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._received = bytearray()

    def read(self) -> tuple[list[Any], bool]:
        """Return the messages that are complete, and whether the other end is closed."""
        messages: list[Any] = []
        try:
            while self._connection.poll():
                chunk = os.read(self._connection.fileno(), CHUNK)
                if not chunk:
                    return messages, True
                self._received += chunk
                messages += self._take_complete()
        except OSError:
            return messages, True
        return messages, False

    def _take_complete(self) -> list[Any]:
        messages, begin = [], 0
        while (found := self._find_message(begin)) is not None:
            start, begin = found
            messages.append(pickle.loads(self._received[start:begin]))
        del self._received[:begin]
        return messages

    def _find_message(self, begin: int) -> tuple[int, int] | None:
        """Return where the content of the message that begins here starts and ends, if all of it is there."""
        start, there = begin + 4, len(self._received)
        if there < start:
            return None
        (length,) = struct.unpack_from("!i", self._received, begin)
        if length == -1:
            start += 8
            if there < start:
                return None
            (length,) = struct.unpack_from("!Q", self._received, begin + 4)
        return (start, start + length) if there >= start + length else None
