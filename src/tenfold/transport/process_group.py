"""A process group of torch.distributed over shared memory: `init_process_group("tenfold")`.

The functions of torch.distributed, DistributedDataParallel and libraries built on them call the methods of a
`ProcessGroup`. Here each method makes the tensors contiguous, selects the operation (`shared_collectives.py`,
`shared_messages.py`) and starts it (`process_group_work.py`).
"""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Backend, Work

from tenfold.errors import ExperimentError
from tenfold.machine import cores
from tenfold.machine.liveness import keep_freed_memory
from tenfold.transport.process_group_members import Members, RankWatch
from tenfold.transport.process_group_work import CollectiveError, GlooMessage, GroupWork, Progress
from tenfold.transport.shared_collectives import (
    HostCollectives,
    SharedCollectives,
    Steps,
    check_reduction,
    row_bytes,
    span_of,
)
from tenfold.transport.shared_memory import Counters
from tenfold.transport.shared_messages import SharedMessages
from tenfold.transport.torch_distributed import choose_interface

_ProcessGroup: Any = dist.ProcessGroup
NOT_ADDED_SPARSE = (torch.float16, torch.bool)
"""Types for which torch cannot add sparse tensors."""
BARRIER_TAG, ANSWER_TAG = -2, -3
"""Tags of the messages of `monitored_barrier`; those of users are not negative."""


def _admit_monitored_barrier() -> None:
    """Make `torch.distributed.monitored_barrier`, which checks for the name gloo, accept this backend."""
    original = dist.monitored_barrier
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        chosen = dist.group.WORLD if group is None else group
        if isinstance(chosen, TenfoldProcessGroup):
            chosen.monitored_barrier(timeout, wait_all_ranks)
        else:
            original(group, timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


class TenfoldProcessGroup(_ProcessGroup):  # type: ignore[misc]
    """One rank of a group. Reductions are computed in rank order, so a run repeats bit for bit."""

    supports_splitting = False
    supports_coalescing = False

    def __init__(self, store: Any, rank: int, numbers: Sequence[int], timeout: float) -> None:
        """Meet the other ranks; `numbers` are the global ranks, for error messages."""
        super().__init__(rank, len(numbers))
        _admit_monitored_barrier()
        self._rank, self._size, self._timeout = rank, len(numbers), timeout
        self._name = self._desc = ""
        self._store = store
        self._members = members = Members(store, rank, numbers, timeout)
        segment, local = members.segment, members.host.index(rank)
        counters = Counters(segment, local, timeout, numbers)
        self._watch = RankWatch(members)
        self._collectives: Any = SharedCollectives(segment, counters, local)
        self._messages = SharedMessages(segment, local, row_bytes(segment.size))
        self._hosts: HostCollectives | None = None
        if len(members.hosts) > 1:
            if os.environ.get("MASTER_ADDR"):
                choose_interface(os.environ["MASTER_ADDR"])
            self._hosts = HostCollectives(store, rank, members.hosts, self._collectives, timeout)
            self._collectives = self._hosts
        self._progress = Progress(self._watch, self._messages.advance, crowded=cores.are_shared(segment.size))
        self._is_open = True

    # Properties that torch reads.

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "tenfold"

    def _get_backend_name(self) -> str:
        return "tenfold"

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        self._name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        return self._desc

    def setGroupDesc(self, text: str) -> None:  # noqa: N802 - torch's name
        self._desc = text

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        self._check_device(device)
        return self

    def get_group_store(self) -> Any:
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group; ranks that still wait for this one get an error."""
        if self._is_open:
            self._is_open = False
            self._progress.close()
            self._progress.fail(CollectiveError("this process group was destroyed"))
            self._watch.leave()
            if self._hosts is not None:
                self._hosts.close()
            self._members.leave()

    def abort(self) -> None:
        """Make all waiting ranks fail with an error."""
        self._members.segment.abort()
        self._progress.fail(CollectiveError("this process group was aborted"))

    # Collective operations.

    def allreduce(self, tensors: Any, opts: Any = None) -> GroupWork:
        tensors = tensors if isinstance(tensors, list) else [tensors]
        reduction = _reduction(opts, tensors)
        if len(tensors) == 1 and not tensors[0].is_sparse and tensors[0].is_contiguous():
            return self._begin("all_reduce", self._collectives.all_reduce(tensors[0], reduction), tensors, opts)
        return self._begin("all_reduce", self._all_reduce(tensors, reduction), tensors, opts)

    allreduce_coalesced = allreduce

    def _all_reduce(self, tensors: Sequence[Tensor], reduction: str, root: int | None = None) -> Steps:
        for tensor in tensors:
            if tensor.is_sparse:
                yield from self._add_sparse(tensor)
                continue
            flat = tensor.contiguous()
            yield from self._collectives.all_reduce(flat, reduction, root)
            _copy_back(flat, tensor)

    def _add_sparse(self, tensor: Tensor) -> Steps:
        """Replace a sparse tensor by the sum over all ranks; their indices may differ."""
        own = tensor.detach().coalesce()
        counts = torch.empty(self._size, dtype=torch.int64)
        yield from self._collectives.all_gather(torch.tensor([own._nnz()]), _parts(counts, self._size))
        shape = own.values().shape[1:]
        values = [own.values().new_empty((count, *shape)) for count in counts.tolist()]
        places = [torch.empty((own.sparse_dim(), count), dtype=torch.int64) for count in counts.tolist()]
        yield from self._collectives.all_gather(own.indices().contiguous(), places)
        yield from self._collectives.all_gather(own.values().contiguous(), values)
        total = torch.sparse_coo_tensor(places[0], values[0], own.shape)
        for place, value in zip(places[1:], values[1:], strict=True):
            total = total + torch.sparse_coo_tensor(place, value, own.shape)
        with torch.no_grad():
            tensor.copy_(total.coalesce())

    def reduce(self, tensors: Any, opts: Any = None) -> GroupWork:
        reduction = _reduction(opts, tensors)
        return self._begin("reduce", self._all_reduce(tensors, reduction, opts.rootRank), tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> GroupWork:
        steps = (
            _fill([tensor], lambda flats: self._collectives.broadcast(flats[0], opts.rootRank)) for tensor in tensors
        )
        return self._begin("broadcast", _in_turn(steps), tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        """Copy every rank's tensors; outputs[i][r] is for input i of rank r, and sizes may differ."""
        for outs in outputs:
            self._check_count("all_gather", "output tensors", len(outs))
        result = [out for outs in outputs for out in outs]
        pairs = zip(outputs, inputs, strict=True)
        steps = [_fill(outs, partial(self._all_gather, own)) for outs, own in pairs]
        return self._begin("all_gather", _in_turn(steps), result, opts)

    def _all_gather(self, own: Tensor, flats: Sequence[Tensor]) -> Steps:
        return self._collectives.all_gather(own.contiguous(), flats)  # type: ignore[no-any-return]

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        """Copy every rank's tensors; outputs[r] are for the inputs of rank r."""
        self._check_count("all_gather_coalesced", "lists of output tensors", len(outputs))
        by_input = [[outs[index] for outs in outputs] for index in range(len(inputs))]
        return self.allgather(by_input, inputs, opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:  # noqa: A002
        """Concatenate every rank's tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        """Copy every rank's tensors, concatenating those with the same index."""
        for out, own in zip(outputs, inputs, strict=True):
            if out.numel() != self._size * own.numel() or out.dtype != own.dtype:
                raise ExperimentError(
                    f"all_gather: the output has {out.numel():,} elements of {_type(out)}, but {self._size} inputs of "
                    f"{own.numel():,} {_type(own)} need {self._size * own.numel():,} of the same type"
                )
        steps = [
            _fill([out], lambda flats, own=own: self._all_gather(own, _parts(flats[0], self._size)))  # type: ignore[misc]
            for out, own in zip(outputs, inputs, strict=True)
        ]
        return self._begin("all_gather", _in_turn(steps), list(outputs), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        outs = outputs[0] if outputs else []
        if opts.rootRank == self._rank:
            self._check_count("gather", "output tensors", len(outs))
        root, [own] = opts.rootRank, inputs
        steps = _fill(outs, lambda flats: self._collectives.gather(own.contiguous(), flats, root))
        return self._begin("gather", steps, outs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        parts = inputs[0] if inputs else []
        if opts.rootRank == self._rank:
            self._check_count("scatter", "input tensors", len(parts))
        root = opts.rootRank
        steps = _fill(outputs, lambda flats: self._collectives.scatter(flats[0], _contiguous(parts), root))
        return self._begin("scatter", steps, outputs, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        """Reduce the input for each rank over all ranks, and keep this rank's result."""
        reduction = _reduction(opts, outputs)
        for parts in inputs:
            self._check_count("reduce_scatter", "input tensors", len(parts))
        pairs = list(zip(outputs, inputs, strict=True))
        for out, parts in pairs:
            own = parts[self._rank]
            if own.numel() != out.numel() or any(part.dtype != out.dtype for part in parts):
                raise ExperimentError(
                    f"reduce_scatter: the output has {out.numel():,} elements of {_type(out)}, but the input for it "
                    f"has {own.numel():,} of {_type(own)}; sizes and types should be the same"
                )
        steps = [
            _fill([out], lambda flats, parts=parts: self._reduce_scatter(parts, flats[0], reduction))  # type: ignore[misc]
            for out, parts in pairs
        ]
        return self._begin("reduce_scatter", _in_turn(steps), list(outputs), opts)

    def _reduce_scatter(self, parts: Sequence[Tensor], flat: Tensor, reduction: str) -> Steps:
        return self._collectives.reduce_scatter(_contiguous(parts), flat, reduction)  # type: ignore[no-any-return]

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:  # noqa: A002
        """Reduce a tensor over all ranks, and keep this rank's part of it."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        """Reduce tensors over all ranks, and keep this rank's part of each."""
        for out, whole in zip(outputs, inputs, strict=True):
            if whole.numel() != self._size * out.numel():
                raise ExperimentError(
                    f"reduce_scatter: the input has {whole.numel():,} elements, but {self._size} outputs of "
                    f"{out.numel():,} need {self._size * out.numel():,}"
                )
        return self.reduce_scatter(list(outputs), [_parts(whole.contiguous(), self._size) for whole in inputs], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> GroupWork:
        self._check_count("all_to_all", "input tensors", len(inputs))
        self._check_count("all_to_all", "output tensors", len(outputs))
        steps = _fill(outputs, lambda flats: self._collectives.all_to_all(flats, _contiguous(inputs)))
        return self._begin("all_to_all", steps, list(outputs), opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> GroupWork:
        """Send a part of a tensor to every rank, and receive one from each; by default the parts are equal."""
        received, sent = self._split("output", output, output_splits), self._split("input", input, input_splits)

        def exchange(flats: Sequence[Tensor]) -> Steps:
            outs, inputs = _cut(flats[0], received), _cut(input.contiguous(), sent)
            return self._collectives.all_to_all(outs, inputs)  # type: ignore[no-any-return]

        return self._begin("all_to_all", _fill([output], exchange), [output], opts)

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> GroupWork:
        return self._begin("barrier", self._collectives.barrier(), [], opts)

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks; rank 0 raises an error that names missing ranks."""
        seconds = self._timeout if timeout is None else getattr(timeout, "total_seconds", lambda: timeout)()
        if self._hosts is not None:
            self._hosts.gloo.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks)
            return
        token, number = torch.zeros(1, dtype=torch.uint8), self._members.numbers[self._rank]
        if self._rank:
            try:
                self._message("send", token, 0, BARRIER_TAG, seconds).wait()
                self._message("recv", token.clone(), 0, ANSWER_TAG, seconds).wait()
            except CollectiveError as error:
                raise CollectiveError(
                    f"Rank {number} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank {self._members.numbers[0]}: {error}"
                ) from None
            return
        if seconds <= 0:
            raise CollectiveError(f"Rank {number} timed out in monitoredBarrier after 0 ms")
        others, missing = range(1, self._size), []
        receives = [self._message("recv", token.clone(), other, BARRIER_TAG, seconds) for other in others]
        for other, receive in zip(others, receives, strict=True):
            try:
                receive.wait()
            except CollectiveError:
                missing.append(self._members.numbers[other])
                if not wait_all_ranks:
                    break
        if missing:
            which = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else f"Rank {missing[0]}"
            raise CollectiveError(
                f"[Rank {number}]: {which} failed to pass monitoredBarrier in {1000 * seconds:.0f} ms"
            )
        for other in others:
            self._message("send", token, other, ANSWER_TAG, seconds).wait()

    # Messages.

    def send(self, tensors: Any, receiver: int, tag: int = 0) -> Work:
        if self._hosts is not None:
            return GlooMessage(self._hosts.gloo.send([tensors[0].contiguous()], receiver, tag), self._watch)
        return self._message("send", tensors[0].contiguous(), receiver, tag, self._timeout)

    def recv(self, tensors: Any, sender: int, tag: int = 0) -> Work:
        if self._hosts is not None:
            return GlooMessage(self._hosts.gloo.recv(tensors, sender, tag), self._watch)
        return self._message("recv", tensors[0], sender, tag, self._timeout)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        if self._hosts is not None:
            return GlooMessage(self._hosts.gloo.recv_anysource(tensors, tag), self._watch)
        return self._message("recv", tensors[0], None, tag, self._timeout)

    def _message(self, name: str, tensor: Tensor, peer: int | None, tag: int, timeout: float) -> GroupWork:
        self._check_tensors([tensor])
        flat = tensor.contiguous()
        transfer = self._begin_transfer(name, flat, peer, tag)
        work = GroupWork(self._progress, name, self._transfer(transfer, flat, tensor), [tensor], timeout, transfer)
        return self._progress.begin(work)

    def _begin_transfer(self, name: str, flat: Tensor, peer: int | None, tag: int) -> Any:
        with self._progress.lock:
            if name == "recv":
                return self._messages.receive(span_of(flat), peer, tag)
            assert peer is not None
            return self._messages.send(span_of(flat), peer, tag)

    def _transfer(self, transfer: Any, flat: Tensor, tensor: Tensor) -> Steps:
        try:
            yield transfer
        finally:
            if not transfer():
                self._messages.cancel(transfer)
        transfer.finish()
        _copy_back(flat, tensor)

    # Shared helpers.

    def _begin(self, name: str, steps: Steps, tensors: Sequence[Tensor], opts: Any) -> GroupWork:
        self._check_tensors(tensors)
        timeout = self._timeout
        if opts is not None and opts.timeout > timedelta(0):
            timeout = opts.timeout.total_seconds()
        work = GroupWork(self._progress, name, steps, list(tensors), timeout)
        blocking = opts is not None and not opts.asyncOp
        if not _profiler_enabled():
            return self._progress.begin(work, blocking=blocking)
        with torch.profiler.record_function(f"tenfold:{name}"):
            return self._progress.begin(work, blocking=blocking)

    def _check_tensors(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.device.type != "cpu":
                self._check_device(tensor.device)
            if _is_expanded(tensor):
                raise ExperimentError(
                    f"a tensor of shape {tuple(tensor.shape)} has elements that share memory (for example from "
                    "Tensor.expand), so no result can be written to it; clone it first"
                )

    def _check_device(self, device: torch.device | str) -> None:
        kind = torch.device(device).type
        if kind != "cpu":
            raise ExperimentError(
                f'the tenfold backend is for CPU tensors, not tensors on {kind}; use init_process_group("nccl") or '
                f'init_process_group("cpu:tenfold,cuda:nccl")'
            )

    def _check_count(self, name: str, what: str, count: int) -> None:
        if count != self._size:
            raise ExperimentError(f"{name}: got {count} {what} for {self._size} ranks; it needs one per rank")

    def _split(self, which: str, whole: Tensor, splits: Sequence[int]) -> list[int]:
        """Return the number of elements of each rank's part, given the lengths along the first dimension."""
        rows = whole.shape[0] if whole.dim() else 1
        if not splits:
            if rows % self._size:
                raise ExperimentError(
                    f"all_to_all: the {rows} rows of the {which} cannot be divided equally among {self._size} ranks; "
                    f"pass {which}_split_sizes"
                )
            splits = [rows // self._size] * self._size
        self._check_count("all_to_all", f"sizes of {which} parts", len(splits))
        if sum(splits) != rows:
            raise ExperimentError(
                f"all_to_all: {which}_split_sizes add up to {sum(splits)}, but the {which} has {rows} rows"
            )
        width = whole.numel() // rows if rows else 0
        return [size * width for size in splits]


def _reduction(opts: Any, tensors: Sequence[Tensor]) -> str:
    name = "SUM" if opts is None else _name_reduction(opts.reduceOp.op)
    check_reduction(tensors[0].dtype, name)
    for tensor in tensors:
        if tensor.is_sparse and (name != "SUM" or tensor.dtype in NOT_ADDED_SPARSE):
            raise ExperimentError(
                f"sparse tensors of type {_type(tensor)} do not support the reduction {name}; use dense tensors"
            )
    return name


@functools.cache
def _name_reduction(kind: Any) -> str:
    return str(kind.name)


def _is_expanded(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not tensor.is_contiguous()
        and any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    )


def _copy_back(flat: Tensor, tensor: Tensor) -> None:
    """Copy received values from a contiguous copy of a tensor back to the tensor."""
    if flat is not tensor and flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat)


def _fill(tensors: Sequence[Tensor], operation: Callable[[list[Tensor]], Steps]) -> Steps:
    """Carry out an operation on tensors, or contiguous copies of them, and write the results to the tensors."""
    flats = _contiguous(tensors)
    yield from operation(flats)
    for flat, tensor in zip(flats, tensors, strict=True):
        _copy_back(flat, tensor)


def _in_turn(operations: Iterable[Steps]) -> Steps:
    for operation in operations:
        yield from operation


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _cut(flat: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    return list(flat.view(-1).split(sizes))  # type: ignore[no-untyped-call]


def _parts(flat: Tensor, count: int) -> list[Tensor]:
    return list(flat.view(-1).split(max(1, flat.numel() // count))) if flat.numel() else [flat] * count  # type: ignore[no-untyped-call]


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# A group for several kinds of devices: with "cpu:tenfold,cuda:nccl", NCCL handles the tensors on GPUs.
#
# In torch, a process group written in Python replaces all requested backends, for all devices. Therefore this one
# creates the others itself, and forwards the operations on their tensors.

ROUTED = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "allgather_coalesced", "gather"),
    *("all_gather_single", "_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("scatter", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "alltoall", "alltoall_base"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "all_to_all_single"),
    *("send", "recv", "recv_anysource"),
)
"""The operations on tensors."""


def make_group(options: Any, backend_options: Any = None) -> TenfoldProcessGroup:
    """Return this rank's process group; torch calls this, on all ranks of the group together."""
    keep_freed_memory()
    numbers = list(options.global_ranks_in_group) or list(range(options.group_size))
    arguments = options.store, options.group_rank, numbers, options.timeout.total_seconds()
    others = _other_backends()
    if not others:
        return TenfoldProcessGroup(*arguments)
    group = MixedDeviceGroup(*arguments)
    for device, name in others.items():
        group.others[device] = _make_other(device, name, options, backend_options)
    return group


class MixedDeviceGroup(TenfoldProcessGroup):
    """A group that forwards operations on tensors on devices other than the CPU to other backends."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.others: dict[str, Any] = {}
        """By device, torch's own process group."""

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), *map(torch.device, self.others)]

    def _get_backend(self, device: torch.device) -> Any:
        other = self.others.get(torch.device(device).type)
        return super()._get_backend(device) if other is None else other._get_backend(device)

    def shutdown(self) -> None:
        for other in self.others.values():
            other.shutdown()
        super().shutdown()

    def abort(self) -> None:
        for other in self.others.values():
            other.abort()
        super().abort()


def _route(name: str) -> Callable[..., Any]:
    """Return a method that calls the method of this name on the group for the tensors' device."""

    def call(self: MixedDeviceGroup, *arguments: Any) -> Any:
        device = next((tensor.device.type for tensor in _tensors(arguments)), "cpu")
        other = self.others.get(device)
        return getattr(super(MixedDeviceGroup, self) if other is None else other, name)(*arguments)

    return call


for _name in ROUTED:
    setattr(MixedDeviceGroup, _name, _route(_name))


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _other_backends() -> Mapping[str, str]:
    """Return the requested backends of other devices; torch does not pass them, so its variables are read."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back
    config = frame.f_locals.get("backend_config")
    backends: dict[str, str] = {} if config is None else config.get_device_backend_map()
    return {device: name for device, name in backends.items() if device != "cpu" and name != "tenfold"}


def _make_other(device: str, name: str, options: Any, backend_options: Any) -> Any:
    """Return torch's process group for the tensors of one device."""
    store = dist.PrefixStore(f"tenfold/{device}", options.store)  # type: ignore[attr-defined]
    rank, size, timeout = options.group_rank, options.group_size, options.timeout
    if name == "nccl":
        chosen = backend_options or dist.ProcessGroupNCCL.Options()
        chosen._timeout = timeout
        made: Any = dist.ProcessGroupNCCL(store, rank, size, chosen)
    elif name == "gloo":
        made = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    else:
        plugin = Backend._plugins[name.upper()]
        made = plugin.creator_fn(*((options, backend_options) if plugin.extended_api else (store, rank, size, timeout)))
    group = dist.ProcessGroup(store, rank, size)
    kind = Backend.backend_type_map[name]
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, made)
    return group
