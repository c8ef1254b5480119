"""Rounds over a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter

import torch

from tenfold.mixing import Round
from tenfold.transport.base import Transport, check_size, compute_shares
from tenfold.transport.network.abstract_network import Network
from tenfold.transport.network.weight_exchange import WeightExchange


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """What one rank does in a round."""

    sources: tuple[int, ...]
    readers: tuple[int, ...]
    """The other ranks that read its weights."""
    shares: tuple[float, ...] | None
    grouped: bool
    """Its sources average exactly among themselves."""


class NetworkTransport(Transport):
    """One of N ranks, wherever they run.

    The mean over all of three or more ranks is the library's own all-reduce, which adds in its own order. A smaller
    group divides the work among its members, everything else goes whole from each source to each reader: both add in
    rank order, so the bits are those of shared memory.

    Waiting for a partner and receiving from it cannot be distinguished here: both count as communication.
    """

    def __init__(
        self, network: Network, numel: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(network.rank, network.size)
        self.buffer = torch.zeros(numel, dtype=dtype, device=device)
        supported = network.supports(self.buffer.device)
        self._network = network
        self._exchange = WeightExchange(network, self.buffer if supported else torch.zeros(numel, dtype=dtype))
        self._plan = lru_cache(maxsize=256)(self._make_plan)

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        """Carry out one round; after an error the weights may be half averaged."""
        plan = self._plan(round_, None if samples is None else tuple(samples))
        with self._working:
            self._load()
            if plan.grouped and len(plan.sources) == self.size > 2:
                self._exchange.all_reduce(None if plan.shares is None else plan.shares[self.rank])
            elif plan.grouped and len(plan.sources) > 2:
                self._exchange.average_group(plan.sources, plan.shares)
            else:
                self._exchange.average_sources(plan.sources, plan.readers, plan.shares)
            self._unload()

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank has called this."""
        started = perf_counter()
        self._network.barrier(timeout)
        self.wait_seconds += perf_counter() - started

    def broadcast(self, root: int = 0) -> None:
        """Send the root's weights to every rank."""
        others = [rank for rank in range(self.size) if rank != root]
        with self._working:
            self._load()
            weights = self._exchange.weights
            if self.rank == root:
                self._exchange.send_and_receive([(other, weights) for other in others], [])
            else:
                self._exchange.send_and_receive([], [(root, weights)])
            self._unload()

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return every rank's values by rank."""
        with self._working:
            return self._network.all_gather([float(value) for value in values])

    def abort(self) -> None:
        """End the waiting of all ranks with an error."""
        self._network.report_failure()

    def close(self) -> None:
        """Do nothing: the network is closed by its owner."""

    def _load(self) -> None:
        """Copy the weights to a device from which the network can send them."""
        if self._exchange.weights is not self.buffer:
            self._exchange.weights.copy_(self.buffer)

    def _unload(self) -> None:
        if self._exchange.weights is not self.buffer:
            self.buffer.copy_(self._exchange.weights)
        self.bytes_moved += self._exchange.bytes_moved
        self._exchange.bytes_moved = 0

    def _make_plan(self, round_: Round, samples: tuple[float, ...] | None) -> ExchangePlan:
        check_size(round_, self.size)
        return make_plan(round_, samples, self.rank)


def make_plan(round_: Round, samples: tuple[float, ...] | None, rank: int) -> ExchangePlan:
    """Return what a rank does in a round."""
    sources = round_.sources[rank]
    readers = tuple(other for other, read in enumerate(round_.sources) if rank in read and other != rank)
    return ExchangePlan(sources, readers, compute_shares(round_, samples, rank), round_.groups is not None)
