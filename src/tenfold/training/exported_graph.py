"""The operations of a network that `torch.fx` cannot trace, by `torch.export`.

An export runs `forward` with tensors that have shapes but no values, so `forward` may branch on shapes, loop over them
and call any Python function; only values of tensors may not decide anything. What it records are operations of ATen.
Those of a layer of torch.nn become a call of that layer again, before which a network can be cut. The first dimension
of all inputs, the batch, stays open.
"""

import inspect
import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, fx, nn

from tenfold.errors import ModelError
from tenfold.training.network_call import arguments_of


def export_graph(network: nn.Module, inputs: Any) -> fx.Graph:
    """Return what a network computes in its current mode, given the inputs of a few samples.

    May raise anything if it cannot be exported.
    """
    args, kwargs = arguments_of(network, inputs)
    leaves = [*args, *kwargs.values()]
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise ModelError("its inputs are nested")
    batch = {0: torch.export.Dim.DYNAMIC}
    names = [*list(inspect.signature(network.forward).parameters)[: len(args)], *kwargs]
    with _without_hooks(network), redirect_stderr(io.StringIO()):  # torch prints the graph of one that it cannot export
        program = torch.export.export(network, args, kwargs, dynamic_shapes=dict.fromkeys(names, batch), strict=False)
    new_names = {}
    for name, constant in program.constants.items():
        if isinstance(constant, Tensor) and name.startswith("lifted_tensor"):  # made in `forward`
            new_names[name] = f"_tensor_constant_{network.training}_{name}"  # beside those of torch.fx
            setattr(network, new_names[name], constant)
    return _Rebuilt(network, program.module(check_guards=False), names, new_names, program.call_spec.out_spec).graph


@contextmanager
def _without_hooks(network: nn.Module) -> Iterator[None]:
    """Let a call of the network be one of its `forward`, as in a trace."""
    kinds = ("_forward_pre_hooks", "_forward_hooks")
    before = {kind: getattr(network, kind) for kind in kinds}
    for kind in kinds:
        setattr(network, kind, OrderedDict())
    try:
        yield
    finally:
        for kind, hooks in before.items():
            setattr(network, kind, hooks)


class _Rebuilt:
    """An exported graph, written once more with calls of layers."""

    def __init__(
        self,
        network: nn.Module,
        exported: fx.GraphModule,
        inputs: Sequence[str],
        new_names: Mapping[str, str],
        out_spec: Any,
    ) -> None:
        """Write the graph: `inputs` are the names of its inputs, `new_names` those of some constants."""
        self.network, self.graph, self.new_names = network, fx.Graph(), new_names
        self.names = {name for name, _ in network.named_modules(remove_duplicate=False)}
        self.copies: dict[fx.Node, fx.Node] = {}
        placeholders = (node for node in exported.graph.nodes if node.op == "placeholder")
        for name, node in zip(inputs, placeholders, strict=True):
            self.copies[node] = self.graph.placeholder(name)
        for (_, path), run in groupby(list(exported.graph.nodes), _innermost_call):
            nodes = [node for node in run if node.op not in ("placeholder", "get_attr")]
            if not nodes:
                continue
            if nodes[-1].op == "output":
                self._copy(nodes[:-1])
                outputs = [self._use(value) for value in nodes[-1].args[0]]
                self.graph.output(torch.utils._pytree.tree_unflatten(outputs, out_spec))
            elif not self._call_layer(path, nodes):
                self._copy(nodes)

    def _call_layer(self, path: str, nodes: Sequence[fx.Node]) -> bool:
        """Write the call of a layer of torch.nn with one input, whose operations these are; return whether it is so."""
        if path not in self.names:  # torch gives what belongs to no module, such as the size of a batch, a made-up one
            return False
        layer = self.network.get_submodule(path)
        if not type(layer).__module__.startswith("torch.nn.") or next(layer.children(), None) is not None:
            return False
        inside = set(nodes)
        given = {
            value for node in nodes for value in node.all_input_nodes if value not in inside and value.op != "get_attr"
        }
        results = [node for node in nodes if any(user not in inside for user in node.users)]
        required = [
            parameter
            for parameter in inspect.signature(layer.forward).parameters.values()
            if parameter.default is parameter.empty
        ]
        if len(given) != 1 or len(results) != 1 or len(required) != 1:
            return False
        self.copies[results[0]] = self.graph.call_module(path, (self.copies[given.pop()],))
        return True

    def _copy(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            inputs = {value: self._use(value) for value in node.all_input_nodes}
            self.copies[node] = self.graph.node_copy(node, inputs.__getitem__)

    def _use(self, value: Any) -> Any:
        """Return the copy of an operation; a parameter is fetched where it is used, so that a cut does not pass it."""
        if not isinstance(value, fx.Node):
            return value
        if value.op != "get_attr":
            return self.copies[value]
        return self.graph.get_attr(self.new_names.get(str(value.target), str(value.target)))


def _innermost_call(node: fx.Node) -> tuple[str, str]:
    """Return which call of a module an operation belongs to: a key of the call, and the path of the module."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return "", ""
    key, (path, _) = list(stack.items())[-1]
    return key, path
