"""The ranks that a launcher started, on one host or many, and how they reach one another."""

import pickle
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import TenfoldError, WorkerLost

PATIENCE = 1800.0
"""Seconds that one rank waits for another, which may be loading data or evaluating."""
LEAVE_SECONDS = 5.0
"""How long a rank that fails waits for the others to have heard of it: launchers end all when the first one leaves."""

Parcels = Sequence[tuple[int, Tensor]]
"""Tensors with the rank they go to or come from, each contiguous."""


class Network(ABC):
    """One rank's way to all others: a library's messages and sums, and what follows from them.

    All ranks call the same operations in the same order, as for a `Transport`.
    """

    name: str
    watches: bool = True
    """Whether ranks notice the death of another; else it is left to the launcher to end them all, and soon."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @abstractmethod
    def exchange(self, sends: Parcels, receives: Parcels, timeout: float | None = None) -> None:
        """Send and receive, all at the same time; between two ranks, what is sent first is received first."""

    @abstractmethod
    def add_up(self, tensor: Tensor) -> None:
        """Put the sum over all ranks in the place of the tensor, everywhere."""

    @abstractmethod
    def carries(self, device: torch.device) -> bool:
        """Say whether tensors of this device can be given as they are."""

    @abstractmethod
    def fail(self, error: BaseException | None = None) -> None:
        """Tell the others that this rank gives up, and why; the first to do so is believed."""

    @abstractmethod
    def trouble(self, within: float = 0.0) -> BaseException | None:
        """Return why the ranks cannot go on together, as soon as it is known; None if it is not within so long."""

    @abstractmethod
    def close(self) -> None:
        """Leave; after a failure, once the others know of it."""

    @property
    def is_stuck(self) -> bool:
        """A thread waits for the dead, and cannot be ended; it would bring the interpreter's end to a crash."""
        return False

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank is here, at most `timeout` seconds."""
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
            content = _as_tensor(value)
            self.exchange([(0, torch.tensor([content.numel()])), (0, content)], [])
            return []
        others = range(1, self.size)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in others]
        self.exchange([], list(zip(others, lengths, strict=True)))
        contents = [torch.empty(int(length), dtype=torch.uint8) for length in lengths]
        self.exchange([], list(zip(others, contents, strict=True)))
        return [value, *map(_from_tensor, contents)]

    def broadcast(self, value: Any = None) -> Any:
        """Return rank 0's value on every rank."""
        others = range(1, self.size)
        if self.rank == 0:
            content = _as_tensor(value)
            length = torch.tensor([content.numel()])
            self.exchange([parcel for other in others for parcel in ((other, length), (other, content))], [])
            return value
        length = torch.zeros(1, dtype=torch.int64)
        self.exchange([], [(0, length)])
        content = torch.empty(int(length), dtype=torch.uint8)
        self.exchange([], [(0, content)])
        return _from_tensor(content)

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value on every rank, by rank."""
        return list(self.broadcast(self.gather(value)))


def told(error: BaseException | None, rank: int) -> BaseException:
    """Return a rank's error in a form that travels, and that says whose it is."""
    if isinstance(error, WorkerLost):
        return error
    if error is None or isinstance(error, KeyboardInterrupt):
        return WorkerLost(rank, f"worker {rank} was interrupted")
    if not isinstance(error, TenfoldError):
        return RuntimeError(f"worker {rank} failed:\n{''.join(traceback.format_exception(error))}")
    return error if str(error).startswith("worker") else type(error)(f"worker {rank}: {error}")


def _as_tensor(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)


def _from_tensor(content: Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())
