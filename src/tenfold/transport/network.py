"""The network between ranks: its interface, messages of small values, and the transports that average over it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tenfold.errors import TrainingError, WorkerLost
from tenfold.mixing import Round
from tenfold.mixing.round import Server, exact_round
from tenfold.transport.base import CHECK_SECONDS, Transport, average_in_rank_order, check_size, compute_shares, wait
from tenfold.transport.codec import MOST_HEADER_BYTES, Received, encode
from tenfold.transport.segment import Segment
from tenfold.transport.shared_memory import SharedMemoryTransport

if TYPE_CHECKING:
    from tenfold.transport.rank_failures import FailureDetector


START_SECONDS = 120.0
"""Seconds that ranks wait for one another at the start: importing torch from a busy file system takes long."""
WAIT_SECONDS = 1800.0
"""Seconds that one rank waits for another, which may be loading data or evaluating."""
LEAVE_SECONDS = 5.0
"""Seconds that a rank which fails waits for the others to learn of it: launchers end all ranks when one ends."""

Transfers = Sequence[tuple[int, Tensor]]
"""Contiguous tensors, each with the rank that it goes to or comes from."""


class Network(ABC):
    """One rank's connection to all others: point-to-point messages and sums of a library, and operations built on them.

    All ranks call the same operations in the same order, as for a `Transport`.
    """

    name: str

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.waiting: Callable[[], None] | None = None
        """Called repeatedly while this rank waits for another."""
        self._detector: FailureDetector | None = None

    @abstractmethod
    def exchange(self, sends: Transfers, receives: Transfers, timeout: float | None = None) -> None:
        """Send and receive, all at the same time; between two ranks, messages arrive in the order of sending."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor) -> None:
        """Replace the tensor by the sum over all ranks, on every rank."""

    @abstractmethod
    def supports(self, device: torch.device) -> bool:
        """Return whether tensors on this device can be sent without a copy to the CPU."""

    @abstractmethod
    def close(self) -> None:
        """Leave; after a failure, once the others know of it."""

    def report_failure(self, error: BaseException | None = None) -> None:
        """Tell the others that this rank fails, and why; only the first report is kept."""
        if self._detector is not None:
            self._detector.report(error)

    def failure(self, within: float = 0.0) -> BaseException | None:
        """Return the error that keeps the ranks from continuing; None if there is none within `within` seconds."""
        return self._detector.failure(within) if self._detector is not None else None

    def check(self, seconds: float) -> None:
        """Raise the failure, if there is one; called about every `seconds` while this rank waits for another."""
        if self.waiting is not None:
            self.waiting()
        if self._detector is not None:
            self._detector.check(seconds)

    def poll(self, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until `ready()` is true, for at most `timeout` seconds; raise the failure of the ranks, if any."""

        def check(waited: float) -> None:
            self.check(CHECK_SECONDS)
            if waited > timeout:
                raise TrainingError(f"another rank did not respond within {timeout:g} s")

        wait(ready, check)

    def check_local_processes(self) -> None:
        """Check immediately, without waiting for the next heartbeat, whether a rank of this host has died."""
        if self._detector is not None:
            self._detector.check_local_processes()

    def barrier(self, timeout: float | None = None) -> None:
        """Wait until every rank has called this, at most `timeout` seconds."""
        token = torch.zeros(1, dtype=torch.uint8)  # independent of a rank's default dtype
        others = range(1, self.size)
        if self.rank == 0:
            self.exchange([], [(other, token) for other in others], timeout)
            self.exchange([(other, token) for other in others], [], timeout)
        else:
            self.exchange([(0, token)], [], timeout)
            self.exchange([], [(0, token)], timeout)

    def gather_tensor(self, tensor: Tensor, rows: Tensor | None) -> None:
        """Write every rank's tensor into a row of rank 0's `rows`, by rank."""
        if rows is None:
            self.exchange([(0, tensor)], [])
        else:
            rows[0].copy_(tensor)
            self.exchange([], [(rank, rows[rank]) for rank in range(1, self.size)])

    def broadcast_tensor(self, tensor: Tensor) -> None:
        """Replace every rank's tensor by that of rank 0."""
        others = [(rank, tensor) for rank in range(1, self.size)]
        self.exchange(others if self.rank == 0 else [], [] if self.rank == 0 else [(0, tensor)])

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value on rank 0, by rank, and nothing elsewhere."""
        if self.rank > 0:
            self._send(value, [0])
            return []
        return [value, *self._receive(range(1, self.size))]

    def broadcast(self, value: Any = None) -> Any:
        if self.rank > 0:
            return self._receive([0])[0]
        self._send(value, range(1, self.size))
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """Return every rank's value on every rank, by rank."""
        return list(self.broadcast(self.gather(value)))

    def _send(self, value: Any, receivers: Iterable[int]) -> None:
        """Send a value encoded by `codec.encode`: the length of its header, the header, its tensors."""
        if not receivers:
            return
        header, tensors = encode(value)
        content = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        parts = [torch.tensor([len(content)]), content, *(tensor for tensor in tensors if len(tensor))]
        self.exchange([(rank, part) for rank in receivers for part in parts], [])

    def _receive(self, senders: Iterable[int]) -> list[Any]:
        """Return a value from each sender; sizes are checked before memory is allocated."""
        lengths = [(rank, torch.zeros(1, dtype=torch.int64)) for rank in senders]
        self.exchange([], lengths)
        for rank, length in lengths:
            if not 0 < int(length) <= MOST_HEADER_BYTES:
                raise TrainingError(f"worker {rank} announced a message of {int(length):,} bytes, more than allowed")
        headers = [(rank, torch.empty(int(length), dtype=torch.uint8)) for rank, length in lengths]
        self.exchange([], headers)
        received = [(rank, Received(header.numpy().tobytes())) for rank, header in headers]
        self.exchange([], [(rank, buffer) for rank, item in received for buffer in item.buffers if len(buffer)])
        return [item.value() for _, item in received]


@dataclass(frozen=True, slots=True)
class ExchangePlan:
    """One rank's part in a round."""

    sources: tuple[int, ...]
    readers: tuple[int, ...]
    """The other ranks that read its weights."""
    shares: tuple[float, ...] | None
    grouped: bool
    """Its sources average exactly among themselves."""


class NetworkTransport(Transport):
    """One of N ranks on any hosts.

    The mean over all of three or more ranks is the library's all-reduce, which adds in its own order; with a parameter
    server, rank 0 gathers the weights, adds in rank order, and broadcasts the mean. Smaller groups divide the work
    among their members, and in all other rounds each source sends its whole weights to each reader: both add in rank
    order, so the bits are the same as in shared memory.

    Waiting for a partner and receiving from it cannot be distinguished here; both count as communication.
    """

    def __init__(self, network: Network, buffer: Tensor) -> None:
        super().__init__(network.rank, network.size)
        self.buffer = buffer
        self._network = network
        self._sent = buffer if network.supports(buffer.device) else torch.zeros_like(buffer, device="cpu")
        """The weights, on a device from which the network can send them."""
        self._scratch = self._sent.new_empty(0)
        self._plan = lru_cache(maxsize=256)(self._make_plan)

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        plan = self._plan(round_, None if samples is None else tuple(samples))
        with self._working, self._sendable():
            if plan.grouped and len(plan.sources) == self.size > 1 and isinstance(round_.collective, Server):
                self._average_at_root(plan.shares)
            elif plan.grouped and len(plan.sources) == self.size > 2:
                self._all_reduce(None if plan.shares is None else plan.shares[self.rank])
            else:
                self._average(plan)

    def barrier(self, timeout: float | None = None) -> None:
        started = perf_counter()
        self._network.barrier(timeout)
        self.wait_seconds += perf_counter() - started

    def broadcast(self, root: int = 0) -> None:
        with self._working, self._sendable():
            self._send_from(root, [rank for rank in range(self.size) if rank != root])

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        with self._working:
            return self._network.all_gather([float(value) for value in values])

    def abort(self) -> None:
        self._network.report_failure()

    def close(self) -> None:
        """Do nothing: the network is closed by its owner."""

    @contextmanager
    def _sendable(self) -> Iterator[None]:
        """In this block, use a copy of the weights on a device that the network supports; copy it back afterwards."""
        if self._sent is self.buffer:
            yield
            return
        self._sent.copy_(self.buffer)
        yield
        self.buffer.copy_(self._sent)

    def _all_reduce(self, share: float | None) -> None:
        """Average over all ranks by the library's sum of w_i x_i, or of x_i / n for equal shares."""
        if share is not None:
            self._sent.mul_(share)
        self._network.all_reduce(self._sent)
        if share is None:
            self._sent.mul_(1 / self.size)

    def _average_at_root(self, shares: Sequence[float] | None) -> None:
        """Gather the weights of all ranks on rank 0, which averages them in rank order and broadcasts the mean."""
        rows = self._rows(self.size + 2, self._sent.numel()) if self.rank == 0 else None
        self._network.gather_tensor(self._sent, None if rows is None else rows[: self.size])
        if rows is not None:
            average_in_rank_order(list(rows[: self.size]), shares, self._sent, rows[-2:])
        self._network.broadcast_tensor(self._sent)

    def _average(self, plan: ExchangePlan) -> None:
        """Average by a plan, in rank order; groups of three or more divide the work."""
        if plan.grouped and len(plan.sources) > 2:
            self._average_group(plan.sources, plan.shares)
            return
        others = [source for source in plan.sources if source != self.rank]
        rows = self._rows(len(others) + 2, self._sent.numel())
        arrived = dict(zip(others, rows, strict=False))
        self._send_and_receive([(reader, self._sent) for reader in plan.readers], list(arrived.items()))
        if others:
            members = [arrived.get(source, self._sent) for source in plan.sources]
            average_in_rank_order(members, plan.shares, self._sent, rows[-2:])

    def _average_group(self, group: Sequence[int], shares: Sequence[float] | None) -> None:
        """Average within a group by dividing the work: member k averages slice k, in rank order, and sends it back.

        Each member sends and receives 2 n (m-1)/m bytes instead of (m-1) n.
        """
        slices = dict(zip(group, self._sent.tensor_split(len(group)), strict=True))
        mine = slices.pop(self.rank)
        rows = self._rows(len(group) + 1, mine.numel())
        arrived = dict(zip(slices, rows, strict=False))
        self._send_and_receive(list(slices.items()), list(arrived.items()))
        average_in_rank_order([arrived.get(member, mine) for member in group], shares, mine, rows[-2:])
        self._send_and_receive([(member, mine) for member in slices], list(slices.items()))

    def _send_from(self, root: int, receivers: Sequence[int]) -> None:
        """Send the root's weights to these ranks."""
        if self.rank == root:
            self._send_and_receive([(receiver, self._sent) for receiver in receivers], [])
        elif self.rank in receivers:
            self._send_and_receive([], [(root, self._sent)])

    def _send_and_receive(self, sends: Transfers, receives: Transfers) -> None:
        """Exchange tensors, leaving out the empty ones."""
        sends = [(rank, tensor) for rank, tensor in sends if tensor.numel()]
        receives = [(rank, tensor) for rank, tensor in receives if tensor.numel()]
        self._network.exchange(sends, receives)

    def _rows(self, count: int, length: int) -> Tensor:
        if self._scratch.numel() < count * length:
            self._scratch = self._sent.new_empty(count * length)
        return self._scratch[: count * length].view(count, length)

    def _make_plan(self, round_: Round, samples: tuple[float, ...] | None) -> ExchangePlan:
        check_size(round_, self.size)
        sources = round_.sources[self.rank]
        readers = tuple(other for other, read in enumerate(round_.sources) if self.rank in read and other != self.rank)
        shares = compute_shares(round_, samples, self.rank)
        return ExchangePlan(sources, readers, shares, round_.groups is not None)


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

    All ranks call this together. If the weights are not on the CPU, or ranks of a host cannot share memory
    (containers), all messages use the network.
    """
    segment = None
    if torch.device(device).type == "cpu" and len(hosts) < network.size:
        host = next(host for host in hosts if network.rank in host)
        make = partial(Segment.create, len(host), numel, dtype)
        segment = share_memory(network.all_gather, host, network.rank, make)
    if segment is None:
        return NetworkTransport(network, torch.zeros(numel, dtype=dtype, device=device))
    inner = SharedMemoryTransport(segment, host.index(network.rank), ranks=host, check=network.check)
    return inner if len(hosts) == 1 else MultiHostTransport(network, hosts, inner)


class MultiHostTransport(NetworkTransport):
    """One of N ranks on several hosts.

    - The exact mean over all: each host averages in shared memory, the first ranks average over the hosts, and the
      other
        ranks of a host copy the result.
      - Groups within one host: shared memory.
      - All others: over the network, from rank to rank.
    """

    def __init__(self, network: Network, hosts: Hosts, inner: SharedMemoryTransport) -> None:
        super().__init__(network, inner.buffer)
        self._hosts = hosts
        self._host = next(host for host in hosts if self.rank in host)
        self._first = self._host[0]
        self._inner = inner
        self._host_plan = lru_cache(maxsize=256)(self._make_host_plan)

    def mix(self, round_: Round, samples: Sequence[float] | None = None) -> None:
        plan = self._host_plan(round_, None if samples is None else tuple(samples))
        with self._working, self._reporting():
            if plan.inside is not None:
                self._inner.mix(plan.inside, plan.samples)
            if plan.outside is not None:
                self._average(plan.outside)
            if plan.exact:
                self._inner.broadcast()

    def broadcast(self, root: int = 0) -> None:
        """Send the root's weights to the first rank of every other host; the other ranks of the host copy them."""
        firsts = [host[0] for host in self._hosts if root not in host]
        with self._working, self._reporting():
            self._send_from(root, firsts)
            self._inner.broadcast(self._host.index(root) if root in self._host else 0)

    def abort(self) -> None:
        self._inner.abort()
        self._network.report_failure()

    def close(self) -> None:
        self._inner.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Count the waiting on this host; if one of its ranks is lost, report that, and end the waiting here."""
        try:
            yield
            self.wait_seconds += self._inner.wait_seconds
            self._inner.wait_seconds = 0.0
        except WorkerLost as lost:
            self._network.report_failure(lost)
            self._inner.abort()
            raise

    def _make_host_plan(self, round_: Round, samples: tuple[float, ...] | None) -> "HostPlan":
        check_size(round_, self.size)
        if round_.is_exact:
            return self._exact_plan(round_.matrix(samples)[0])
        stays = {
            rank: round_.groups is not None and set(round_.sources[rank]) <= set(self._host) for rank in self._host
        }
        sources = (round_.sources[rank] if stays[rank] else (rank,) for rank in self._host)
        inside = Round(tuple(tuple(self._host.index(rank) for rank in read) for read in sources))
        of_host = None if samples is None else tuple(samples[rank] for rank in self._host)
        outside = None if stays[self.rank] else self._make_plan(round_, samples)
        return HostPlan(None if inside.is_idle else inside, of_host, outside)

    def _exact_plan(self, share: NDArray[Any]) -> "HostPlan":
        """Factor each rank's share into its share of the host and the host's share of all."""
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
    """One rank's part in a round: in shared memory, over the network, and whether its host copies the result."""

    inside: Round | None
    """Its round in shared memory, among the ranks of this host counted from 0."""
    samples: tuple[float, ...] | None
    """The weight of each rank of this host."""
    outside: ExchangePlan | None
    exact: bool = False


def share_memory(
    all_gather: Callable[[Any], list[Any]], host: Sequence[int], rank: int, make: Callable[[], Segment]
) -> Segment | None:
    """Create shared memory on the first rank of each host, and open it on the others; None if any rank cannot.

    All ranks call this together; `host` are the ranks of this rank's host.
    """
    segment, name = None, ""
    if rank == host[0]:
        segment = make()
        name = segment.name
    names = all_gather(name)
    if segment is None:
        with suppress(TrainingError):
            segment = Segment.attach(names[host[0]])
    if all(all_gather(segment is not None and segment.size == len(host))):
        return segment
    if segment is not None:
        segment.close()
    return None
