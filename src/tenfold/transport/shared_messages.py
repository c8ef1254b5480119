"""Messages between processes on one machine, through shared memory.

Each ordered pair of ranks has a ring buffer in the receiver's row, and two words: the total number of bytes that the
sender has written, and the total number that the receiver has read. A message consists of its tag, its length and its
bytes; if it is longer than the ring, it is sent in parts. Messages of a pair arrive in the order of sending; a receiver
that waits for a tag stores messages with other tags.
"""

import ctypes
from collections import deque
from typing import Any

import numpy as np

from tenfold.errors import TrainingError
from tenfold.transport.segment import Segment
from tenfold.transport.shared_collectives import ByteSpan

RING_MEMORY, MOST_RING, LEAST_RING = 1 << 26, 1 << 20, 1 << 14
"""Bytes of all rings together, and of one; memory that no message has passed through is not in use."""
HEAD = 16
"""Bytes of a message's tag and length."""
TAKEN_AT = 8
"""The word of a channel that the receiver writes, on another cache line than the sender's."""


def ring_bytes(size: int) -> int:
    """Return the bytes of one ring for this number of ranks."""
    ring = max(LEAST_RING, min(MOST_RING, RING_MEMORY // size**2))
    return ring // HEAD * HEAD


class Outgoing:
    """A message that is being sent."""

    def __init__(self, span: ByteSpan, receiver: int, tag: int) -> None:
        self.peer = receiver
        self._head = np.array([tag, span.nbytes], np.int64)
        self.parts = deque([ByteSpan(self._head.ctypes.data, HEAD), span])
        """The parts that have not been written yet."""

    def __call__(self) -> bool:
        """Return whether all of it has been written."""
        return not self.parts

    def missing(self) -> list[int]:
        return [self.peer]

    def finish(self) -> None:
        """Do nothing: sending has no errors."""


class Incoming:
    """A receive: the destination of a message with a tag, from one rank or (None) from any."""

    def __init__(self, span: ByteSpan, sender: int | None, tag: int) -> None:
        self.peer, self.tag, self.span = sender, tag, span
        self.source = sender
        self.finished = False
        self.error: TrainingError | None = None

    def __call__(self) -> bool:
        """Return whether a message has arrived."""
        return self.finished

    def missing(self) -> list[int]:
        """Return the rank that it waits for; none if it may be any rank."""
        return [] if self.peer is None else [self.peer]

    def finish(self) -> None:
        """Raise an error if the message did not fit."""
        if self.error is not None:
            raise self.error


class _Arriving:
    """A message whose header was read: the destination of its bytes, and its receive, if known."""

    def __init__(self, sender: int, tag: int, nbytes: int) -> None:
        self.sender, self.tag, self.nbytes = sender, tag, nbytes
        self.got = 0
        self.receive: Incoming | None = None
        self.aside: Any = None

    def is_for(self, receive: Incoming) -> bool:
        return self.receive is None and receive.tag == self.tag and receive.peer in (None, self.sender)


class SharedMessages:
    """One rank's messages to and from the others of its group; it is not thread-safe."""

    def __init__(self, segment: Segment, rank: int, first: int, ring: int | None = None) -> None:
        """Use a ring for each sender in every row of the segment, from the byte `first`; default size: `ring_bytes`."""
        self.rank, self.size = rank, segment.size
        self._words = segment.words
        self._ring = ring or ring_bytes(self.size)
        self._memory = segment.buffers.view(np.uint8)
        self._rows = [self._memory.ctypes.data + row * self._memory.strides[0] + first for row in range(segment.size)]
        self._channel = segment.channel_at
        self._sending: dict[int, deque[Outgoing]] = {}
        self._receives: list[Incoming] = []
        self._arriving: dict[int, _Arriving] = {}
        self._aside: list[_Arriving] = []
        """Messages that nobody waits for, in the order of their arrival; the last of each sender may be incomplete."""

    def send(self, span: ByteSpan, receiver: int, tag: int) -> Outgoing:
        """Start sending bytes; they must not change until they are sent."""
        message = Outgoing(span, receiver, tag)
        self._sending.setdefault(receiver, deque()).append(message)
        self.advance()
        return message

    def receive(self, span: ByteSpan, sender: int | None, tag: int) -> Incoming:
        """Start receiving bytes; a message may have fewer."""
        receive = Incoming(span, sender, tag)
        for message in self._aside:
            if message.is_for(receive):
                self._assign(message, receive)
                if message.got == message.nbytes:
                    self._finish(message)
                return receive
        self._receives.append(receive)
        self.advance()
        return receive

    def cancel(self, transfer: Outgoing | Incoming) -> None:
        """Drop a message that is no longer awaited, unless part of it was sent."""
        if isinstance(transfer, Incoming) and transfer in self._receives:
            self._receives.remove(transfer)
        elif isinstance(transfer, Outgoing) and len(transfer.parts) == 2:
            self._sending[transfer.peer].remove(transfer)

    def advance(self) -> None:
        """Send and receive as much as possible without waiting."""
        for receiver, messages in self._sending.items():
            while messages and self._write(receiver, messages[0]):
                messages.popleft()
        if self._receives or self._arriving:
            wanted = {receive.peer for receive in self._receives}
            senders = range(self.size) if None in wanted else wanted | set(self._arriving)
            for sender in senders:
                assert sender is not None
                while self._read(sender):
                    pass

    def _write(self, receiver: int, message: Outgoing) -> bool:
        """Write bytes to the ring; return whether that was the last part of the message."""
        at, row = self._channel(self.rank, receiver), self._rows[receiver] + self.rank * self._ring
        put = self._words[at]
        free_bytes = self._ring - (put - self._words[at + TAKEN_AT])
        while message.parts:
            part = message.parts[0]
            now = min(free_bytes, part.nbytes)
            if part.nbytes == HEAD and len(message.parts) == 2 and free_bytes < HEAD:
                return False
            self._copy(row, put % self._ring, part.address, now, into_ring=True)
            put, free_bytes = put + now, free_bytes - now
            self._words[at] = put
            message.parts.popleft()
            if now < part.nbytes:
                message.parts.appendleft(ByteSpan(part.address + now, part.nbytes - now))
                return False
        return True

    def _read(self, sender: int) -> bool:
        """Read bytes from the ring; return whether a message was completed."""
        at, row = self._channel(sender, self.rank), self._rows[self.rank] + sender * self._ring
        received = self._words[at + TAKEN_AT]
        there = self._words[at] - received
        message = self._arriving.get(sender)
        if message is None:
            if there < HEAD:
                return False
            head = np.empty(2, np.int64)
            self._copy(row, received % self._ring, head.ctypes.data, HEAD, into_ring=False)
            received, there = received + HEAD, there - HEAD
            message = self._arriving[sender] = _Arriving(sender, int(head[0]), int(head[1]))
            receive = next((receive for receive in self._receives if message.is_for(receive)), None)
            if receive is not None:
                self._receives.remove(receive)
                self._assign(message, receive)
            if receive is None or receive.error is not None:
                message.aside = np.empty(message.nbytes, np.uint8)
                if receive is None:
                    self._aside.append(message)
        now = min(there, message.nbytes - message.got)
        place = message.receive.span.address if message.aside is None and message.receive else message.aside.ctypes.data
        self._copy(row, received % self._ring, place + message.got, now, into_ring=False)
        message.got += now
        self._words[at + TAKEN_AT] = received + now
        if message.got < message.nbytes:
            return False
        del self._arriving[sender]
        self._finish(message)
        return True

    def _assign(self, message: _Arriving, receive: Incoming) -> None:
        message.receive = receive
        receive.source = message.sender
        if message.nbytes > receive.span.nbytes:
            receive.error = TrainingError(
                f"recv: rank {message.sender} sent {message.nbytes:,} bytes with tag {message.tag}, but the tensor has "
                f"{receive.span.nbytes:,}; shapes and types should be the same"
            )

    def _finish(self, message: _Arriving) -> None:
        """Hand a complete message to its receive, if there is one."""
        receive = message.receive
        if receive is None:
            return
        if message.aside is not None:
            if message in self._aside:
                self._aside.remove(message)
            if receive.error is None and message.nbytes:
                ctypes.memmove(receive.span.address, message.aside.ctypes.data, message.nbytes)
        receive.finished = True

    def _copy(self, row: int, at: int, address: int, nbytes: int, *, into_ring: bool) -> None:
        """Copy bytes into or out of a ring from a position, wrapping around at its end."""
        while nbytes:
            now = min(nbytes, self._ring - at)
            if into_ring:
                ctypes.memmove(row + at, address, now)
            else:
                ctypes.memmove(address, row + at, now)
            at, address, nbytes = 0, address + now, nbytes - now
