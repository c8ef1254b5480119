"""Collective operations of processes on one machine, through shared memory.

Every rank has a row of shared memory with three slots. A rank writes its data to its next slot and increments its
counter (a tick, see `shared_memory.py`); when all have ticked, each reads from the others' slots. Longer tensors are
sent in chunks, one slot after another. With three slots, no rank overwrites data that a slower rank still reads: before
it reuses a slot, it has waited for a tick that the others make only after reading it.

An operation is a generator. It yields an `Arrival` when it must wait for others, and any free thread continues it when
the `Arrival` is true. Sums and other reductions are computed in rank order, so they repeat bit for bit.
"""

import ctypes
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from tenfold.errors import TrainingError
from tenfold.transport.base import combine_in_rank_order
from tenfold.transport.network import Hosts
from tenfold.transport.segment import Segment, round_up
from tenfold.transport.shared_memory import Arrival, Counters

Steps = Generator[Any, None, None]
"""An operation: it yields functions without arguments, and continues when the last one returns True."""
SLOTS_PER_ROW = 3
ALIGNED = 128
"""Slices start on multiples of this many bytes, so that no two ranks write to one cache line."""
SMALL = 1 << 17
"""Bytes of all ranks together up to which every rank reduces everything itself, and nobody waits a second time."""
BLOCK_BYTES = 1 << 16
"""Bytes that are reduced at a time, so that the sum stays in the cache; too few for torch to use several threads."""
SLOT_MEMORY, MOST_SLOT, LEAST_SLOT = 1 << 24, 1 << 20, 1 << 18
"""Limits, in bytes, of all ranks' slots for the shared cache, and of one slot for a core's cache."""
OPERATIONS = (
    *("barrier", "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "all_to_all"),
    "reduce_scatter",
)
DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32),
    *(torch.int64, torch.bool, torch.complex64, torch.complex128),
)
IN_TORCH = (torch.float16, torch.bfloat16)
"""Types that torch adds: numpy has no bfloat16, and is slow for float16."""
NUMPY = {dtype: torch.empty(0, dtype=dtype).numpy().dtype for dtype in DTYPES if dtype is not torch.bfloat16}
COMBINE = {"SUM": "add", "AVG": "add", "PRODUCT": "multiply", "MIN": "minimum", "MAX": "maximum"}
COMBINE |= {"BAND": "bitwise_and", "BOR": "bitwise_or", "BXOR": "bitwise_xor"}
"""For each reduction the name of the function of two arrays, in numpy and in torch."""

_move = ctypes.memmove


def slot_bytes(size: int) -> int:
    """Return the bytes of one slot for this number of ranks, without its header."""
    return max(LEAST_SLOT, min(MOST_SLOT, SLOT_MEMORY // size)) // ALIGNED * ALIGNED


def row_bytes(size: int) -> int:
    """Return the bytes that the slots of one rank take."""
    return SLOTS_PER_ROW * (_header_bytes(size) + slot_bytes(size))


@dataclass(frozen=True, slots=True)
class ByteSpan:
    """Bytes at an address in this process's memory."""

    address: int
    nbytes: int
    owner: Any = None
    """What must not be freed while the bytes are in use."""


def span_of(tensor: Tensor) -> ByteSpan:
    """Return the memory of a contiguous tensor."""
    return ByteSpan(tensor.data_ptr(), tensor.nbytes, tensor)


class SharedCollectives:
    """One rank's part in the collective operations of a group; all ranks start the same ones in the same order."""

    def __init__(self, segment: Segment, counters: Counters, rank: int) -> None:
        """Use the first `row_bytes` of each worker's buffer in the segment."""
        self.rank, self.size = rank, segment.size
        self._counters = counters
        self._others = tuple(other for other in reversed(range(self.size)) if other != rank)
        self._slot = slot_bytes(self.size)
        self._header = _header_bytes(self.size)
        self._turn = 0
        memory = segment.buffers.view(np.uint8)
        self._rows = [memory.ctypes.data + row * memory.strides[0] for row in range(self.size)]
        self._memory = memory
        words = memory[:, : row_bytes(self.size)].view(np.int64)
        starts = [slot * (self._header + self._slot) // 8 for slot in range(SLOTS_PER_ROW)]
        self._headers = [words[:, at : at + self._header // 8] for at in starts]
        """For each slot the ranks' headers, see `_publish`."""
        self._words = [[memoryview(header) for header in headers] for headers in self._headers]
        self._arrays: dict[torch.dtype, list[Any]] = {}
        self._kernels: dict[tuple[torch.dtype, str], tuple[Any, Any, int]] = {}
        self._scratch = np.empty(BLOCK_BYTES, np.uint8)

    def barrier(self) -> Steps:
        _, all_here = self._publish("barrier", (0, 0))
        yield all_here

    def all_reduce(self, tensor: Tensor, reduction: str, root: int | None = None) -> Steps:
        """Replace a contiguous tensor by the reduction over all ranks; with a root, on that rank only."""
        dtype, nbytes, address = tensor.dtype, tensor.nbytes, tensor.data_ptr()
        signature = (_sign(dtype, reduction, root), nbytes)
        kind = "all_reduce" if root is None else "reduce"
        wanted = root is None or root == self.rank
        if self.size == 1:
            return
        if nbytes * self.size <= SMALL:
            slot, all_here = self._publish(kind, signature, ByteSpan(address, nbytes))
            yield all_here
            self._check(slot, kind, signature)
            if wanted:
                self._reduce(self._members(dtype, self._start(slot), nbytes), dtype, reduction, [address])
            return
        flat = tensor.detach().view(-1)
        own: Any = flat if dtype in IN_TORCH else flat.numpy()
        yield from self._all_reduce_in_chunks(kind, signature, own, address, dtype, reduction, wanted=wanted)

    def _all_reduce_in_chunks(
        self,
        kind: str,
        signature: tuple[int, int],
        own: Any,
        address: int,
        dtype: torch.dtype,
        reduction: str,
        *,
        wanted: bool,
    ) -> Steps:
        """Let each rank reduce its slice of every chunk; its own slice is copied neither into the slot nor out of it.

        While a chunk is reduced, the next one is copied in, so each chunk takes one tick.
        """
        nbytes, width = signature[1], dtype.itemsize
        first, slot = 0, -1
        while first < nbytes:
            length, mine, end = self._slice(nbytes - first)
            if slot < 0:
                slot, all_here = self._publish(kind, signature, *_around(address, mine, end, length), places=(0, end))
                yield all_here
                self._check(slot, kind, signature)
            at = self._start(slot)
            if mine < end:
                members = self._members(dtype, at + mine, end - mine)
                members[self.rank] = own[(first + mine) // width : (first + end) // width]
                # No other rank reads this slice of rank 0's row, so the result can replace it.
                outs = [self._rows[0] + at + mine, *([address + first + mine] if wanted else [])]
                self._reduce(members, dtype, reduction, outs)
            following = first + length
            if following < nbytes:
                after = self._slice(nbytes - following)
                slot = self._fill(*_around(address + following, after[1], after[2], after[0]), places=(0, after[2]))
            yield self._tick()
            if wanted:
                for start, stop in ((0, mine), (end, length)):
                    if start < stop:
                        _move(address + first + start, self._rows[0] + at + start, stop - start)
            first = following

    def _slice(self, left: int) -> tuple[int, int, int]:
        """Return the length of the next chunk, given the remaining bytes, and the range that this rank reduces."""
        length = min(self._slot, left)
        share = round_up(-(-length // self.size), ALIGNED)
        mine = min(self.rank * share, length)
        return length, mine, min(mine + share, length)

    def reduce_scatter(self, inputs: Sequence[Tensor], out: Tensor, reduction: str) -> Steps:
        """Write the reduction of all ranks' inputs for this rank to `out`; `inputs` has one for each rank."""
        dtype = out.dtype
        signature = (_sign(dtype, reduction, None), sum(part.nbytes for part in inputs))
        spans, start = [span_of(part) for part in inputs], out.data_ptr()
        longest = max(span.nbytes for span in spans)
        share = self._slot // self.size // ALIGNED * ALIGNED
        places = [rank * share for rank in range(self.size)]
        first, checked = 0, False
        while first < longest or not checked:
            pieces = [ByteSpan(span.address + first, max(0, min(share, span.nbytes - first))) for span in spans]
            slot, all_here = self._publish("reduce_scatter", signature, *pieces, places=places)
            yield all_here
            if not checked:
                self._check(slot, "reduce_scatter", signature)
                checked = True
            nbytes = pieces[self.rank].nbytes
            if nbytes:
                members = self._members(dtype, self._start(slot) + places[self.rank], nbytes)
                self._reduce(members, dtype, reduction, [start + first])
            first += share

    def broadcast(self, tensor: Tensor, root: int) -> Steps:
        span = span_of(tensor)
        sends, reads = ([span], {}) if self.rank == root else ([], {root: span})
        return self._exchange("broadcast", (root + 1, span.nbytes), sends, reads)

    def all_gather(self, own: Tensor, outs: Sequence[Tensor]) -> Steps:
        """Copy every rank's tensor; sizes may differ."""
        return self._exchange("all_gather", None, [span_of(own)], _numbered(outs))

    def gather(self, own: Tensor, outs: Sequence[Tensor], root: int) -> Steps:
        """Copy every rank's tensor on the root."""
        return self._exchange("gather", None, [span_of(own)], _numbered(outs) if self.rank == root else {}, root)

    def scatter(self, own: Tensor, inputs: Sequence[Tensor], root: int) -> Steps:
        """Copy this rank's part of the root's tensor."""
        sends = [span_of(part) for part in inputs] if self.rank == root else []
        return self._exchange("scatter", None, sends, {root: span_of(own)}, root, divided=True)

    def all_to_all(self, outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps:
        """Send a part to every rank, and receive one from each."""
        return self._exchange("all_to_all", None, [span_of(part) for part in inputs], _numbered(outs), divided=True)

    def _exchange(
        self,
        kind: str,
        signature: tuple[int, int] | None,
        sends: Sequence[ByteSpan],
        reads: dict[int, ByteSpan],
        root: int | None = None,
        *,
        divided: bool = False,
    ) -> Steps:
        """Send this rank's spans one after another, and read from other ranks: all of it, or this rank's part if
                divided.

        Without a signature, ranks may send different numbers of bytes.
        """
        ends = np.cumsum([0, *(span.nbytes for span in sends)]).tolist()
        signed = signature or (0 if root is None else root + 1, ends[-1])
        first, most = 0, 1
        parts: dict[int, tuple[int, int]] = {}
        while first < most:
            pieces, places = [], []
            for span, start in zip(sends, ends, strict=False):
                low, high = max(first, start), min(first + self._slot, start + span.nbytes)
                if low < high:
                    pieces.append(ByteSpan(span.address + low - start, high - low))
                    places.append(low - first)
            slot, all_here = self._publish(kind, signed, *pieces, places=places, ends=ends if divided else None)
            yield all_here
            if first == 0:
                self._check(slot, kind, signed, same_length=signature is not None)
                headers = self._headers[slot]
                most = int(headers[:, 2].max())
                for rank, span in reads.items():
                    begin, end = (int(headers[rank, 2 + self.rank + at]) for at in (1, 2)) if divided else (0, -1)
                    end = int(headers[rank, 2]) if end < 0 else end
                    if end - begin != span.nbytes:
                        raise TrainingError(
                            f"{kind}: rank {rank} sends {end - begin:,} bytes to rank {self.rank}, but the tensor "
                            f"there has {span.nbytes:,}; shapes and types should be the same"
                        )
                    parts[rank] = begin, end
            at = self._start(slot) - first
            for rank, (begin, end) in parts.items():
                low, high = max(first, begin), min(first + self._slot, end)
                if low < high:
                    _move(reads[rank].address + low - begin, self._rows[rank] + at + low, high - low)
            first += self._slot

    def _publish(
        self,
        kind: str,
        signature: tuple[int, int],
        *pieces: ByteSpan,
        places: Sequence[int] = (0,),
        ends: Sequence[int] | None = None,
    ) -> tuple[int, Arrival]:
        """Write a header and these pieces to this rank's next slot, and tick; return the slot, and the others' arrival.

        The header contains the operation and the values that must be equal on all ranks, followed by the number of
        bytes or, if they are divided, the range of each rank's part.
        """
        slot = self._fill(*pieces, places=places)
        words = self._words[slot][self.rank]
        words[0], words[1], words[2] = OPERATIONS.index(kind) | signature[0] << 8, signature[1], signature[1]
        if ends is not None:
            header = self._headers[slot][self.rank]
            header[2] = ends[-1]
            header[3 : 3 + len(ends)] = ends
            header[3 + len(ends) : 4 + self.size] = 0
        return slot, self._tick()

    def _fill(self, *pieces: ByteSpan, places: Sequence[int] = (0,)) -> int:
        slot, self._turn = self._turn, (self._turn + 1) % SLOTS_PER_ROW
        start = self._rows[self.rank] + self._start(slot)
        for piece, place in zip(pieces, places, strict=False):
            if piece.nbytes:
                _move(start + place, piece.address, piece.nbytes)
        return slot

    def _tick(self) -> Arrival:
        self._counters.tick()
        return self._counters.arrival(self._others)

    def _start(self, slot: int) -> int:
        """Return the offset of a slot's contents in every row."""
        return slot * (self._header + self._slot) + self._header

    def _check(self, slot: int, kind: str, signature: tuple[int, int], *, same_length: bool = True) -> None:
        """Raise an error unless all ranks have started the same operation on tensors of the same size and type."""
        own, nbytes = OPERATIONS.index(kind) | signature[0] << 8, signature[1]
        for other, words in enumerate(self._words[slot]):
            if words[0] == own and (words[1] == nbytes or not same_length):
                continue
            headers = self._headers[slot]
            first, second = (self._describe(headers[rank], rank) for rank in sorted((self.rank, other)))
            raise TrainingError(
                f"{first}, but {second}; all ranks must call the same operations in the same order, with tensors of "
                "the same size and type"
            )

    def _describe(self, header: NDArray[np.int64], rank: int) -> str:
        code = int(header[0])
        dtype = (code >> 8) & 0xFF
        kind = OPERATIONS[code & 0xFF]
        of_type = f" of {str(DTYPES[dtype]).removeprefix('torch.')}" if "reduce" in kind else ""
        return f"rank {rank} called {kind} with {int(header[1]):,} bytes{of_type}"

    def _members(self, dtype: torch.dtype, at: int, nbytes: int) -> list[Any]:
        if dtype not in self._arrays:
            rows = [self._memory[rank, : row_bytes(self.size)] for rank in range(self.size)]
            if dtype in IN_TORCH:
                self._arrays[dtype] = [torch.from_numpy(row).view(dtype) for row in rows]
            else:
                self._arrays[dtype] = [row.view(NUMPY[dtype]) for row in rows]
        begin, end = at // dtype.itemsize, (at + nbytes) // dtype.itemsize
        return [array[begin:end] for array in self._arrays[dtype]]

    def _reduce(self, members: list[Any], dtype: torch.dtype, reduction: str, outs: Sequence[int]) -> None:
        """Reduce arrays in rank order, block by block, and write the result to these addresses."""
        combine, total, place = self._kernels.get((dtype, reduction)) or self._make_kernel(dtype, reduction)
        width, count = dtype.itemsize, len(members[0])
        most = BLOCK_BYTES // width
        with np.errstate(all="ignore"):  # a diverging model is reported elsewhere
            for first in range(0, count, most):
                last = min(first + most, count)
                block = total[: last - first]
                result = combine_in_rank_order([member[first:last] for member in members], combine, block)
                if reduction == "AVG":
                    _divide(result, self.size, block)
                elif result is not block:  # there is one rank
                    block[...] = result
                for out in outs:
                    _move(out + first * width, place, (last - first) * width)

    def _make_kernel(self, dtype: torch.dtype, reduction: str) -> tuple[Any, Any, int]:
        """Return the function of two arrays, memory for its result, and the address of the memory."""
        total: Any = self._scratch
        total = torch.from_numpy(total).view(dtype) if dtype in IN_TORCH else total.view(NUMPY[dtype])
        combine = check_reduction(dtype, reduction), total, self._scratch.ctypes.data
        self._kernels[dtype, reduction] = combine
        return combine


def _around(address: int, start: int, stop: int, length: int) -> tuple[ByteSpan, ByteSpan]:
    """Return the bytes before and after a slice of a span at an address."""
    return ByteSpan(address, start), ByteSpan(address + stop, length - stop)


def _numbered(tensors: Sequence[Tensor]) -> dict[int, ByteSpan]:
    return {rank: span_of(tensor) for rank, tensor in enumerate(tensors)}


def _divide(result: Any, size: int, out: Any) -> None:
    library: Any = torch if isinstance(result, Tensor) else np
    if library is np and not np.issubdtype(result.dtype, np.inexact):
        np.floor_divide(result, size, out=out)
    else:
        library.divide(result, size, out=out)


@cache
def check_reduction(dtype: torch.dtype, reduction: str) -> Callable[..., Any]:
    """Return numpy's or torch's function for a reduction; raise TrainingError if the dtype does not support it."""
    if reduction not in COMBINE:
        raise TrainingError(
            f"the tenfold backend does not support the reduction {reduction}; it supports {', '.join(COMBINE)}"
        )
    name = str(dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise TrainingError(f"the tenfold backend does not reduce tensors of type {name}; cast them first")
    if reduction[0] == "B" and (dtype.is_floating_point or dtype.is_complex):
        raise TrainingError(f"{reduction} is for integers, but the tensors are of type {name}")
    if reduction == "AVG" and dtype is torch.bool:
        raise TrainingError("AVG is for numbers, but the tensors are of type bool")
    combine: Callable[..., Any] = getattr(torch if dtype in IN_TORCH else np, COMBINE[reduction])
    return combine


@cache
def _sign(dtype: torch.dtype, reduction: str, root: int | None) -> int:
    """Return a number for the values that must be equal on all ranks: type, reduction and root."""
    return DTYPES.index(dtype) | list(COMBINE).index(reduction) << 8 | (0 if root is None else root + 1) << 16


def _header_bytes(size: int) -> int:
    return round_up(8 * (4 + size), ALIGNED)


# Collective operations of processes on several hosts: shared memory within a host, gloo between the first ranks.
#
# Sums are computed within each host in rank order, and then over the hosts in the order of their first ranks. Each host
# computes one part of the sum for all, so every rank gets the same bits, every time.


class HostCollectives:
    """One rank's part in the collective operations of a group on several hosts.

    Reductions, broadcasts and barriers use shared memory and the first ranks; all other operations, and messages, are
    sent from rank to rank by gloo.
    """

    def __init__(self, store: Any, rank: int, hosts: Hosts, inner: SharedCollectives, timeout: float) -> None:
        """Connect the ranks; all call this together. `inner` is for the ranks of this host."""
        self.rank, self.size = rank, sum(map(len, hosts))
        self._inner = inner
        self._hosts = hosts
        self._here = next(at for at, host in enumerate(hosts) if rank in host)
        limit = timedelta(seconds=timeout)
        self._all = GlooExchange("tenfold/all", store, rank, self.size, limit)
        self.gloo = self._all.up
        self._firsts: GlooExchange | None = None
        if rank == hosts[self._here][0]:
            self._firsts = GlooExchange("tenfold/hosts", store, self._here, len(hosts), limit)

    def close(self) -> None:
        for exchange in (self._all, self._firsts):
            if exchange is not None:
                exchange.close()

    def barrier(self) -> Steps:
        yield from self._inner.barrier()
        if self._firsts is not None:
            yield from _finish(self._firsts.up.barrier())
        yield from self._inner.barrier()

    def all_reduce(self, tensor: Tensor, reduction: str, root: int | None = None) -> Steps:
        """Replace a contiguous tensor by the reduction over all ranks; with a root, on that rank only."""
        flat = (tensor if root is None or root == self.rank else tensor.clone()).view(-1)
        within = "SUM" if reduction == "AVG" else reduction
        yield from self._inner.all_reduce(flat, within, 0)
        if self._firsts is not None and flat.numel():
            yield from self._combine_hosts(self._firsts, flat, within)
            if reduction == "AVG":
                torch.div(flat, self.size, rounding_mode=None if flat.is_floating_point() else "floor", out=flat)
        if self._inner.size > 1:
            yield from self._inner.broadcast(flat, 0)

    def _combine_hosts(self, firsts: "GlooExchange", flat: Tensor, reduction: str) -> Steps:
        """Reduce over the first ranks: each receives one part from all others, reduces it, and sends it back."""
        count, width = len(self._hosts), flat.dtype.itemsize
        parts = [width * len(part) for part in flat.tensor_split(count)]
        mine = [parts[self._here]] * count
        arrived = torch.empty(sum(mine), dtype=torch.uint8)
        yield from firsts.all_to_all(arrived, _bytes(flat), mine, parts)
        rows = list(arrived.view(flat.dtype).view(count, -1))
        result = combine_in_rank_order(rows, getattr(torch, COMBINE[reduction]), torch.empty_like(rows[0]))
        yield from firsts.all_to_all(_bytes(flat), _bytes(result).repeat(count), parts, mine)

    def broadcast(self, tensor: Tensor, root: int) -> Steps:
        place = next(at for at, host in enumerate(self._hosts) if root in host)
        if place == self._here:
            yield from self._inner.broadcast(tensor, self._hosts[place].index(root))
        if self._firsts is not None:
            options = dist.BroadcastOptions()
            options.rootRank = place
            yield from _finish(self._firsts.up.broadcast([tensor], options))
        if place != self._here:
            yield from self._inner.broadcast(tensor, 0)

    def reduce_scatter(self, inputs: Sequence[Tensor], out: Tensor, reduction: str) -> Steps:
        whole = torch.cat([part.reshape(-1) for part in inputs])
        yield from self.all_reduce(whole, reduction)
        out.view(-1).copy_(whole.split([part.numel() for part in inputs])[self.rank])  # type: ignore[no-untyped-call]

    def all_gather(self, own: Tensor, outs: Sequence[Tensor]) -> Steps:
        yield from self.all_to_all(outs, [own] * self.size)

    def gather(self, own: Tensor, outs: Sequence[Tensor], root: int) -> Steps:
        empty = own.new_empty(0)
        sends = [own if rank == root else empty for rank in range(self.size)]
        yield from self.all_to_all(outs if self.rank == root else [empty] * self.size, sends)

    def scatter(self, own: Tensor, inputs: Sequence[Tensor], root: int) -> Steps:
        empty = own.new_empty(0)
        sends = inputs if self.rank == root else [empty] * self.size
        yield from self.all_to_all([own if rank == root else empty for rank in range(self.size)], sends)

    def all_to_all(self, outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Steps:
        sends, receives = [_bytes(part) for part in inputs], [_bytes(out) for out in outs]
        sizes = [len(part) for part in receives]
        arrived = torch.empty(sum(sizes), dtype=torch.uint8)
        sent = torch.cat(sends)
        yield from self._all.all_to_all(arrived, sent, sizes, [len(part) for part in sends])
        for out, part in zip(receives, arrived.split(sizes), strict=True):  # type: ignore[no-untyped-call]
            out.copy_(part)


class GlooExchange:
    """Two gloo groups with the same ranks: one for messages to higher ranks, the other for messages to lower ranks.

    In gloo, a receiver's ready signal uses the same connection as its own data, and queues behind them. With one group,
    the later rank would send all its data before the other may send, at half the speed of the link.
    """

    def __init__(self, name: str, store: Any, rank: int, size: int, limit: timedelta) -> None:
        self._rank = rank
        stores = [dist.PrefixStore(f"{name}/{way}", store) for way in ("up", "down")]  # type: ignore[attr-defined]
        self.up, self._down = (_gloo(store, rank, size, limit) for store in stores)

    def all_to_all(self, out: Tensor, own: Tensor, received: Sequence[int], sent: Sequence[int]) -> Steps:
        """Send a part of one tensor to every rank, and receive a part of the other from each."""
        rank, after = self._rank, self._rank + 1
        head, tail = own.split([sum(sent[:after]), sum(sent[after:])])  # type: ignore[no-untyped-call]
        first, rest = out.split([sum(received[:rank]), sum(received[rank:])])  # type: ignore[no-untyped-call]
        none = [0] * len(sent)
        works = [
            self.up.alltoall_base(first, tail, [*received[:rank], *none[rank:]], [*none[:after], *sent[after:]]),
            self._down.alltoall_base(rest, head, [*none[:rank], *received[rank:]], [*sent[:after], *none[after:]]),
        ]
        for work in works:
            yield from _finish(work)

    def close(self) -> None:
        for group in (self.up, self._down):
            with suppress(RuntimeError):
                group.shutdown()


class NetworkWait:
    """Waits for a collective operation of gloo without polling, because gloo's threads need the cores.

    A collective operation continues after a wait that timed out, in any number of threads. For a message, gloo would
    close the connections.
    """

    def __init__(self, work: Any) -> None:
        self._work = work

    def __call__(self) -> bool:
        return bool(self._work.is_completed())

    def rest(self, seconds: float) -> None:
        """Sleep until it has ended, or for some time."""
        with suppress(RuntimeError):  # it takes longer, or has failed; `_finish` raises the error
            self._work.wait(timedelta(seconds=seconds))


def _finish(work: Any) -> Steps:
    """Wait for an operation of gloo, and raise its error."""
    if work is not None:
        yield NetworkWait(work)
        work.wait()


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _gloo(store: Any, rank: int, size: int, limit: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, limit)
