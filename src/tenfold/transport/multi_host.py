"""Many hosts with several ranks each: shared memory within a host, the network between hosts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch
from numpy.typing import NDArray

from tenfold.errors import TrainingError, WorkerLost
from tenfold.mixing import Round
from tenfold.mixing.round import exact_round
from tenfold.transport.base import Transport, check_size
from tenfold.transport.network import ExchangePlan, Network, NetworkTransport, WeightExchange, make_plan
from tenfold.transport.segment import Segment
from tenfold.transport.shared_memory import SharedMemoryTransport

Hosts = tuple[tuple[int, ...], ...]
"""The ranks of each host, hosts in the order of their first ranks."""


def hosts_of(names: Sequence[str]) -> Hosts:
    """Return which ranks share a host, from each rank's host name."""
    return tuple(tuple(rank for rank, other in enumerate(names) if other == name) for name in dict.fromkeys(names))


def connect(
    network: Network,
    hosts: Hosts,
    numel: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transport:
    """Return this rank's transport: shared memory within a host, the network between hosts.

    All ranks call this together. Where the weights are not on the CPU, or ranks of a host cannot share memory
    (containers), everything goes over the network.
    """
    segment = None
    if torch.device(device).type == "cpu" and len(hosts) < network.size:
        segment = _share(network, hosts, numel, dtype)
    if segment is None:
        return NetworkTransport(network, numel, dtype, device)
    host = next(host for host in hosts if network.rank in host)
    inner = SharedMemoryTransport(segment, host.index(network.rank), ranks=host, check=network.check)
    return inner if len(hosts) == 1 else MultiHostTransport(network, hosts, inner)


class MultiHostTransport(Transport):
    """One of N ranks on several hosts.

    - The exact mean over all: each host takes its own in shared memory, the first rank of each host averages these with
      the other hosts', and the others of the host copy it.
    - Groups within one host: shared memory.
    - Everything else goes over the network, from rank to rank.
    """

    def __init__(self, network: Network, hosts: Hosts, inner: SharedMemoryTransport) -> None:
        super().__init__(network.rank, network.size)
        self.buffer = inner.buffer
        self._network = network
        self._hosts = hosts
        self._host = next(host for host in hosts if self.rank in host)
        self._first = self._host[0]
        self._inner = inner
        self._exchange = WeightExchange(network, inner.buffer)
        self._plan = lru_cache(maxsize=256)(self._make_plan)

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        """Carry out one round; after an error the weights may be half averaged."""
        plan = self._plan(round_, None if samples is None else tuple(samples))
        with self._working, self._reporting():
            if plan.inside is not None:
                self._inner.mix(plan.inside, plan.samples)
            if plan.outside is not None:
                self._over_network(plan.outside)
            if plan.exact:
                self._inner.broadcast()
            self._count()

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank has called this."""
        started = perf_counter()
        self._network.barrier(timeout)
        self.wait_seconds += perf_counter() - started

    def broadcast(self, root: int = 0) -> None:
        """Send the root's weights to the first rank of every other host, where the others copy them."""
        firsts = [host[0] for host in self._hosts if root not in host]
        with self._working, self._reporting():
            if self.rank == root:
                self._exchange.send_and_receive([(first, self.buffer) for first in firsts], [])
            elif self.rank in firsts:
                self._exchange.send_and_receive([], [(root, self.buffer)])
            self._inner.broadcast(self._host.index(root) if root in self._host else 0)
            self._count()

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Return every rank's values by rank."""
        with self._working:
            return self._network.all_gather([float(value) for value in values])

    def abort(self) -> None:
        """End the waiting of all ranks with an error."""
        self._inner.abort()
        self._network.report_failure()

    def close(self) -> None:
        """Release the shared memory; the network is closed by its owner."""
        self._inner.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report a rank that was lost on this host to the others, and end the waiting on this host."""
        try:
            yield
        except WorkerLost as lost:
            self._network.report_failure(lost)
            self._inner.abort()
            raise

    def _over_network(self, plan: ExchangePlan) -> None:
        if plan.grouped and len(plan.sources) > 2:
            self._exchange.average_group(plan.sources, plan.shares)
        else:
            self._exchange.average_sources(plan.sources, plan.readers, plan.shares)

    def _count(self) -> None:
        """Add up what the parts have counted."""
        self.bytes_moved += self._inner.bytes_moved + self._exchange.bytes_moved
        self.wait_seconds += self._inner.wait_seconds
        self._inner.bytes_moved = self._exchange.bytes_moved = 0
        self._inner.wait_seconds = 0.0

    def _make_plan(self, round_: Round, samples: tuple[float, ...] | None) -> "HostPlan":
        check_size(round_, self.size)
        if round_.is_exact:
            return self._exact_plan(round_.matrix(samples)[0])
        alone = round_.groups is None
        sources = tuple(
            (rank,) if alone or not set(round_.sources[rank]) <= set(self._host) else round_.sources[rank]
            for rank in self._host
        )
        index = {rank: at for at, rank in enumerate(self._host)}
        inside = Round(tuple(tuple(index[rank] for rank in read) for read in sources))
        of_host = None if samples is None else tuple(samples[rank] for rank in self._host)
        crosses = alone or not set(round_.sources[self.rank]) <= set(self._host)
        outside = make_plan(round_, samples, self.rank) if crosses else None
        return HostPlan(None if inside.is_idle else inside, of_host, outside)

    def _exact_plan(self, share: NDArray[Any]) -> "HostPlan":
        """Divide each rank's share into its share of the host and the host's share of all."""
        of_host = [float(share[list(host)].sum()) for host in self._hosts]
        mine = tuple(share[list(self._host)].tolist())
        outside = None
        if self.rank == self._first:
            firsts = tuple(host[0] for host in self._hosts)
            others = tuple(first for first in firsts if first != self.rank)
            even = max(of_host) - min(of_host) < 1e-12
            outside = ExchangePlan(firsts, others, None if even else tuple(of_host), grouped=True)
        return HostPlan(exact_round(len(mine)), mine, outside, exact=True)


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What one rank does in a round: in shared memory, over the network, and whether its host copies the result."""

    inside: Round | None
    """Its round in shared memory, among the ranks of this host counted from 0."""
    samples: tuple[float, ...] | None
    """The weight of each rank of this host."""
    outside: ExchangePlan | None
    exact: bool = False


def _share(network: Network, hosts: Hosts, numel: int, dtype: torch.dtype) -> Segment | None:
    """Make the memory of each host and open it on all its ranks; None where any rank cannot."""
    host = next(host for host in hosts if network.rank in host)
    segment, name = None, ""
    if network.rank == host[0]:
        segment = Segment.create(len(host), numel, dtype)
        name = segment.name
    names = network.all_gather(name)
    if segment is None:
        try:
            segment = Segment.attach(names[host[0]])
        except TrainingError:
            segment = None
    usable = segment is not None and (segment.size, segment.numel) == (len(host), numel)
    if all(network.all_gather(usable)):
        return segment
    if segment is not None:
        segment.close()
    return None
