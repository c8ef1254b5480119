"""A process group for several kinds of devices: "cpu:tenfold,cuda:nccl" leaves the tensors of GPUs to NCCL.

torch lets a process group that is written in Python take the place of all that were requested, whatever its device. So
this one makes the others itself, and hands them the operations on their tensors.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Backend

from tenfold.transport.process_group import TenfoldProcessGroup

ROUTED = (
    *("allreduce", "allreduce_coalesced", "reduce", "broadcast", "allgather", "allgather_coalesced", "gather"),
    *("all_gather_single", "_allgather_base", "all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    *("scatter", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "alltoall", "alltoall_base"),
    *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "all_to_all_single"),
    *("send", "recv", "recv_anysource"),
)
"""The operations on tensors."""


def make_group(options: Any, backend_options: Any = None) -> TenfoldProcessGroup:
    """Return this rank's process group, as torch asks for it; all ranks of the group call this together."""
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
    """A group whose tensors on other devices than the CPU are left to other backends."""

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
    """Return the method that calls the one with this name of the group for the tensors' device."""

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
    """Return which backend was requested on which other device; torch does not say, so its variables are read."""
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
