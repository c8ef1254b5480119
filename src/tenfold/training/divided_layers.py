"""Tensor parallelism: each worker holds some neurons of a linear layer, or some output channels of a Conv2d.

In the forward pass, every worker computes its share of the outputs from the same inputs, and the shares are gathered.
In the backward pass, it uses its share of the output's gradient to compute the gradient of its own weights, and the
gradients with respect to the inputs are summed over the workers (Singh, 2018; Shazeer et al., 2018, arXiv 1811.02084).
All other layers, the loss and their gradients are the same on every worker.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tenfold.data.part import tree_leaves
from tenfold.errors import ModelError


class NeuronGroup(Protocol):
    """The connection between the workers that divide a network, such as `transport.model_group.ModelGroup`."""

    @property
    def rank(self) -> int:
        """This worker's rank in the group."""
        ...

    @property
    def size(self) -> int: ...

    def all_gather(self, tensor: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the tensors of all workers, given their shapes."""
        ...

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of all workers' tensors."""
        ...


class _SummedGradient(torch.autograd.Function):
    """The identity; in the backward pass, gradients are summed over the workers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: NeuronGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.group.all_reduce(gradients[0].contiguous().clone()), None


class _Gathered(torch.autograd.Function):
    """Concatenates the workers' shares of an output along the last dimension."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, group: NeuronGroup, sizes: tuple[int, ...]) -> Tensor:
        ctx.rank, ctx.sizes = group.rank, sizes
        shapes = [(*share.shape[:-1], size) for size in sizes]
        return torch.cat(group.all_gather(share, shapes), dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        start = sum(ctx.sizes[: ctx.rank])
        return gradients[0].narrow(-1, start, ctx.sizes[ctx.rank]), None, None


class DividedLayer(nn.Module):
    """A worker's share of a layer: some rows of its weight and of its bias."""

    group: NeuronGroup
    sizes: tuple[int, ...]
    """How many outputs each worker computes."""
    weight: Any
    bias: Any

    @classmethod
    def of(cls, layer: nn.Module, group: NeuronGroup) -> Self:
        """Return this worker's share of a layer, with the layer's other settings."""
        divided = cls.__new__(cls)
        divided.__dict__.update(layer.__dict__)
        divided._parameters = dict(layer._parameters)
        count = len(divided.weight)
        divided.sizes = tuple(len(rows) for rows in torch.arange(count).tensor_split(group.size))
        divided.__dict__["group"] = group
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                share = divided.own_rows(parameter.detach()).clone()
                divided._parameters[name] = nn.Parameter(share, requires_grad=parameter.requires_grad)
        return divided

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """The shape of the undivided weight; Muon uses it to distinguish matrices from vectors."""
        return (sum(self.sizes), *self.weight.shape[1:])

    def own_rows(self, whole: Tensor) -> Tensor:
        """Return this worker's rows of a tensor with the shape of the whole weight."""
        return whole.narrow(0, sum(self.sizes[: self.group.rank]), self.sizes[self.group.rank])

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Gather the rows of all workers into the whole tensor, in the same memory format."""
        if rows.ndim == 4:
            rows = rows.permute(0, 2, 3, 1)
        whole = torch.cat(self.group.all_gather(rows, [(size, *rows.shape[1:]) for size in self.sizes]))
        return whole.permute(0, 3, 1, 2) if rows.ndim == 4 else whole


class DividedLinear(DividedLayer, nn.Linear):
    """Some neurons of a linear layer."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        share = super().forward(_SummedGradient.apply(input, self.group))  # type: ignore[no-untyped-call]
        return _Gathered.apply(share, self.group, self.sizes)  # type: ignore[no-any-return, no-untyped-call]


class DividedConv2d(DividedLayer, nn.Conv2d):
    """Some output channels of a convolution."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Return all output channels, in channels-last layout."""
        share = super().forward(_SummedGradient.apply(input, self.group))  # type: ignore[no-untyped-call]
        whole: Tensor = _Gathered.apply(share.movedim(-3, -1), self.group, self.sizes)  # type: ignore[no-untyped-call]
        return whole.movedim(-1, -3)


DIVIDED: dict[type[nn.Module], type[DividedLayer]] = {nn.Linear: DividedLinear, nn.Conv2d: DividedConv2d}


def divide_neurons(network: nn.Module, group: NeuronGroup) -> nn.Module:
    """Replace the linear layers and convolutions of a network by this worker's shares, and return the network.

    A layer is not divided if it has fewer outputs than workers, shares its weights with another layer, computes its
    weights from others (`torch.nn.utils.spectral_norm`), or is a grouped convolution.
    """
    uses = Counter(
        id(parameter)
        for module in network.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    num_divided = 0
    for parent in list(network.modules()):
        for name, layer in list(parent.named_children()):
            kind = DIVIDED.get(type(layer))
            if kind is None or getattr(layer, "groups", 1) > 1 or len(layer.weight) < group.size:  # type: ignore[arg-type]
                continue
            if layer._parameters.keys() != {"weight", "bias"} or any(uses[id(p)] > 1 for p in layer.parameters()):
                continue
            parent._modules[name] = kind.of(layer, group)
            num_divided += 1
    if not num_divided:
        raise ModelError(
            f"the neurons cannot be divided: the network has no nn.Linear or nn.Conv2d with at least {group.size} "
            "outputs; "
            'set parallel.divide = "layers" or "data"'
        )
    return network


class OutsideUses(TorchFunctionMode):
    """Records the parameters of layers that are used outside a call of their layer.

    After the division, a worker has only a share of them.
    """

    HARMLESS = re.compile(r"to|type_as|new_\w+|\w+_like")
    """Functions that ask a tensor for its type and shape only."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names: list[str] = []
        self._called: set[str] = set()
        self._owners = {
            id(parameter): (name, f"{name}.{own}")
            for name, layer in layers.items()
            for own, parameter in layer.named_parameters()
        }
        self._hooks = [
            handle
            for name, layer in layers.items()
            for handle in (
                layer.register_forward_pre_hook(lambda *_, name=name: self._called.add(name)),
                layer.register_forward_hook(lambda *_, name=name: self._called.discard(name), prepend=True),
            )
        ]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not self.HARMLESS.fullmatch(func.__name__):
            for value in tree_leaves([args, kwargs]):
                layer, name = self._owners.get(id(value), ("", ""))
                if layer and layer not in self._called:
                    self.names.append(name)
        return result

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for handle in self._hooks:
            handle.remove()


def divided_names(network: nn.Module) -> frozenset[str]:
    """Return the names of the divided parameters."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, layer in network.named_modules()
        if isinstance(layer, DividedLayer)
        for name, parameter in layer._parameters.items()
        if parameter is not None
    )
