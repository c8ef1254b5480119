"""The connection between the workers of a divided replica: activations and gradients in shared memory."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from tenfold.errors import ModelError
from tenfold.transport.base import wait
from tenfold.transport.segment import Segment
from tenfold.transport.shared_collectives import DTYPES, SharedCollectives, Steps, row_bytes, span_of
from tenfold.transport.shared_memory import Check, Counters, Until
from tenfold.transport.shared_messages import HEAD, LEAST_RING, Outgoing, SharedMessages

RING_MEMORY = 1 << 28
"""Bytes of the rings between all pairs of a group together; only those between neighbors are in use."""
HEADER_WORDS = 384
"""64-bit numbers that describe the values of a message at most: their kinds, types, shapes and strides."""
TENSOR, TRAINED_TENSOR, NUMBER, FLAG, NOTHING = range(5)
"""Kinds of values; a gradient is computed for a trained tensor."""
NEVER = 1 << 62


def ring_size(size: int, nbytes: int) -> int:
    """Return the bytes of the ring buffer between two of `size` workers, for `nbytes` bytes of activations."""
    return max(LEAST_RING, min(nbytes + (1 << 14), RING_MEMORY // size**2)) // HEAD * HEAD


def create_group(size: int, nbytes: int) -> Segment:
    """Return new shared memory for the workers of one replica, with rings for `nbytes` bytes of activations."""
    row = row_bytes(size) + size * ring_size(size, nbytes)
    return Segment.create(size, -(-row // 4), contents="numbers", channels=True)


class ModelGroup:
    """One worker's connection to the others that hold parts of the same replica."""

    def __init__(
        self,
        segment: Segment,
        rank: int,
        nbytes: int,
        *,
        workers: Sequence[int],
        until: Until | None = None,
        check: Check | None = None,
    ) -> None:
        """Join as `rank`; `workers` are the numbers of the group's workers, for errors.

        `nbytes` must be the same as in `create_group`; workers of the same process wait for each other with `until`,
        and `check` is called repeatedly while this one waits.
        """
        self.rank, self.size = rank, segment.size
        self._counters = Counters(segment, rank, math.inf, workers, until, check)
        self._until = until
        self._collectives = SharedCollectives(segment, self._counters, rank)
        self._messages = SharedMessages(segment, rank, row_bytes(self.size), ring_size(self.size, nbytes))
        self._sending: deque[tuple[Outgoing, Any]] = deque()
        """Messages that may not have been sent completely, with what must stay in memory until then."""
        self.wait_seconds = 0.0
        self.communicate_seconds = 0.0
        self.bytes_moved = 0

    def send(self, values: Sequence[Any], receiver: int) -> None:
        """Send tensors, integers, booleans and None to another worker, without waiting for it to receive them."""
        started = perf_counter()
        header, tensors = _describe(values)
        for part in (header, *tensors):
            self._sending.append((self._messages.send(span_of(part), receiver, 0), part))
            self.bytes_moved += part.nbytes
        while self._sending and self._sending[0][0]():
            self._sending.popleft()
        self.communicate_seconds += perf_counter() - started

    def receive(self, sender: int) -> list[Any]:
        """Return the next values from another worker; tensors keep their layout and `requires_grad`."""
        header = torch.empty(HEADER_WORDS, dtype=torch.int64)
        self._receive_into(header, sender)
        values = _make_values(header.tolist())
        for value in values:
            if isinstance(value, Tensor):
                own = value.detach()
                dense = own if _is_dense(own) else torch.empty_like(own)
                self._receive_into(dense, sender)
                if dense is not own:
                    own.copy_(dense)
        return values

    def _receive_into(self, tensor: Tensor, sender: int) -> None:
        started = perf_counter()
        incoming = self._messages.receive(span_of(tensor), sender, 0)
        waited = self._wait(incoming, sender)
        incoming.finish()
        self.communicate_seconds += perf_counter() - started - waited

    def flush(self) -> None:
        while self._sending:
            message, _ = self._sending[0]
            self._wait(message, message.peer)
            self._sending.popleft()

    def all_gather(self, tensor: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the tensors of all workers, given their shapes."""
        gathered = [torch.empty(shape, dtype=tensor.dtype) for shape in shapes]
        self._run(self._collectives.all_gather(tensor.contiguous(), gathered))
        self.bytes_moved += tensor.nbytes * (self.size - 1)
        return gathered

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of all workers' tensors, added in the order of ranks; the tensor itself may change."""
        total = tensor.contiguous()
        self._run(self._collectives.all_reduce(total, "SUM"))
        self.bytes_moved += 2 * tensor.nbytes * (self.size - 1) // self.size
        return total

    def _run(self, steps: Steps) -> None:
        started = perf_counter()
        waited = sum(self._wait(arrival, arrival.missing) for arrival in steps)
        self.communicate_seconds += perf_counter() - started - waited

    def _wait(self, ready: Callable[[], bool], others: int | Callable[[], list[int]]) -> float:
        """Wait until `ready`, forwarding messages in the meantime, and return the seconds."""
        messages = self._messages

        def is_ready() -> bool:
            messages.advance()
            return ready()

        def check(waited: float) -> None:
            for rank in others() if callable(others) else (others,):
                self._counters.check_for_failure(rank, waited, math.inf, NEVER)

        started = perf_counter()
        if self._until is not None:
            self._until(is_ready)
        else:
            wait(is_ready, check)
        waited = perf_counter() - started
        self.wait_seconds += waited
        return waited


def _describe(values: Sequence[Any]) -> tuple[Tensor, list[Tensor]]:
    """Return integers that describe the values, and the tensors among them in their memory layout."""
    words, tensors = [len(values)], []
    for value in values:
        if isinstance(value, Tensor):
            kind = TRAINED_TENSOR if value.requires_grad else TENSOR
            value = value.detach()
            dense = value
            if not _is_dense(value):
                dense = value.clone()
                value = (
                    dense if _overlaps_itself(value) else value
                )  # otherwise it has gaps, with which some operations round differently
            words += [kind, DTYPES.index(value.dtype), value.ndim, *value.shape, *value.stride()]
            tensors.append(dense)
        elif value is None:
            words.append(NOTHING)
        elif isinstance(value, bool):
            words += [FLAG, int(value)]
        elif isinstance(value, int):
            words += [NUMBER, value]
        else:
            raise ModelError(
                f"a stage of the network passes a {type(value).__name__} to the next one, but only tensors, integers, "
                "booleans and None can be passed; set parallel.stages to cut the network elsewhere"
            )
    if len(words) > HEADER_WORDS:
        raise ModelError(
            f"a stage of the network passes {len(values)} values to the next one, too many for a message; "
            "set parallel.stages to cut the network elsewhere"
        )
    return torch.tensor(words), tensors


def _is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor neither has gaps nor overlaps itself."""
    return tensor.stride() == torch.empty_like(tensor, device="meta").stride()


def _overlaps_itself(tensor: Tensor) -> bool:
    """Return whether elements of a tensor may share memory, as after `expand`."""
    end = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= end:
            return True
        end += stride * (size - 1)
    return False


def _make_values(words: Sequence[int]) -> list[Any]:
    """Return the values described by integers; tensors are empty."""
    left = iter(words)
    values: list[Any] = []
    for _ in range(next(left)):
        kind = next(left)
        if kind in (TENSOR, TRAINED_TENSOR):
            dtype, ndim = DTYPES[next(left)], next(left)
            shape, strides = ([next(left) for _ in range(ndim)] for _ in range(2))
            values.append(torch.empty_strided(shape, strides, dtype=dtype, requires_grad=kind == TRAINED_TENSOR))
        else:
            values.append(None if kind == NOTHING else bool(next(left)) if kind == FLAG else next(left))
    return values
