"""The interface of every transport."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from types import TracebackType
from typing import Self

from torch import Tensor

from tenfold.mixing import Round


class Transport(ABC):
    """One worker's connection to the others.

    All workers call the same operations in the same order. `mix`, `broadcast` and `gather` add to three counters:
    `bytes_moved` (read from or written to other workers' memory), `wait_seconds` (waiting for the others) and
    `communicate_seconds` (the work itself). Leaving a `with` block by an exception also ends the others' waiting.
    """

    rank: int
    size: int
    buffer: Tensor
    """What this worker averages with the others, as one flat vector: its weights, of which the parameters should be
    views, or, in a transport for gradients, its gradients."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.bytes_moved = 0
        self.wait_seconds = 0.0
        self.communicate_seconds = 0.0
        self._working = _Working(self)

    @abstractmethod
    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        """Carry out one round on all workers' buffers, in place.

        `samples` are the numbers of samples that the ranks have seen, which weight the mean; the same list on every
        worker. Without them all have equal weights.
        """

    @abstractmethod
    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every worker has called this, at most `timeout` seconds."""

    @abstractmethod
    def broadcast(self, root: int = 0) -> None:
        """Give every worker the weights of `root`."""

    @abstractmethod
    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return every worker's values by rank; lists may differ in length and should be short."""

    @abstractmethod
    def abort(self) -> None:
        """End the waiting of all workers, now and later, with an error."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect; the buffer stays usable for as long as something refers to it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        self.close()


def check_size(round_: Round, size: int) -> None:
    """Raise an error if the round was made for another number of replicas."""
    if len(round_.sources) != size:
        raise ValueError(
            f"the round is for {len(round_.sources)} replicas but there are {size} workers; make it for n={size}"
        )


class _Working:
    """Adds the time inside the `with` block, less the waiting, to `communicate_seconds`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter() - self._transport.wait_seconds

    def __exit__(self, *_: object) -> None:
        self._transport.communicate_seconds += perf_counter() - self._transport.wait_seconds - self._started
