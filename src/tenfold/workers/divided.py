"""Model parallelism: each worker of a group holds some layers (a pipeline stage) or a share of the neurons.

`divide_model` assigns the parts once, before workers start. In a worker, `take_part` reduces the network to its
part, and `PipelineReplica` or `NeuronReplica` trains that part together with the other workers of its group. The
training loop, rounds, evaluation and checkpoints are the same as for any worker: the same parts of all replicas are
averaged by the experiment's strategy.
"""

import copy
import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from tenfold.data import Splits
from tenfold.data.part import change_main_output, select_rows
from tenfold.errors import ModelError
from tenfold.experiment import Experiment, Parallel
from tenfold.machine.cores import using_threads
from tenfold.mixing import Strategy
from tenfold.mixing.round import operations
from tenfold.models.networks import add_scaling
from tenfold.training import Replica, flat_size
from tenfold.training.divided_layers import DividedLayer, NeuronGroup, OutsideUses, divide_neurons, divided_names
from tenfold.training.flat_weights import exchange_size, flat_dtype
from tenfold.training.network_call import arguments_of, autocast, call_network
from tenfold.training.optimizers import make_optimizer
from tenfold.training.randomness import keep_rng_state, seed_everything
from tenfold.training.replica import Seed
from tenfold.training.stages import Neighbors, Stage, TracedNetwork, balanced
from tenfold.transport import Segment
from tenfold.transport.model_group import ModelGroup, create_group
from tenfold.transport.segment import StopReason
from tenfold.transport.shared_memory import Until
from tenfold.workers.channels import Channels, SharedChannels


class GroupConnection(NeuronGroup, Neighbors, Protocol):
    """A worker's connection to the others of its group."""

    def flush(self) -> None:
        """Wait until all messages have been sent."""
        ...


@dataclass(frozen=True)
class ModelDivision:
    """The assignment of a replica's parts to workers; the same value on every worker."""

    kind: Literal["layers", "neurons"]
    numels: tuple[int, ...]
    """The numbers of each part's state, in the buffer of a transport."""
    exchange_numels: tuple[int, ...]
    """The numbers that a round of gradients exchanges, for each part."""
    begins: tuple[str, ...] = ()
    """The module that each stage begins with."""
    ring_bytes: int = 0
    """Bytes of activations that are on their way from one stage to the next at most."""

    @property
    def size(self) -> int:
        """The number of workers that share a replica."""
        return len(self.numels)


def divide_model(experiment: Experiment, splits: Splits, network: nn.Module, threads: int) -> ModelDivision:
    """Return how each replica of a network is divided among workers.

    Raises ExperimentError or ModelError for a network that cannot be divided in this way.
    """
    parallel = experiment.parallel
    if parallel.divide == "neurons":
        parts = [
            divide_neurons(_copy_on_meta(network), _Place(rank, parallel.workers)) for rank in range(parallel.workers)
        ]
        _require_whole_calls(network, parts[0], splits)
        return ModelDivision("neurons", tuple(map(flat_size, parts)), tuple(map(exchange_size, parts)))
    _require_no_hooks(network, splits)
    traced = TracedNetwork(network, partial(_two_samples, splits))
    micro_batches = parallel.count_micro_batches(experiment.training.samples_per_step)
    size = -(-experiment.training.samples_per_step // micro_batches)
    rows = torch.arange(size) % len(splits.train)
    [(x, _)] = splits.train.batches([rows])
    with using_threads(threads), keep_rng_state():
        segments = traced.measure(x, lambda layers: _update_seconds(experiment, layers) / micro_batches)
    stages = parallel.stages
    begins = traced.begins(stages) if isinstance(stages, tuple) else balanced(segments, parallel.group_size)
    for segment in segments:
        if segment.is_aliased and segment.name in begins:
            raise ModelError(
                f"parallel.stages: no stage can begin with {segment.name}, because it or a later module changes in "
                "place a tensor that shares memory with another one; avoid the in-place operation, or begin the stage "
                "elsewhere"
            )
    parts = [_completed(stage, splits, flat_dtype(network)) for stage in traced.cut(begins)]
    largest = max((segment.nbytes for segment in segments if segment.name in begins), default=0)
    return ModelDivision(
        "layers",
        tuple(map(flat_size, parts)),
        tuple(map(exchange_size, parts)),
        begins,
        micro_batches * largest,
    )


def _require_whole_calls(network: nn.Module, part: nn.Module, splits: Splits) -> None:
    """Raise ModelError if the network uses parameters of divided layers without calling the layer.

    The network is called with two samples; if that fails, the error is left to training.
    """
    layers = {
        name: network.get_submodule(name) for name, kind in part.named_modules() if isinstance(kind, DividedLayer)
    }
    buffers = [(buffer, buffer.clone()) for buffer in network.buffers()]
    mode, uses = network.training, OutsideUses(layers)
    try:
        with suppress(Exception), torch.no_grad(), keep_rng_state(), redirect_stdout(None), uses:
            call_network(network.train(), _two_samples(splits))
    finally:
        network.train(mode)
        for buffer, before in buffers:
            buffer.copy_(before)
    if uses.names:
        raise ModelError(
            f'parallel.divide = "neurons": {type(network).__name__} uses {uses.names[0]} without calling its layer, '
            "but each worker has only a share of it; make it a parameter of the network, or set parallel.divide = "
            '"layers"'
        )


def _require_no_hooks(network: nn.Module, splits: Splits) -> None:
    """Raise ModelError if a network has hooks, other than Tenfold's for scaling inputs and outputs."""
    scaling = splits.scaling or {}
    hooks = [network._forward_pre_hooks, network._forward_hooks, network._backward_hooks]
    if sum(map(len, hooks)) > ("mean" in scaling) + ("target_mean" in scaling):
        raise ModelError(
            f"the network {type(network).__name__} has hooks, but its stages would not call them; register them on "
            "its submodules"
        )


def _two_samples(splits: Splits) -> Any:
    """Return the inputs of two samples of the training part."""
    with keep_rng_state():
        [(x, _)] = splits.train.batches([torch.arange(2) % len(splits.train)])
    return x


def _update_seconds(experiment: Experiment, layers: nn.Module) -> float:
    """Measure the seconds of an optimizer step for some layers; their parameters have gradients."""
    optimizer = make_optimizer(experiment.training, layers)
    optimizer.step()  # the first step creates its state
    started = perf_counter()
    optimizer.step()
    return perf_counter() - started


@dataclass(frozen=True)
class _Place:
    """A worker's place in a group without a connection."""

    rank: int
    size: int

    def all_gather(self, tensor: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        raise NotImplementedError

    def all_reduce(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError


def _copy_on_meta(network: nn.Module) -> nn.Module:
    """Copy a network to the meta device, where it takes no memory."""
    memo: dict[int, Any] = {}
    for tensor in (*network.parameters(), *network.buffers()):
        meta = tensor.detach().to("meta")
        memo[id(tensor)] = nn.Parameter(meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else meta
    return copy.deepcopy(network, memo)


def take_part(network: nn.Module, division: ModelDivision, group: GroupConnection, splits: Splits) -> nn.Module:
    """Return this worker's part of a network, and free the rest."""
    if division.kind == "neurons":
        # The fast path of transformer layers multiplies with the weights of linear layers without calling them.
        torch.backends.mha.set_fastpath_enabled(False)
        return divide_neurons(network, group)
    whole = _copy_on_meta(network)
    stage = TracedNetwork(network, partial(_two_samples, splits)).cut(division.begins)[group.rank]
    del network
    gc.collect()  # a trace refers to itself, and with it to the layers of other stages
    object.__setattr__(stage, "whole_network", whole)  # not registered: it has no weights
    return _completed(stage, splits, flat_dtype(whole))


def _completed(stage: Stage, splits: Splits, dtype: torch.dtype) -> Stage:
    """Complete a stage: the first scales inputs, the last scales outputs, and each has at least one parameter.

    An optimizer needs a parameter even if no layer of the stage has one; it has the network's `dtype`.
    """
    own = {
        name: tensor
        for name, tensor in (splits.scaling or {}).items()
        if (stage.is_last if name.startswith("target") else stage.is_first)
    }
    add_scaling(stage, own, change_main_output)
    if next(stage.parameters(), None) is None:
        stage.register_parameter("no_parameter", nn.Parameter(torch.zeros(1, dtype=dtype)))
    return stage


class GroupReplica(Replica):
    """A part of a replica."""

    def __init__(self, network: nn.Module, *args: Any, group: GroupConnection, **options: Any) -> None:
        super().__init__(network, *args, **options)
        self.group = group

    def counted_gradients(self) -> list[Tensor]:
        """Return this worker's gradients, without copies that another worker of the group counts."""
        return [parameter.grad for parameter in self.trainable_parameters if parameter.grad is not None]

    def clip(self) -> None:
        if self.training.clip is None:
            return
        gradients = self.counted_gradients()  # none if the layers of the stage are frozen or have no parameters
        norms = torch.stack(torch._foreach_norm(gradients)) if gradients else self.flat.vector.new_empty(0)
        counts = self.group.all_gather(torch.tensor([len(norms)]), [(1,)] * self.group.size)
        gathered = self.group.all_gather(norms, [(int(count),) for count in counts])
        total = torch.linalg.vector_norm(torch.cat(gathered))
        nn.utils.clip_grads_with_norm_(self.trainable_parameters, self.training.clip, total)


class NeuronReplica(GroupReplica):
    """A share of every divided layer's neurons; other parameters are equal on all workers."""

    def counted_gradients(self) -> list[Tensor]:
        """Return the gradients of this worker's shares; the first worker also counts undivided parameters."""
        divided = divided_names(self.network)
        return [
            parameter.grad
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None and (name in divided or self.group.rank == 0)
        ]


class _Received(torch.autograd.Function):
    """Makes a received tensor part of an autograd graph, and keeps its gradient to send it back."""

    @staticmethod
    def forward(ctx: Any, _start: Tensor, slot: dict[str, Tensor | None]) -> Tensor:
        ctx.slot = slot
        tensor = slot["value"]
        assert tensor is not None
        slot["value"] = None
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.slot["gradient"] = gradients[0]
        return None, None


class _Returned(torch.autograd.Function):
    """A scalar whose backward pass passes received gradients to the outputs.

    `torch.autograd.backward` with explicit gradients would first import torch's symbolic shapes, which takes 0.2 s.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *_outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return None, *ctx.gradients


@dataclass
class StagePass:
    """The tensors of a micro-batch that a stage saves between the forward and the backward pass."""

    slots: list[dict[str, Tensor | None]]
    """Of the received tensors that need a gradient, in order."""
    outputs: list[Tensor]
    """The loss, or the tensors sent on that need a gradient."""


class PipelineReplica(GroupReplica):
    """A stage of a pipeline: it processes the micro-batches of a step in the order of a schedule.

    The weights are bit-equal to one process with `accumulate` = `micro_batches`: every operation has the same inputs,
    and gradients are added in the same order.
    """

    network: Stage

    def __init__(self, *args: Any, parallel: Parallel, **options: Any) -> None:
        super().__init__(*args, **options)
        self.schedule = parallel.schedule
        self.micro_batches = parallel.count_micro_batches(self.training.samples_per_step)
        self.network.neighbors = self.group
        self._start = torch.zeros((), requires_grad=True)
        self._rng_state = torch.get_rng_state()
        """That of this stage's layers: with the same one, the dropout of all stages would drop the same neurons."""
        self._before: tuple[Any, Any] | None = None
        """Outputs and targets of the micro-batch before, of a loss that may not be a mean over samples."""

    @property
    def pieces_setting(self) -> str:
        return f"parallel.micro_batches = {self.micro_batches}"

    def begin_epoch(self, seeds: Sequence[Seed]) -> None:
        """Seed the random generators: equal on all stages for data, different on each for layers."""
        seed_everything(*seeds[0], self.group.rank)
        self._rng_state = torch.get_rng_state()
        super().begin_epoch(seeds)

    def backward(self, x: Any, y: Any) -> Tensor | None:  # type: ignore[override]
        """Compute the gradient of this stage's parameters; return the loss of the batch on the last stage."""
        of_data = torch.get_rng_state()
        torch.set_rng_state(self._rng_state)
        try:
            return self._run_schedule(x, y)
        finally:
            self._rng_state = torch.get_rng_state()
            torch.set_rng_state(of_data)

    def _run_schedule(self, x: Any, y: Any) -> Tensor | None:
        self.optimizer.zero_grad(set_to_none=True)
        pieces = self.pieces(y, self.micro_batches)
        passes: dict[int, StagePass] = {}
        self._before = None
        total = torch.zeros((), dtype=self.flat.vector.dtype)
        for kind, number in operations(self.schedule, self.group.rank, self.group.size, len(pieces)):
            if kind == "forward":
                rows, y_piece, share = pieces[number]
                passes[number] = self.forward_piece(
                    select_rows(x, rows) if self.network.is_first else None, y_piece, share
                )
            else:
                total += self.backward_piece(passes.pop(number))
        self.group.flush()
        return total if self.network.is_last else None

    def forward_piece(self, x: Any, y: Any, share: float) -> StagePass:
        """Run the forward pass of one micro-batch; `share` is its weight in the batch's loss, x for the first stage."""
        slots: list[dict[str, Tensor | None]] = []
        inputs = x
        if not self.network.is_first:
            inputs, slots = self._enter(self.group.receive(self.group.rank - 1))
        if self.network.is_last:
            outputs, loss = self.forward(inputs, y)
            self._before = self.check_piece(self._before, (outputs, y))
            return StagePass(slots, [loss * share])
        with autocast(self.training.precision, "cpu"):
            args, kwargs = arguments_of(self.network, inputs)
            outputs = self.network(*args, **kwargs)
        self.group.send(outputs, self.group.rank + 1)
        return StagePass(slots, [value for value in outputs if isinstance(value, Tensor) and value.requires_grad])

    def _enter(self, received: Sequence[Any]) -> tuple[tuple[Any, ...], list[dict[str, Tensor | None]]]:
        """Return the inputs of the stage, and slots for the gradients of those that need one."""
        inputs, slots = [], []
        for value in received:
            if isinstance(value, Tensor) and value.requires_grad:
                slots.append({"value": value.detach(), "gradient": None})
                inputs.append(_Received.apply(self._start, slots[-1]))  # type: ignore[no-untyped-call]
            else:
                inputs.append(value)
        return tuple(inputs), slots

    def backward_piece(self, passed: StagePass) -> Tensor | float:
        """Compute the gradients of one micro-batch, send the inputs' back, and return its loss (0 if unknown)."""
        loss: Tensor | float = 0.0
        if self.network.is_last:
            loss = passed.outputs[0].detach()
            passed.outputs[0].backward()  # type: ignore[no-untyped-call]
        elif passed.outputs:
            gradients = self.group.receive(self.group.rank + 1)
            needed = [pair for pair in zip(gradients, passed.outputs, strict=True) if pair[0] is not None]
            if needed:
                received, outputs = zip(*needed, strict=True)
                _Returned.apply(received, *outputs).backward()  # type: ignore[no-untyped-call]
        if passed.slots:
            self.group.send([slot["gradient"] for slot in passed.slots], self.group.rank - 1)
        if self._needs_dense:
            self.densify()
        return loss


def make_part(
    network: nn.Module, *args: Any, parallel: Parallel, group: GroupConnection, **options: Any
) -> "GroupReplica":
    """Return the replica object that trains this worker's part."""
    if not isinstance(network, Stage):
        return NeuronReplica(network, *args, group=group, **options)
    return PipelineReplica(network, *args, parallel=parallel, group=group, **options)


def has_outputs(replica: Replica) -> bool:
    """Return whether this worker reports the outputs of the replica for its group."""
    if isinstance(replica, PipelineReplica):
        return replica.network.is_last
    return not isinstance(replica, NeuronReplica) or replica.group.rank == 0


def merge_parts(parts: Sequence[dict[str, Tensor]], whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of the undivided network from its parts; `whole` is the initial state."""
    merged = {}
    for name, initial in whole.items():
        own = [part[name] for part in parts if name in part]
        rows = own[0] if own else initial  # unused parameters belong to no stage
        merged[name] = rows if rows.shape == initial.shape else torch.cat(own)
    return merged


class DividedChannels:
    """The shared memory of divided replicas: between equal parts of replicas, and between the parts of a replica."""

    def __init__(
        self,
        replicas: int,
        division: ModelDivision,
        strategy: Strategy,
        *,
        averages_gradients: bool,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.workers = replicas * division.size
        self._division = division
        self._parts = [
            SharedChannels(
                replicas,
                numel,
                strategy=strategy,
                gradient_numel=exchanged if averages_gradients else 0,
                dtype=dtype,
            )
            for numel, exchanged in zip(division.numels, division.exchange_numels, strict=True)
        ]
        self._groups = [create_group(division.size, division.ring_bytes) for _ in range(replicas)]

    def open(
        self,
        rank: int,
        until: Until | None = None,
        lock: AbstractContextManager[Any] | None = None,
        waiting: Callable[[], None] = lambda: None,
    ) -> Channels:
        size = self._division.size
        replica, place = divmod(rank, size)
        channels = self._parts[place].open(replica, until, lock, waiting)
        segment = self._groups[replica]
        channels.group = ModelGroup(
            segment if isinstance(segment, Segment) else Segment.attach(segment),
            place,
            self._division.ring_bytes,
            workers=range(replica * size, (replica + 1) * size),
            until=until,
            check=lambda _: waiting(),
        )
        return channels

    def stop(self, reason: StopReason, rank: int) -> None:
        """Make all workers that wait for others stop with an error."""
        replica, place = divmod(rank, self._division.size)
        for part in self._parts:
            part.stop(reason, replica)
        for group in self._groups:
            group.stop(reason, place)

    def close(self) -> None:
        """Free the shared memory."""
        for part in self._parts:
            part.close()
        for group in self._groups:
            group.close()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_groups": [group.name for group in self._groups]}
