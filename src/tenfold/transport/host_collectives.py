"""Collective operations of processes on several hosts: shared memory within a host, gloo between the first ranks.

Sums are made within each host in rank order, and then over the hosts in the order of their first ranks. Each host adds
up one part of them for all, so every rank gets the same bits, every time.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tenfold.transport.base import combine_in_rank_order
from tenfold.transport.multi_host import Hosts
from tenfold.transport.shared_collectives import COMBINE, SharedCollectives, Steps


class HostCollectives:
    """One rank's part in the collective operations of a group on several hosts.

    Reductions, broadcasts and barriers go through shared memory and between the first ranks; everything else, and
    messages, go from rank to rank by gloo.
    """

    def __init__(self, store: Any, rank: int, hosts: Hosts, inner: SharedCollectives, timeout: float) -> None:
        """Connect the ranks; all call this together. `inner` is for the ranks of this host."""
        self.rank, self.size = rank, sum(map(len, hosts))
        self._inner = inner
        self._hosts = hosts
        self._here = next(at for at, host in enumerate(hosts) if rank in host)
        limit = timedelta(seconds=timeout)
        self.gloo = _gloo(dist.PrefixStore("tenfold/all", store), rank, self.size, limit)  # type: ignore[attr-defined]
        self._firsts: Any = None
        if rank == hosts[self._here][0]:
            self._firsts = _gloo(dist.PrefixStore("tenfold/hosts", store), self._here, len(hosts), limit)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Disconnect."""
        for group in (self.gloo, self._firsts):
            with suppress(RuntimeError, AttributeError):
                group.shutdown()

    def barrier(self) -> Steps:
        """Wait for all."""
        yield from self._inner.barrier()
        if self._firsts is not None:
            yield from _finish(self._firsts.barrier())
        yield from self._inner.barrier()

    def all_reduce(self, tensor: Tensor, reduction: str, root: int | None = None) -> Steps:
        """Replace a contiguous tensor by the reduction over all ranks; with a root, on that rank only."""
        flat = (tensor if root is None or root == self.rank else tensor.clone()).view(-1)
        within = "SUM" if reduction == "AVG" else reduction
        yield from self._inner.all_reduce(flat, within, 0)
        if self._firsts is not None and flat.numel():
            yield from self._combine_hosts(flat, within)
            if reduction == "AVG":
                torch.div(flat, self.size, rounding_mode=None if flat.is_floating_point() else "floor", out=flat)
        yield from self._inner.broadcast(flat, 0)

    def _combine_hosts(self, flat: Tensor, reduction: str) -> Steps:
        """Reduce over the first ranks: each is sent one part by all others, reduces it, and sends it back."""
        count, width = len(self._hosts), flat.dtype.itemsize
        parts = [width * len(part) for part in flat.tensor_split(count)]
        mine = [parts[self._here]] * count
        arrived = torch.empty(sum(mine), dtype=torch.uint8)
        yield from _finish(self._firsts.alltoall_base(arrived, _bytes(flat), mine, parts))
        rows = list(arrived.view(flat.dtype).view(count, -1))
        result = combine_in_rank_order(rows, getattr(torch, COMBINE[reduction]), torch.empty_like(rows[0]))
        yield from _finish(self._firsts.alltoall_base(_bytes(flat), _bytes(result).repeat(count), parts, mine))

    def broadcast(self, tensor: Tensor, root: int) -> Steps:
        """Copy the root's tensor."""
        place = next(at for at, host in enumerate(self._hosts) if root in host)
        if place == self._here:
            yield from self._inner.broadcast(tensor, self._hosts[place].index(root))
        if self._firsts is not None:
            options = dist.BroadcastOptions()
            options.rootRank = place
            yield from _finish(self._firsts.broadcast([tensor], options))
        if place != self._here:
            yield from self._inner.broadcast(tensor, 0)

    def reduce_scatter(self, inputs: Sequence[Tensor], out: Tensor, reduction: str) -> Steps:
        """Write the reduction of all ranks' inputs for this rank to `out`."""
        whole = torch.cat([part.reshape(-1) for part in inputs])
        yield from self.all_reduce(whole, reduction)
        out.view(-1).copy_(whole.split([part.numel() for part in inputs])[self.rank])  # type: ignore[no-untyped-call]

    def all_gather(self, own: Tensor, outs: Sequence[Tensor]) -> Steps:
        """Copy every rank's tensor, which may be of different sizes."""
        yield from self.all_to_all(outs, [own] * self.size)

    def gather(self, own: Tensor, outs: Sequence[Tensor], root: int) -> Steps:
        """Copy every rank's tensor on the root."""
        empty = own.new_empty(0)
        sends = [own if rank == root else empty for rank in range(self.size)]
        yield from self.all_to_all(outs if self.rank == root else [empty] * self.size, sends)

    def scatter(self, own: Tensor, inputs: Sequence[Tensor], root: int) -> Steps:
        """Copy this rank's part of what the root has."""
        empty = own.new_empty(0)
        sends = inputs if self.rank == root else [empty] * self.size
        yield from self.all_to_all([own if rank == root else empty for rank in range(self.size)], sends)

    def all_to_all(self, outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps:
        """Send a part to every rank, and receive one from each."""
        sends, receives = [_bytes(part) for part in inputs], [_bytes(out) for out in outs]
        sizes = [len(part) for part in receives]
        arrived = torch.empty(sum(sizes), dtype=torch.uint8)
        sent = torch.cat(sends)
        yield from _finish(self.gloo.alltoall_base(arrived, sent, sizes, [len(part) for part in sends]))
        for out, part in zip(receives, arrived.split(sizes), strict=True):  # type: ignore[no-untyped-call]
            out.copy_(part)


class NetworkWait:
    """Says whether an operation of gloo has ended, whose threads need the cores that polling would keep busy."""

    needs_pauses = True

    def __init__(self, work: Any) -> None:
        self._work = work

    def __call__(self) -> bool:
        """Return whether it has."""
        return bool(self._work.is_completed())


def _finish(work: Any) -> Steps:
    """Wait for an operation of gloo, and raise its error."""
    if work is not None:
        yield NetworkWait(work)
        work.wait()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _gloo(store: Any, rank: int, size: int, limit: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, limit)
