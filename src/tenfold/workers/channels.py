"""What a worker mixes through: transports for weights and for a second vector, and a centre for asynchronous rules."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from tenfold.transport import Segment, SharedMemory, SingleWorkerTransport, Transport
from tenfold.transport.memory.counters import Until


@dataclass
class Channels:
    """A worker's ways to the others."""

    weights: Transport
    """Its buffer is the replica's whole state."""
    second: Transport
    """For gradients or optimizer state; its buffer has the size of the parameters."""
    centre: Tensor
    """What asynchronous rules keep in common: a row of weights and a row of Adagrad's sums."""
    replicas: Tensor
    """All workers' states, one a row, for rules that reach into another's."""
    versions: Any
    """How often each replica, and last the centre, was changed by anyone."""
    locks: Sequence[AbstractContextManager[Any]]
    """One for each replica, and the last for the centre."""
    lock_seconds: float = 0.0
    exchange_seconds: float = 0.0

    @contextmanager
    def holding(self, *owners: int) -> Iterator[None]:
        """Hold the locks of these replicas (-1: the centre), always taken in the same order."""
        asked = perf_counter()
        with ExitStack() as stack:
            for owner in sorted(range(len(self.locks))[owner] for owner in owners):
                stack.enter_context(self.locks[owner])
            held = perf_counter()
            yield
            self.exchange_seconds += perf_counter() - held
        self.lock_seconds += held - asked


def alone(numel: int, device: torch.device) -> Channels:
    """Return the links of a world of one."""
    weights, second = SingleWorkerTransport(numel, device=device), SingleWorkerTransport(numel, device=device)
    centre = torch.zeros(2, numel, device=device)
    locks = [_Free(), _Free()]
    return Channels(weights, second, centre, weights.buffer[None], [0.0, 0.0], locks)


class _Free:
    """The lock of something that nobody else wants."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class SharedChannels:
    """The memory of all workers' links, made by who starts them; a worker `opens` its own end."""

    def __init__(self, workers: int, numel: int, locks: Sequence[Any], *, second: bool, centre: bool) -> None:
        self.locks = locks
        self._segments = [
            Segment.create(workers, numel),
            Segment.create(workers, numel if second else 1),
            Segment.create(2, numel if centre else 1),
        ]
        self.names = [segment.name for segment in self._segments]
        self._attached: list[Segment] = []

    def open(self, rank: int, until: Until | None = None, lock: AbstractContextManager[Any] | None = None) -> Channels:
        """Return the links of one worker, in its process.

        Where workers share a process, `until` is how they wait, and `lock` stands for all locks.
        """
        if not self._attached:
            self._attached = [Segment.attach(name) for name in self.names]
        weights, second, centre = self._attached
        return Channels(
            SharedMemory(weights, rank, until=until),
            SharedMemory(second, rank, until=until),
            torch.from_numpy(centre.buffers),
            torch.from_numpy(weights.buffers),
            centre.mailboxes.reshape(-1),
            self.locks if lock is None else [lock] * len(self.locks),
        )

    def stop(self, verdict: Any, rank: int) -> None:
        """End everybody's waiting."""
        for segment in self._segments:
            segment.stop(verdict, rank)

    def close(self) -> None:
        """Let go of the memory."""
        for segment in self._segments:
            segment.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"names": self.names, "locks": self.locks, "_attached": []}
