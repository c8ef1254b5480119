"""Replicas as rows of one matrix on a device: how many it can hold, their tensors, and captured steps."""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.errors import ExperimentError
from tenfold.training.flat import (
    BATCH_NORMS,
    FlatState,
    frozen,
    padded_size,
    view_like,
)


def peak_memory(work: Callable[[], object], device: torch.device) -> float:
    """Return the most bytes of device memory that the work allocates; 0 for a CPU, where they are not counted."""
    if device.type != "cuda":
        work()
        return 0.0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return float(torch.cuda.max_memory_allocated(device) - before)


def free_memory(device: torch.device) -> float:
    """Return how many bytes of a GPU can still be used, less a fifth as a reserve."""
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return 0.8 * (free + unused)


def groups_for_memory(count: int, each: float, available: float) -> list[range]:
    """Divide `count` replicas of `each` bytes into as few groups of nearly equal size as fit into memory."""
    most = int(available // each) if each > 0 else count
    if most < 1:
        raise ExperimentError(
            f"one replica needs {each / 1e9:.1f} GB, but the device has {available / 1e9:.1f} GB left; "
            "use a smaller batch_size or model"
        )
    groups = -(-count // min(most, count))
    edges = [round(number * count / groups) for number in range(groups + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]


WARM_UPS = 3
"""Steps before the recording, in which libraries choose their kernels and take their memory."""


def capture(step: Callable[[Tensor], Tensor], example: Tensor) -> Callable[[Tensor], Tensor]:
    """Record what `step` does to an input like the example, and return a function that replays it for other inputs.

    The step is executed a few times first. Whatever it reads and writes, except for its input, must keep its address.
    """
    given = example.clone()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            step(given)
        with _never_waiting():
            step(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(given)

    def replay(values: Tensor) -> Tensor:
        given.copy_(values)
        graph.replay()
        return result.clone()

    return replay


@contextmanager
def _never_waiting() -> Iterator[None]:
    """Make operations fail that wait for the device: failing later, while recording, would corrupt the generators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls it a prototype, once
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Stack:
    """k replicas, one per row; a row has the layout of `FlatState.vector`, and all start equal.

    Integer buffers, such as the counters of batch normalization, are stacked separately and never mixed.
    """

    def __init__(self, network: nn.Module, k: int, matrix: Tensor | None = None) -> None:
        flat = FlatState(network, None if matrix is None else matrix[0])
        self.network = network
        """The network that all rows start as copies of; it is row 0."""
        self.k = k
        self.parameters = flat.parameters
        self.matrix = flat.vector.expand(k, -1).clone() if matrix is None else matrix
        self.views: dict[str, Tensor] = {}
        """Each floating-point tensor of all replicas, (k, *shape), as a view into the matrix."""
        self.trainable_parameters: list[slice] = []
        """The columns of trained parameters."""
        named = dict(network.named_parameters())
        floats = {name: buffer for name, buffer in network.named_buffers() if buffer.is_floating_point()}
        start = 0
        for name, tensor in chain(named.items(), floats.items()):
            self.views[name] = self._stacked(tensor, start)
            if name in named and tensor.requires_grad:
                self._learn(start, start + padded_size(tensor.numel()))
            start += padded_size(tensor.numel())
        self.names = [name for name, parameter in named.items() if parameter.requires_grad]
        """The names of the trained parameters."""
        self.counters = {
            name: buffer.expand(k, *buffer.shape).clone()
            for name, buffer in network.named_buffers()
            if not buffer.is_floating_point()
        }
        self.statistics = [
            (self.views[f"{name}.running_mean".lstrip(".")], self.views[f"{name}.running_var".lstrip(".")])
            for name, layer in network.named_modules()
            if isinstance(layer, BATCH_NORMS) and layer.running_mean is not None
        ]
        self.reference_means = [mean[0].clone() for mean, _ in self.statistics]
        self._show(network, 0)
        self._spare: nn.Module | None = None
        self._networks: list[nn.Module] = []

    def _stacked(self, tensor: Tensor, start: int, matrix: Tensor | None = None) -> Tensor:
        whole = self.matrix if matrix is None else matrix
        row = view_like(tensor, whole[0], start)
        return whole.as_strided((len(whole), *row.shape), (whole.stride(0), *row.stride()), row.storage_offset())

    def _learn(self, start: int, stop: int) -> None:
        if self.trainable_parameters and self.trainable_parameters[-1].stop == start:
            start = self.trainable_parameters.pop().start
        self.trainable_parameters.append(slice(start, stop))

    def gradient_views(self, gradient: Tensor) -> list[Tensor]:
        """Return the views of a gradient matrix for the parameters in `names`."""
        views, start = [], 0
        for _, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                views.append(self._stacked(parameter, start, gradient))
            start += padded_size(parameter.numel())
        return views

    @property
    def frozen(self) -> list[slice]:
        """The columns of parameters that are not trained."""
        return frozen(self.network.parameters())

    def learnt_columns(self) -> Tensor:
        """Return the columns of all trained numbers, in the order in which `reshape(-1)` reads them."""
        places = torch.arange(self.parameters, device=self.matrix.device).unsqueeze(0)
        views = [view.reshape(-1) for view in self.gradient_views(places)]
        return torch.cat(views) if views else places[0, :0]

    @property
    def networks(self) -> list[nn.Module]:
        """One network for each row, whose parameters are views into the matrix."""
        if not self._networks:
            self._networks = [self.network, *(copy.deepcopy(self.network) for _ in range(1, self.k))]
            for row, network in enumerate(self._networks):
                self._show(network, row)
        return self._networks

    def network_at(self, row: int) -> nn.Module:
        """Return a network with the tensors of this row; it may be reused by the next call."""
        if self._networks:
            return self._networks[row]
        if self._spare is None:
            self._spare = copy.deepcopy(self.network)
        self._show(self._spare, row)
        return self._spare

    def _show(self, network: nn.Module, row: int) -> None:
        for name, tensor in _tensors(network):
            tensor.data = (self.views if name in self.views else self.counters)[name][row]

    def state(self, row: int) -> dict[str, Any]:
        """Return a replica's state_dict, as copies."""
        return {name: tensor.detach().clone() for name, tensor in self.network_at(row).state_dict().items()}

    def write(self, row: int, tensors: dict[str, Tensor]) -> None:
        """Give a replica other values of some of its tensors, by name."""
        for name, tensor in tensors.items():
            self.views[name][row].copy_(tensor)

    def load(self, row: int, state: dict[str, Any]) -> None:
        """Load a replica's state_dict."""
        self.network_at(row).load_state_dict(state)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that a step changes, by name."""
        references = {f"center {number}": reference for number, reference in enumerate(self.reference_means)}
        return {"weights": self.matrix, **self.counters, **references}


def _tensors(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from network.named_parameters()
    yield from network.named_buffers()
