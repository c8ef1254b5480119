"""A network cut into stages, one for each worker of a pipeline.

The network is traced (`torch.fx`): its computation becomes a list of operations, which can be cut before any call of a
module. A stage holds the modules of its operations under their own names, so the states of all stages together form the
state of the undivided network. Tensors for later stages (several, with skip connections) pass through the stages in
between.

torch's own stacks of transformer layers branch on values, and are traced with a replacement `forward` (`TRACEABLE`). A
network whose `forward` cannot be traced is exported instead (`export_graph`). A submodule becomes a single operation if
it cannot be traced, or if its `forward` draws random numbers or changes attributes, because a trace would repeat the
recorded values. `forward` may read `self.training`: it is traced in both modes.
"""

import inspect
import io
import operator
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules import transformer

from tenfold.data.part import tree_leaves
from tenfold.errors import ExperimentError, ModelError
from tenfold.training.network_call import arguments_of
from tenfold.training.randomness import keep_rng_state, read_generators

SLICE = re.compile(r"(-?\d*):(-?\d*)")
REPEATS = 3
"""How often operations are timed; the shortest time counts."""
BYTES_PER_SECOND = 4e9
"""Of activations that are copied from one worker to another, for the balance of stages.

About the cost of copies into and out of shared memory. It need not be exact: `cnn` with micro-batches of 8 samples and
`lenet5` are cut at the same modules with 1 GB/s, and without any costs of copying.
"""


class Neighbors(Protocol):
    """The connection between the stages of a pipeline, such as `transport.model_group.ModelGroup`."""

    @property
    def rank(self) -> int:
        """This stage's rank in the group."""
        ...

    def send(self, values: Sequence[Any], receiver: int) -> None: ...

    def receive(self, sender: int) -> list[Any]:
        """Return the next values of another stage."""
        ...


NO_OUTPUTS = torch.empty(1, 0)
"""The result of a stage before the last in an evaluation."""


class Stage(nn.Module):
    """One stage: its modules, under their names in the whole network, and the operations between them.

    In training, the first stage is called with the inputs of the network, every other stage with its predecessor's
    result. A stage returns a tuple of values; the last stage returns the outputs of the network. In an evaluation all
    stages are called with the inputs, but only the first uses them; the others receive values from their neighbor.
    """

    is_first: bool
    is_last: bool
    takes_whole_batches = True
    """Whether batches must not be divided further, because the stages would divide them differently."""
    neighbors: Neighbors | None = None
    whole_network: nn.Module | None = None
    """The undivided network without its weights, for an optimizer that treats matrices by their place in it."""

    def __init__(self, network: nn.Module, graphs: dict[bool, fx.Graph], place: tuple[int, int]) -> None:
        """Take the modules of these graphs (for training and evaluation) from a network."""
        super().__init__()
        self.is_first, self.is_last = place[0] == 0, place[0] == place[1] - 1
        for target in dict.fromkeys(target for graph in graphs.values() for target in _targets(graph)):
            _put(self, target, network)
        # not registered, because their modules are already registered here
        modules = {mode: fx.GraphModule(self, graph) for mode, graph in graphs.items()}
        object.__setattr__(self, "_modes", modules)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the values that the next stage needs, or the outputs of the network."""
        modes: dict[bool, fx.GraphModule] = self._modes  # type: ignore[assignment]
        if self.training or self.neighbors is None:
            return modes[self.training].forward(*args, **kwargs)
        if not self.is_first:
            args, kwargs = tuple(self.neighbors.receive(self.neighbors.rank - 1)), {}
        outputs = modes[False].forward(*args, **kwargs)
        if self.is_last:
            return outputs
        self.neighbors.send(outputs, self.neighbors.rank + 1)
        return NO_OUTPUTS


@dataclass(frozen=True)
class LayerSegment:
    """Operations that stay together: a call of a module, and all operations before the next call."""

    name: str
    """The module that it begins with."""
    seconds: float = 0.0
    """Forward and backward of one micro-batch, and a share of the optimizer's step."""
    nbytes: int = 0
    """Bytes of one micro-batch that reach it from earlier segments, if there is a cut before it."""
    has_parameters: bool = True
    is_tied: bool = False
    """Whether earlier segments share parameters with it or later ones, so that no stage can begin with it."""
    is_aliased: bool = False
    """Whether it or a later segment changes in place a tensor that is a part of another one, both from earlier ones.

    No stage can begin with it, as what it receives are copies.
    """


class TracedNetwork:
    """A network as a list of operations that can be cut into stages."""

    def __init__(self, network: nn.Module, samples: Callable[[], Any] | None = None) -> None:
        """Trace a network; if that fails, export it with inputs from `samples`.

        Parameters of `forward` that are not among these inputs keep their defaults.
        """
        self.network = network
        try:
            self.graphs = self._of_both_modes(_Tracer(network, samples).trace)
        except Exception as error:  # the user's forward may raise anything when called with proxies
            self.graphs = self._exported(error, samples)
        self.names = list(dict.fromkeys(_called(self.graphs[True])))
        """The modules before whose first call a stage may begin, in the order of these calls."""
        if not self.names:
            raise ModelError(f"{type(network).__name__} cannot be cut into stages: its forward calls no submodule")

    def _of_both_modes(self, trace: Callable[[nn.Module], fx.Graph]) -> dict[bool, fx.Graph]:
        """Return the graphs of the network for training and for evaluation."""
        modes = [(module, module.training) for module in self.network.modules()]
        graphs = {}
        try:
            for mode in (True, False):
                self.network.train(mode)
                with _repeatable(self.network):
                    graphs[mode] = trace(self.network)
        finally:
            for module, mode in modes:
                module.training = mode
        return graphs

    def _exported(self, traced: Exception, samples: Callable[[], Any] | None) -> dict[bool, fx.Graph]:
        """Return the graphs of a network by exporting it; `traced` is the error of tracing it."""
        problem = traced
        if samples is not None and not isinstance(traced, ModelError):
            try:
                inputs = samples()
                with ExitStack() as stack:
                    for module in self.network.modules():
                        stack.enter_context(_repeatable(module))
                    return self._of_both_modes(lambda network: export_graph(network, inputs))
            except Exception as error:  # as above
                problem = error
        name, said = type(self.network).__name__, str(problem)
        if "specialized it to be a constant" in said:
            raise ModelError(
                f"{name} cannot be cut into stages: its forward works for one batch size only, because len(x) returns "
                "a fixed number; use x.shape[0] instead"
            ) from problem
        raise ModelError(
            f"{name} cannot be cut into stages: its forward can be neither traced nor exported "
            f"({type(problem).__name__}: {said.splitlines()[0] if said else 'no message'}); call "
            "submodules without branching on the values of tensors, or use an nn.Sequential"
        ) from problem

    def begins(self, stages: Sequence[str]) -> tuple[str, ...]:
        """Return the first module of each stage, given slices ("0:4", "4:") or names of modules."""
        if any(SLICE.fullmatch(stage) for stage in stages):
            return self._begins_of_slices(stages)
        begins = []
        for stage in stages:
            first = next((name for name in self.names if name == stage or name.startswith(f"{stage}.")), None)
            if first is None:
                raise ExperimentError(
                    f"parallel.stages: forward calls no module '{stage}'; it calls {', '.join(self.names)}"
                )
            begins.append(first)
        places = [self.names.index(name) for name in begins]
        if places[0] != 0 or places != sorted(set(places)):
            raise ExperimentError(
                f"parallel.stages = {list(stages)}: the first stage should begin with {self.names[0]}, and the others "
                "with different modules in the order in which forward calls them"
            )
        return tuple(begins)

    def _begins_of_slices(self, stages: Sequence[str]) -> tuple[str, ...]:
        children = [name for name, _ in self.network.named_children()]
        if not isinstance(self.network, nn.Sequential):
            raise ExperimentError(
                f"parallel.stages = {list(stages)}: slices are for an nn.Sequential, not for a "
                f"{type(self.network).__name__}; name the module that each stage begins with, such as {self.names[0]}"
            )
        matches = [SLICE.fullmatch(stage) for stage in stages]
        ranges = [
            range(len(children))[slice(*(int(end) if end else None for end in match.groups()))] if match else range(0)
            for match in matches
        ]
        if [place for part in ranges for place in part] != list(range(len(children))) or not all(ranges):
            raise ExperimentError(
                f"parallel.stages = {list(stages)}: the slices should cover all layers, 0 to {len(children)}, "
                "in order, each with at least one layer"
            )
        return self.begins([children[part[0]] for part in ranges])

    def cut(self, begins: Sequence[str]) -> list[Stage]:
        """Return the stages that begin with these modules; modules move from the network to the stages."""
        cuts = {
            mode: [_cut(graph, self._places(graph, begins), stage) for stage in range(len(begins))]
            for mode, graph in self.graphs.items()
        }
        stages = [
            Stage(self.network, {mode: cuts[mode][place] for mode in cuts}, (place, len(begins)))
            for place in range(len(begins))
        ]
        for graph in self.graphs.values():
            owners: dict[Tensor, str] = {}
            for begin, nodes in zip(begins, self._divided(graph, begins), strict=True):
                for tensor, name in self._state(nodes).items():
                    if owners.setdefault(tensor, begin) != begin:
                        raise ModelError(
                            f"{name} is used by the stages that begin with {owners[tensor]} and {begin}, but must "
                            "belong to one; set parallel.stages so that both uses are in the same stage"
                        )
        return stages

    def _places(self, graph: fx.Graph, begins: Sequence[str]) -> list[int]:
        """Return the position of each stage's first operation."""
        called = [node.target if node.op == "call_module" else None for node in graph.nodes]
        for begin in begins:
            if begin not in called:
                raise ModelError(f"no stage can begin with {begin}: the network calls it only in training mode")
        return [0, *(called.index(begin) for begin in begins[1:])]

    def _divided(self, graph: fx.Graph, begins: Sequence[str]) -> list[list[fx.Node]]:
        """Return the operations of each stage."""
        nodes = list(graph.nodes)
        return [nodes[first:last] for first, last in pairwise([*self._places(graph, begins), len(nodes)])]

    def _state(self, nodes: Iterable[fx.Node]) -> dict[Tensor, str]:
        """Return the parameters that operations use, and the buffers of called modules, with their names.

        Only one stage can have each of them, because stages change them.
        """
        state: dict[Tensor, str] = {}
        for node in nodes:
            if node.op == "call_module":
                module = self.network.get_submodule(str(node.target))
                named = [*module.named_parameters(str(node.target)), *module.named_buffers(str(node.target))]
                state |= {tensor: name for name, tensor in named}
            elif node.op == "get_attr":
                value = operator.attrgetter(str(node.target))(self.network)
                state |= {value: str(node.target)} if isinstance(value, nn.Parameter) else {}
        return state

    def measure(self, inputs: Any, update: Callable[[nn.Module], float] = lambda _: 0.0) -> list[LayerSegment]:
        """Time the segments with the inputs of one micro-batch.

        `update` returns the seconds of an optimizer step on some layers, per micro-batch.
        """
        graph = self.graphs[True]
        timer = _Timer(fx.GraphModule(self.network, graph))
        args, kwargs = arguments_of(self.network, inputs)
        before = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        for _ in range(REPEATS):
            timer.run(*_in_order(graph, args, kwargs))
        aliases = _Aliases(fx.GraphModule(self.network, graph), self._places(graph, self.names))
        with torch.no_grad():
            aliases.run(*_in_order(graph, args, kwargs))
        aliased = aliases.changed()
        divided = self._divided(graph, self.names)
        used = [set(self._state(nodes)) for nodes in divided]
        segments = []
        for place, (name, begin, own) in enumerate(
            zip(self.names, self._places(graph, self.names), divided, strict=True)
        ):
            seconds = sum(timer.seconds.get(node, 0.0) for node in own)
            layers = nn.ModuleList(
                self.network.get_submodule(str(node.target)) for node in own if node.op == "call_module"
            )
            has_parameters = any(parameter.requires_grad for parameter in layers.parameters())
            seconds += update(layers) if has_parameters else 0.0
            live = _live(graph, begin) if begin else []
            nbytes = sum(timer.nbytes.get(node, 0) for node in live)
            is_tied = not set().union(*used[:place]).isdisjoint(set().union(*used[place:]))
            segments.append(LayerSegment(name, seconds, nbytes, has_parameters, is_tied, begin in aliased))
        self.network.load_state_dict(before)
        self.network.zero_grad()
        return segments


def balanced(segments: Sequence[LayerSegment], stages: int) -> tuple[str, ...]:
    """Return the first modules of the stages for which the slowest stage is as fast as possible.

    Received and sent tensors count as copying, once each way. Stages begin with a module that has parameters, if there
    are enough of them.
    """
    segments = _joined(segments, lambda _, segment: not (segment.is_tied or segment.is_aliased))
    count = len(segments)
    if stages > count:
        raise ExperimentError(
            f"parallel.stages = {stages}: the network can be cut into at most {count} stages, one per module that "
            "forward calls; modules that share parameters, or change a tensor in place, count as one"
        )
    if stages <= sum(segment.has_parameters for segment in segments):
        segments = _joined(segments, lambda before, segment: before.has_parameters and segment.has_parameters)
        count = len(segments)
    costs = [0.0]
    for segment in segments:
        costs.append(costs[-1] + segment.seconds)
    copies = [2 * segment.nbytes / BYTES_PER_SECOND for segment in segments] + [0.0]
    # best[k][end]: the time of the slowest of k stages over the first `end` segments, and the start of the last stage
    best = [{0: (0.0, 0)}]
    for k in range(1, stages + 1):
        best.append({})
        for end in range(k, count - (stages - k) + 1):
            best[k][end] = min(
                (max(best[k - 1][begin][0], costs[end] - costs[begin] + copies[begin] + copies[end]), begin)
                for begin in best[k - 1]
                if begin < end
            )
    begins, end = [], count
    for k in range(stages, 0, -1):
        end = best[k][end][1]
        begins.append(segments[end].name)
    return tuple(reversed(begins))


def _joined(
    segments: Sequence[LayerSegment], apart: Callable[[LayerSegment, LayerSegment], bool]
) -> list[LayerSegment]:
    """Merge each segment with its predecessor where no cut between them is needed."""
    joined: list[LayerSegment] = []
    for segment in segments:
        if joined and not apart(joined[-1], segment):
            last = joined.pop()
            has_parameters = last.has_parameters or segment.has_parameters
            segment = replace(last, seconds=last.seconds + segment.seconds, has_parameters=has_parameters)
        joined.append(segment)
    return joined


# torch's stacks of transformer layers, without the branches that cannot be traced.


def _encode(encoder: nn.TransformerEncoder, src: Any, mask: Any, src_key_padding_mask: Any, is_causal: Any) -> Any:
    if src_key_padding_mask is not None and encoder.use_nested_tensor:
        raise ModelError("in evaluation, nn.TransformerEncoder drops masked positions in all layers at once")
    masks = _encoder_masks(src, mask, src_key_padding_mask, is_causal, encoder.layers[0].self_attn.batch_first)
    mask, src_key_padding_mask, is_causal = masks[0], masks[1], masks[2]
    for layer in encoder.layers:
        src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal)
    return src if encoder.norm is None else encoder.norm(src)


def _encoder_masks(src: Tensor, mask: Any, padding: Any, is_causal: Any, batch_first: bool) -> tuple[Any, Any, bool]:
    """Return the masks of a TransformerEncoder in the form for its layers, and whether the sequence mask is causal."""
    padding = F._canonical_mask(padding, "src_key_padding_mask", F._none_or_dtype(mask), "mask", src.dtype)
    mask = F._canonical_mask(mask, "mask", None, "", src.dtype, check_other=False)
    return mask, padding, _is_causal(src, mask, is_causal, batch_first)


def _decode(decoder: nn.TransformerDecoder, tgt: Any, memory: Any, **masks: Any) -> Any:
    batch_first = decoder.layers[0].self_attn.batch_first
    masks["tgt_is_causal"] = _is_causal(tgt, masks["tgt_mask"], masks["tgt_is_causal"], batch_first)
    for layer in decoder.layers:
        tgt = layer(tgt, memory, **masks)
    return tgt if decoder.norm is None else decoder.norm(tgt)


def _is_causal(sequence: Tensor, mask: Any, is_causal: Any, batch_first: bool) -> bool:
    return transformer._detect_is_causal_mask(mask, is_causal, transformer._get_seq_len(sequence, batch_first))


def _transform(
    both: nn.Transformer,
    src: Any,
    tgt: Any,
    src_mask: Any,
    src_key_padding_mask: Any,
    src_is_causal: Any,
    **masks: Any,
) -> Any:
    memory = both.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
    return both.decoder(tgt, memory, **masks)


fx.wrap("_encoder_masks")
fx.wrap("_is_causal")
TRACEABLE: dict[type[nn.Module], Callable[..., Any]] = {
    nn.TransformerEncoder: _encode,
    nn.TransformerDecoder: _decode,
    nn.Transformer: _transform,
}
"""What these modules compute of all arguments of their `forward`, in a form that can be traced."""


def _traceable_forward(stack: nn.Module) -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(stack.forward).bind(*args, **kwargs)
        given.apply_defaults()
        return TRACEABLE[type(stack)](stack, **given.arguments)

    return forward


class _Tracer(fx.Tracer):
    """Traces into the user's own modules; modules that cannot be traced become one operation."""

    def __init__(self, network: nn.Module, samples: Callable[[], Any] | None) -> None:
        super().__init__()
        self.inputs = None if samples is None else arguments_of(network, samples())

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return a call of `forward` with the inputs' arguments; without inputs, with all of its parameters."""
        if self.inputs is None:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        args, kwargs = self.inputs
        names = list(inspect.signature(self.root.forward).parameters)
        names = names[: len(args)] if len(args) <= len(names) else [f"input_{place}" for place in range(len(args))]
        positional = [self.create_proxy("placeholder", name, (), {}) for name in names]
        keywords = {name: self.create_proxy("placeholder", name, (), {}) for name in kwargs}
        return (lambda network: root_fn(network, *positional, **keywords)), [self.root]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_stack = type(m) in TRACEABLE and not (m._forward_hooks or m._forward_pre_hooks)
        return not is_stack and super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before = set(self.graph.nodes)
        if type(m) in TRACEABLE:
            forward = _traceable_forward(m)
        try:
            with _repeatable(m):
                return super().call_module(m, forward, args, kwargs)
        except Exception:  # a forward may raise anything when called with proxies
            for node in reversed([node for node in self.graph.nodes if node not in before]):
                self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


@contextmanager
def _repeatable(module: nn.Module) -> Iterator[None]:
    """Raise ModelError if a second call of the module's `forward` would differ from the one in this block.

    Its changes to random generators, attributes and buffers are undone.
    """
    before, buffers = dict(vars(module)), [buffer for buffer in module._buffers.values() if buffer is not None]
    copies = [(buffer, buffer._version, buffer.detach().clone()) for buffer in buffers]
    changed: set[str] = set()
    with keep_rng_state():
        random_before = read_generators()
        try:
            yield
        finally:
            now = vars(module)
            names = {name for name in {*before, *now} if not name.startswith("_tensor_constant")}
            changed |= {name for name in names if not _is_same(now.get(name, names), before.get(name, names))}
            now.update({name: before[name] for name in changed & before.keys()})
            for name in changed - before.keys():
                del now[name]
            with torch.no_grad():
                written = [buffer.copy_(copy) for buffer, version, copy in copies if buffer._version != version]
        draws = read_generators() != random_before
    if draws or changed or written:
        what = "draws random numbers" if draws else f"changes {', '.join(sorted(changed)) or 'a buffer'}"
        raise ModelError(f"it {what}, and a trace would not repeat that; do it in a submodule")


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are the same object, or equal containers of the same objects, as after an export."""
    if value is other:
        return True
    if type(value) is not type(other) or not isinstance(value, (tuple, list, dict)):
        return False
    leaves, others = tree_leaves(value), tree_leaves(other)
    return len(leaves) == len(others) and all(map(operator.is_, leaves, others))


class _Timer(fx.Interpreter):
    """Runs the forward and backward pass of each operation separately, and records their seconds and bytes."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[fx.Node, float] = {}
        self.nbytes: dict[fx.Node, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = fx.node.map_aggregate(self.fetch_args_kwargs_from_env(n), _as_leaf)
        started = perf_counter()
        result = getattr(self, n.op)(n.target, args, kwargs)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if outputs and n.op in ("call_module", "call_function", "call_method"):
            torch.autograd.backward([output.sum() for output in outputs])
        seconds = perf_counter() - started
        self.seconds[n] = min(seconds, self.seconds.get(n, seconds))
        self.nbytes[n] = sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return fx.node.map_aggregate(result, lambda value: value.detach() if isinstance(value, Tensor) else value)


class _Aliases(fx.Interpreter):
    """Runs operations, and records which of their results share memory at given places."""

    def __init__(self, module: fx.GraphModule, places: Iterable[int]) -> None:
        super().__init__(module)
        nodes = list(module.graph.nodes)
        self._live = {nodes[place]: (place, _live(module.graph, place)) for place in places if place}
        self._shared: list[tuple[int, Tensor, int]] = []

    def run_node(self, n: fx.Node) -> Any:
        place, live = self._live.get(n, (0, []))
        leaves = [leaf for node in live for leaf in tree_leaves(self.env[node]) if isinstance(leaf, Tensor)]
        uses = Counter(leaf.untyped_storage().data_ptr() for leaf in leaves)
        for leaf in leaves:
            if uses[leaf.untyped_storage().data_ptr()] > 1:
                self._shared.append((place, leaf, leaf._version))
        return super().run_node(n)

    def changed(self) -> set[int]:
        """Return the places after which shared memory was modified."""
        return {place for place, leaf, version in self._shared if leaf._version != version}


def _in_order(graph: fx.Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the inputs in the order of the graph's placeholders."""
    named = [node.target for node in graph.nodes if node.op == "placeholder"][len(args) :]
    return [*args, *(kwargs[name] for name in named)]


def _as_leaf(value: Any) -> Any:
    """Return a tensor that receives gradients, detached from the operation that created it."""
    if not isinstance(value, Tensor):
        return value
    leaf = value.detach()
    return leaf.requires_grad_().clone() if leaf.is_floating_point() else leaf  # operations may work in place


def _called(graph: fx.Graph) -> Iterator[str]:
    return (str(node.target) for node in graph.nodes if node.op == "call_module")


def _targets(graph: fx.Graph) -> Iterator[str]:
    return (str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr"))


def _put(stage: nn.Module, target: str, network: nn.Module) -> None:
    """Copy a reference to a module, parameter or buffer of the network to a stage, under the same name."""
    *path, last = target.split(".")
    owner, source = stage, network
    for part in path:
        if part not in owner._modules:
            owner.add_module(part, nn.Module())
        owner, source = owner.get_submodule(part), source.get_submodule(part)
    if last in source._buffers:
        owner.register_buffer(last, source._buffers[last], persistent=last not in source._non_persistent_buffers_set)
    else:
        setattr(owner, last, getattr(source, last))


def _live(graph: fx.Graph, place: int) -> list[fx.Node]:
    """Return the operations before a place whose results are used at or after it."""
    nodes = list(graph.nodes)
    later = set(nodes[place:])
    return [node for node in nodes[:place] if any(user in later for user in node.users)]


def _cut(graph: fx.Graph, places: Sequence[int], stage: int) -> fx.Graph:
    """Return the graph of one stage: placeholders for received tensors, its operations, and an output to send."""
    nodes = list(graph.nodes)
    first, last = places[stage], places[stage + 1] if stage + 1 < len(places) else len(nodes)
    part, copies = fx.Graph(), {}
    for node in _live(graph, first) if stage else ():
        copies[node] = part.placeholder(node.name)
    for node in nodes[first:last]:
        if node.op != "output":
            copies[node] = part.node_copy(node, lambda other: copies[other])
    if last < len(nodes):
        part.output(tuple(copies[node] for node in _live(graph, last)))
    else:
        part.node_copy(nodes[-1], lambda other: copies[other])
    return part


# The operations of a network that `torch.fx` cannot trace, by `torch.export`.
#
# An export runs `forward` with tensors that have shapes but no values, so `forward` may branch on shapes, loop over
# them and call any Python function, but must not branch on values of tensors. It records ATen operations. Those of a
# torch.nn layer are converted back to a call of the layer, so that the network can be cut before it. The first
# dimension of all inputs, the batch, is dynamic.


def export_graph(network: nn.Module, inputs: Any) -> fx.Graph:
    """Return the graph of a network in its current mode, given the inputs of a few samples.

    May raise anything if it cannot be exported.
    """
    args, kwargs = arguments_of(network, inputs)
    leaves = [*args, *kwargs.values()]
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise ModelError("its inputs are nested")
    batch = {0: torch.export.Dim.DYNAMIC}
    names = [*list(inspect.signature(network.forward).parameters)[: len(args)], *kwargs]
    with _without_hooks(network), redirect_stderr(io.StringIO()):  # torch prints the graph if the export fails
        program = torch.export.export(network, args, kwargs, dynamic_shapes=dict.fromkeys(names, batch), strict=False)
    new_names = {}
    for name, constant in program.constants.items():
        if isinstance(constant, Tensor) and name.startswith("lifted_tensor"):  # created in `forward`
            new_names[name] = f"_tensor_constant_{network.training}_{name}"  # distinct from the names of torch.fx
            setattr(network, new_names[name], constant)
    return _Rebuilt(network, program.module(check_guards=False), names, new_names, program.call_spec.out_spec).graph


@contextmanager
def _without_hooks(network: nn.Module) -> Iterator[None]:
    """In this block, calling the network runs only its `forward`, as in a trace."""
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
    """An exported graph, rewritten with calls of layers."""

    def __init__(
        self,
        network: nn.Module,
        exported: fx.GraphModule,
        inputs: Sequence[str],
        new_names: Mapping[str, str],
        out_spec: Any,
    ) -> None:
        """Rewrite the graph; `inputs` are the names of its inputs, `new_names` new names of constants."""
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
        """If these are the operations of a torch.nn layer with one input, write a call of it; return whether so."""
        if path not in self.names:  # torch assigns operations outside modules, such as the batch size, to a made-up one
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
        """Return the copy of an operation; parameters are fetched at their use, not passed between stages."""
        if not isinstance(value, fx.Node):
            return value
        if value.op != "get_attr":
            return self.copies[value]
        return self.graph.get_attr(self.new_names.get(str(value.target), str(value.target)))


def _innermost_call(node: fx.Node) -> tuple[str, str]:
    """Return the innermost module call of an operation: a key of the call, and the path of the module."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return "", ""
    key, (path, _) = list(stack.items())[-1]
    return key, path
