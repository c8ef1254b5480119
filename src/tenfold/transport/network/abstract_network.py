"""The interface of every network between ranks, and collectives for small Python values that are built on it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import TrainingError
from tenfold.transport.network import codec

START_SECONDS = 120.0
"""Seconds that ranks wait for one another at the start: importing torch from a busy file system takes long."""
PATIENCE = 1800.0
"""Seconds that one rank waits for another, which may be loading data or evaluating."""
LEAVE_SECONDS = 5.0
"""Seconds that a rank which fails waits for the others to learn of it: launchers end all ranks when one ends."""

Transfers = Sequence[tuple[int, Tensor]]
"""Contiguous tensors, each with the rank that it goes to or comes from."""


class Network(ABC):
    """One rank's connection to all others: a library's point-to-point messages and sums, and what is built on them.

    All ranks call the same operations in the same order, as for a `Transport`.
    """

    name: str

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.waiting: Callable[[], None] | None = None
        """Called repeatedly while this rank waits for another."""

    @abstractmethod
    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None = None) -> None:
        """Send and receive, all at the same time; between two ranks, what is sent first is received first."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> None:
        """Replace the tensor by the sum over all ranks, on every rank."""

    @abstractmethod
    def supports(self, device: torch.device) -> bool:
        """Return whether tensors on this device can be sent without a copy to the CPU."""

    @abstractmethod
    def report_failure(self, error: BaseException | None = None) -> None:
        """Tell the others that this rank gives up, and why; the first report is kept."""

    @abstractmethod
    def failure(self, within: float = 0.0) -> BaseException | None:
        """Return why the ranks cannot continue together; None if nothing is known after `within` seconds."""

    @abstractmethod
    def check(self, seconds: float) -> None:
        """Raise the failure, if there is one; called about every `seconds` while this rank waits for another."""

    @abstractmethod
    def check_local_processes(self) -> None:
        """Check now, not at the next heartbeat, whether a rank of this host has died."""

    @abstractmethod
    def close(self) -> None:
        """Leave; after a failure, once the others know of it."""

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank has called this, at most `timeout` seconds."""
        token = torch.zeros(1)
        others = range(1, self.size)
        if self.rank == 0:
            self.exchange([], [(other, token) for other in others], timeout)
            self.exchange([(other, token) for other in others], [], timeout)
        else:
            self.exchange([(0, token)], [], timeout)
            self.exchange([], [(0, token)], timeout)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value on rank 0, by rank, and nothing elsewhere."""
        if self.rank > 0:
            self._send(value, [0])
            return []
        return [value, *self._receive(range(1, self.size))]

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value on every rank."""
        if self.rank > 0:
            return self._receive([0])[0]
        self._send(value, range(1, self.size))
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value on every rank, by rank."""
        return list(self.broadcast(self.gather(value)))

    def _send(self, value: Any, receivers: Iterable[int]) -> None:
        """Send what `codec.encode` makes of a value: the length of its header, the header, its tensors."""
        if not receivers:
            return
        header, tensors = codec.encode(value)
        content = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        parts = [torch.tensor([len(content)]), content, *(tensor for tensor in tensors if len(tensor))]
        self.exchange([(rank, part) for rank in receivers for part in parts], [])

    def _receive(self, senders: Iterable[int]) -> list[Any]:
        """Return a value from each sender; nothing is allocated before its size was checked."""
        lengths = [(rank, torch.zeros(1, dtype=torch.int64)) for rank in senders]
        self.exchange([], lengths)
        for rank, length in lengths:
            if not 0 < int(length) <= codec.MOST_HEADER_BYTES:
                raise TrainingError(f"worker {rank} announces a message of {int(length):,} bytes, which is not allowed")
        headers = [(rank, torch.empty(int(length), dtype=torch.uint8)) for rank, length in lengths]
        self.exchange([], headers)
        received = [(rank, codec.Received(header.numpy().tobytes())) for rank, header in headers]
        self.exchange([], [(rank, buffer) for rank, one in received for buffer in one.buffers if len(buffer)])
        return [one.value() for _, one in received]
