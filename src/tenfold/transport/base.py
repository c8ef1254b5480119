"""The base of all transports: their interface, the arithmetic of averaging, and waiting by polling."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenfold.mixing import Round

Array = TypeVar("Array", torch.Tensor, NDArray[Any])
SPINS = 300
"""Polls before the first pause: most waits are over by then."""
YIELD_SECONDS = 0.002
LONGEST_NAP = 0.001
CHECK_SECONDS = 0.2


class Transport(ABC):
    """One worker's connection to the others.

    All workers call the same operations in the same order. `mix`, `broadcast` and `gather` add to two counters:
    `wait_seconds` (waiting for the others) and `communicate_seconds` (the work itself). Leaving a `with` block by an
    exception also ends the others' waiting.
    """

    rank: int
    size: int
    buffer: Tensor
    """The vector that this worker averages with the others: its weights, of which the parameters should be
    views, or, in a transport for gradients, its gradients."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.wait_seconds = 0.0
        self.communicate_seconds = 0.0
        self._working = _Working(self)

    @abstractmethod
    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        """Carry out one round on all workers' buffers, in place.

        `samples` are the numbers of samples that the ranks have seen, the weights of the mean; the list is the same on
        every worker. Without it, all weights are equal.
        """

    @abstractmethod
    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every worker has called this, for at most `timeout` seconds."""

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready()` is true, through changes by other workers in shared memory; raise if one is lost."""
        assert ready(), "no other worker shares memory with this one"

    @abstractmethod
    def broadcast(self, root: int = 0) -> None:
        """Copy the weights of `root` to every worker."""

    @abstractmethod
    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return every worker's values by rank; lists may differ in length, up to 63 values."""

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
    if len(round_.sources) != size:
        raise ValueError(
            f"the round is for {len(round_.sources)} replicas, but there are {size} workers; create it with n={size}"
        )


def average_in_rank_order(
    members: Sequence[Array], weights: Sequence[float] | None, out: Array, scratch: Array | None = None
) -> None:
    """Write the average of the members into `out`; all engines use this function, so they compute the same bits.

    Without weights out = ((x_0 + x_1) + x_2 + ...) * (1/m), with weights (shares that sum to 1)
    out = ((w_0 * x_0) + w_1 * x_1) + ..., with members in rank order and every operation rounded to the members' type.
    No multiplication is fused with an addition, so the bits depend neither on the division of a vector into blocks nor
    on the processor.

    Takes torch tensors or numpy arrays. `out` may be one of the members; `scratch` is temporary memory of two rows with
    a member's shape.
    """
    library: Any = torch if isinstance(out, torch.Tensor) else np
    if scratch is None:
        scratch = library.empty((2, *members[0].shape), dtype=members[0].dtype)
    total, term = scratch[0], scratch[1]
    if weights is None:
        library.multiply(combine_in_rank_order(members, library.add, total), 1 / len(members), out=out)
    else:
        library.multiply(members[0], weights[0], out=total)
        for member, weight in zip(members[1:], weights[1:], strict=True):
            library.multiply(member, weight, out=term)
            library.add(total, term, out=total)
        out[...] = total


def combine_in_rank_order(members: Sequence[Array], combine: Callable[..., Any], total: Array) -> Array:
    """Return combine(combine(x_0, x_1), x_2), ..., computed in `total`; a single member is returned itself."""
    partial = members[0]
    for member in members[1:]:
        combine(partial, member, out=total)
        partial = total
    return partial


def compute_shares(round_: Round, samples: Sequence[float] | None, rank: int) -> tuple[float, ...] | None:
    """Return the weight of each of the rank's sources in this round, or None if all are equal.

    None selects the unweighted form of `average_in_rank_order`, so equal weights give the same bits as no weights.
    """
    row = round_.matrix(samples)[rank]
    counts = tuple(float(row[source]) for source in round_.sources[rank])
    return None if max(counts) - min(counts) < 1e-12 else counts


yield_core: Callable[[], None] = getattr(os, "sched_yield", lambda: sleep(0))


def wait(ready: Callable[[], bool], check: Callable[[float], None], first_check: float = CHECK_SECONDS) -> None:
    """Poll until `ready`: at first yield the core between polls, then sleep for 2% of the time waited so far.

    Every `CHECK_SECONDS`, the first time after at most `first_check` seconds, `check` is called with the seconds
    waited; it raises when waiting is pointless.
    """
    started = perf_counter()
    next_check = started + min(first_check, CHECK_SECONDS)
    while not ready():
        now = perf_counter()
        waited = now - started
        if waited < YIELD_SECONDS:
            yield_core()
        else:
            sleep(min(waited / 50, LONGEST_NAP))
        if now >= next_check:
            check(waited)
            next_check = now + CHECK_SECONDS


class _Working:
    """Adds the time inside the `with` block, less the waiting, to `communicate_seconds`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = perf_counter() - self._transport.wait_seconds

    def __exit__(self, *_: object) -> None:
        self._transport.communicate_seconds += perf_counter() - self._transport.wait_seconds - self._started


class SingleWorkerTransport(Transport):
    """A single worker: there are no others to average with, to wait for or to notify."""

    def __init__(self, numel: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> None:
        super().__init__(rank=0, size=1)
        self.buffer = torch.zeros(numel, dtype=dtype, device=device)

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:  # noqa: ARG002
        check_size(round_, self.size)

    def barrier(self, timeout: float | None = None) -> None:
        """Return at once."""

    def broadcast(self, root: int = 0) -> None:
        """Keep the weights: they are the root's."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [[float(value) for value in values]]

    def abort(self) -> None:
        """Do nothing: no other worker waits."""

    def close(self) -> None:
        """Do nothing: the buffer is the worker's own."""
