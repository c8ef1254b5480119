"""Rounds: averaging, compression, the outer optimizer, and the optimizer's state."""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tenfold.errors import ExperimentError
from tenfold.mixing import Round, Strategy, is_round_due
from tenfold.mixing.compression import row_lengths
from tenfold.training import FlatState, Replica
from tenfold.training.flat_weights import ALIGNMENT, DIGEST_SIZE, BatchNormStatistics, padded_size, view_like
from tenfold.training.muon import SMALL, Muon, Shape
from tenfold.training.optimizers import built_in_optimizer, make_missing_states, make_optimizer, state_bytes
from tenfold.training.stacked_replicas import ReplicaRows
from tenfold.transport import SharedMemoryTransport
from tenfold.workers.channels import Channels, MakeRound, StackedTransport
from tenfold.workers.task import Mixing, Task, make_network

DIGEST_TOLERANCE = 0.05
"""Rounding moves the mean of equal digests by less; another digest on one of some hundred workers moves it by more."""


class MixedReplica(Protocol):
    """The attributes that rounds read and change, of one replica or of several stacked ones."""

    batch_norm: BatchNormStatistics

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        ...


class AveragedReplica(MixedReplica, Protocol):
    """The attributes of a single replica that rounds read and change."""

    flat: FlatState
    """Its whole state, in the buffer of the transport."""
    optimizer: torch.optim.Optimizer
    trainable_parameters: list[nn.Parameter]


class Rounds(ABC):
    """The steps of a round on a worker's replicas: on one, or on many stacked in a matrix.

    A subclass provides their gradients and the state of their optimizers.
    """

    def __init__(
        self,
        mixing: Mixing,
        replica: MixedReplica,
        weights: Tensor,
        channels: Channels,
        samples: list[float],
        *,
        shapes: Sequence[Sequence[int]],
        frozen: Sequence[slice],
    ) -> None:
        """`samples` are the sizes of all workers' shards, `weights` has one row per replica.

        `shapes` are the shapes of the tensors that a round averages: of the parameters, or of their gradients.
        """
        self.parallel, self.strategy, self.outer = mixing.parallel, mixing.strategy, mixing.outer
        self.replica = replica
        self.weights = weights
        self.channels = channels
        self.samples = samples
        self.frozen = frozen
        by_gradients = self.parallel.average == "gradients"
        size = sum(map(math.prod, shapes)) if by_gradients else weights.shape[1]
        self.compresses = self.parallel.compression != "none"
        lengths = row_lengths(shapes, 1 if by_gradients else ALIGNMENT) if self.compresses else ()
        self.compressors = [mixing.make_compressor(size, lengths) for _ in weights]
        self.reference = weights.clone() if self.compresses and not by_gradients else None
        """The weights after the last round, where their differences from these are compressed."""
        self.outer_state = self.outer.start(weights[0])
        self.count = 0
        """The number of rounds so far."""
        self.bytes_moved = [0.0] * len(weights)
        """The bytes that each replica has sent."""
        self._distances: Tensor | None = None
        self._measures_distances = True
        """Whether to measure in the next round how far replicas are from the average."""

    @property
    def size(self) -> int:
        """The current number of replicas."""
        return self.channels.transport.size

    @property
    def upcoming(self) -> Round:
        return self.strategy.round(self.count, self.size)

    def begin(self) -> MakeRound:
        """Count the next round, and return the function that creates it for any number of replicas."""
        number = self.count
        self.count += 1
        return lambda size: self.strategy.round(number, size)

    def is_due(self, step: int) -> bool:
        """Return whether a round follows this step of the run, counted from 1."""
        return is_round_due(step, self.parallel.steps_between_rounds, self.parallel.local_after)

    def average_weights(self) -> None:
        """Average the states of the replicas in the next round."""
        make_round = self.begin()
        if make_round(self.size).is_idle:  # the members may change in it
            self.channels.run_round(self.channels.transport, make_round, self.samples)
            return
        nbytes = self._compress_weights()
        before = self.weights.clone() if self._measures_distances else None
        self.replica.batch_norm.variances_to_moments()
        round_ = self.channels.run_round(self.channels.transport, make_round, self.samples)
        self.replica.batch_norm.moments_to_variances(replicas_are_equal=round_.is_exact)
        if before is not None:
            norms = self.weights.norm(dim=-1).clamp_min(1e-30)
            self._distances = (before - self.weights).norm(dim=-1) / norms
            self._measures_distances = False
        if self.parallel.outer != "none":
            self._step_outer()
        if self.reference is not None:
            self.reference.copy_(self.weights)
        if self.parallel.optimizer_state == "reset":
            self.reset_optimizers()
        elif self.parallel.optimizer_state == "average":
            self.average_optimizers(make_round)
        self.count_bytes(round_, nbytes)

    def use_mean_of_replicas(self, samples: Sequence[float] | None = None) -> None:
        """Replace the weights by the mean of all replicas; `samples` are their shares in it."""
        if self.strategy.final(self.size).is_idle:
            return
        self.replica.batch_norm.variances_to_moments()
        samples = self.samples if samples is None else samples
        round_ = self.channels.try_round(self.channels.transport, self.strategy.final, samples)
        self.replica.batch_norm.moments_to_variances(replicas_are_equal=round_.is_exact)

    def _step_outer(self) -> None:
        """Apply the outer optimizer to the average, which is in every row."""
        average = self.weights[0] if len(self.weights) == 1 else self.weights[0].clone()
        stepped = self.outer.update(self.outer_state, average, n=self.size, lr=self.replica.lr)
        if len(self.weights) > 1:
            self.weights.copy_(stepped)

    def _compress_weights(self) -> int:
        """Compress and decode the weights, as the other workers would, and return the bytes that a replica sends."""
        row = self.channels.transport.buffer.reshape(len(self.weights), -1)[0]
        if self.reference is None:
            return row.nbytes
        for weights, reference, compressor in zip(self.weights, self.reference, self.compressors, strict=True):
            packed = compressor.encode(weights - reference)
            compressor.decode(packed, weights)
            for part in self.frozen:  # a compressor may not decode 0 as 0
                weights[part].zero_()
            weights.add_(reference)
        return packed.nbytes + row.nbytes - self.weights[0].nbytes

    def count_bytes(self, round_: Round, nbytes: int) -> None:
        """Count the bytes that replicas with messages of this size send in a round."""
        sent, first = round_.bytes_per_worker(nbytes), self.channels.transport.rank
        self.bytes_moved = [before + sent[first + row] for row, before in enumerate(self.bytes_moved)]

    def take_distances_from_mean(self) -> list[float]:
        """Return |x - mean| / |mean| of the weights x of each replica before the first round since the last call.

        It is the metric "spread"; the list is empty if there was no round.
        """
        distances, self._distances, self._measures_distances = self._distances, None, True
        return [] if distances is None else distances.tolist()

    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run: rounds so far, outer momentum, and compression error."""
        return {
            "rounds": self.count,
            "outer": self.outer_state,
            "reference": self.reference,
            "errors": [compressor.error for compressor in self.compressors],
            "bytes_moved": self.bytes_moved,
        }

    def load(self, state: dict[str, Any]) -> None:
        device = self.weights.device
        self.count, self.bytes_moved = state["rounds"], list(state["bytes_moved"])
        self.outer_state = {name: tensor.to(device) for name, tensor in state["outer"].items()}
        if self.reference is not None:
            self.reference.copy_(state["reference"])
        for compressor, error in zip(self.compressors, state["errors"], strict=True):
            compressor.error = None if error is None else error.to(device)

    def average_gradients(self, samples: Sequence[float]) -> None:
        """Average the gradients of all replicas, weighted by their samples.

        Gradients of replicas without samples count as 0.
        """
        make_round, transport = self.begin(), self.channels.gradient_transport
        if make_round(transport.size).is_idle:
            self.channels.run_round(transport, make_round, samples)
            return
        with self.gradients_in_buffer() as nbytes:
            round_ = self.channels.run_round(transport, make_round, samples)
        self.count_bytes(round_, nbytes)

    @abstractmethod
    def gradients_in_buffer(self) -> AbstractContextManager[int]:
        """In this block, keep the gradients in the buffer of their transport, to average them there.

        Yields the bytes that a replica sends.
        """

    def compress(self, vectors: Sequence[Tensor]) -> int:
        """Compress and decode a vector of each replica, as others would; return the bytes that each sends."""
        for vector, compressor in zip(vectors, self.compressors, strict=True):
            packed = compressor.encode(vector)
            compressor.decode(packed, vector)
        return packed.nbytes

    @abstractmethod
    def reset_optimizers(self) -> None:
        """Reset the optimizers to their state before the first step."""

    @abstractmethod
    def average_optimizers(self, make_round: MakeRound) -> None:
        """Average the state of the optimizers in the same round as the weights."""


class StackedRounds(Rounds):
    """The rounds of a worker whose replicas are rows of one matrix."""

    replica: ReplicaRows

    def __init__(self, mixing: Mixing, replica: ReplicaRows, channels: Channels, samples: list[float]) -> None:
        parameters, by_gradients = replica.stacked.stack.network.parameters(), mixing.parallel.average == "gradients"
        shapes = [parameter.shape for parameter in parameters if parameter.requires_grad or not by_gradients]
        frozen = replica.stacked.stack.frozen
        super().__init__(mixing, replica, replica.weights, channels, samples, shapes=shapes, frozen=frozen)

    @contextmanager
    def gradients_in_buffer(self) -> Iterator[int]:
        gradient, columns = self.channels.gradient_transport.buffer, self._columns
        nbytes = len(columns) * gradient.element_size()
        if self.compresses:
            trained = gradient[:, columns]
            nbytes = self.compress(list(trained))
            gradient[:, columns] = trained
        yield nbytes

    @cached_property
    def _columns(self) -> Tensor:
        """The columns of the gradients that workers would send: trained parameters, without padding."""
        return self.replica.stacked.stack.learned_columns()

    def reset_optimizers(self) -> None:
        self.replica.stacked.optimizer.forget(self.replica.rows)

    def average_optimizers(self, make_round: MakeRound) -> None:
        for transport in self._roles:
            transport.mix(make_round(self.size), self.samples)
        for nbytes in self._state_bytes:
            self.count_bytes(make_round(self.size), nbytes)

    @cached_property
    def _roles(self) -> list[StackedTransport]:
        roles = self.replica.stacked.optimizer.roles.values()
        return [StackedTransport(role[self.replica.rows]) for role in roles]

    @cached_property
    def _state_bytes(self) -> list[int]:
        """The bytes of each vector that a worker with one of these replicas would send."""
        stacked = self.replica.stacked
        return list(state_bytes(stacked.training, copy.deepcopy(stacked.stack.network)).values())


class ReplicaRounds(Rounds):
    """The rounds of a worker with one replica."""

    replica: AveragedReplica

    def __init__(self, mixing: Mixing, replica: AveragedReplica, channels: Channels, samples: list[float]) -> None:
        flat, by_gradients = replica.flat, mixing.parallel.average == "gradients"
        trained = (tuple(parameter.shape) for parameter in replica.trainable_parameters) if by_gradients else ()
        super().__init__(
            mixing,
            replica,
            flat.vector[: flat.parameters][None],
            channels,
            samples,
            shapes=list(trained) if by_gradients else flat.parameter_shapes,
            frozen=[] if by_gradients else flat.frozen,
        )
        made = replica.optimizer.state if self.parallel.optimizer_state == "reset" else {}
        self._first_state = {owner: copy.deepcopy(state) for owner, state in made.items()}
        """The state to which the optimizer is reset: usually empty, but some create their state in the constructor."""
        self._stateless: set[nn.Parameter] = set()
        """Parameters without optimizer state."""
        self._digested: tuple[list[tuple[int, str]], Tensor] | None = None
        self._gradient_views: list[Tensor] | None = None
        """Where averaged gradients lie in the transport's buffer, and after them for each whether anybody has it."""

    @contextmanager
    def gradients_in_buffer(self) -> Iterator[int]:
        """Keep the replica's gradients in the buffer; missing gradients count as zeros.

        A parameter without a gradient on any replica keeps none, so the optimizer skips it, as it would with one
        worker.
        """
        learning = self.replica.trainable_parameters
        unused = [place for place, parameter in enumerate(learning) if parameter.grad is None]
        for place in unused:
            learning[place].grad = torch.zeros_like(learning[place])
        gradients = [parameter.grad for parameter in learning if parameter.grad is not None]
        if self._gradient_views is None:
            self._gradient_views = _views_of(self.channels.gradient_transport.buffer, learning)
        *shared, used = self._gradient_views
        nbytes = sum(gradient.nbytes for gradient in gradients)
        if self.compresses:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            nbytes = self.compress([flat])
            parts = torch.split(flat, [gradient.numel() for gradient in gradients])
            gradients = [part.view_as(gradient) for part, gradient in zip(parts, gradients, strict=True)]
        torch._foreach_copy_(shared, gradients)
        used.fill_(1.0)
        for place in unused:
            used[place] = 0.0
        yield nbytes
        # Other workers do not write to this memory before the next round; only a user's optimizer may keep gradients
        # longer.
        may_stay = type(self.replica.optimizer).__module__.startswith(("torch.", "tenfold."))
        for parameter, average in zip(learning, shared, strict=True):
            parameter.grad = average if may_stay else average.clone()
        if unused:  # only then is a device waited for
            for parameter, share in zip(learning, used.tolist(), strict=True):
                if not share:
                    parameter.grad = None

    def reset_optimizers(self) -> None:
        state = self.replica.optimizer.state
        state.clear()
        state.update({owner: copy.deepcopy(first) for owner, first in self._first_state.items()})

    def average_optimizers(self, make_round: MakeRound) -> None:
        optimizer = self.replica.optimizer
        momenta = self._find_momenta()
        digest = self._digest(momenta)
        for name in dict.fromkeys(name for _, name in momenta):
            tensors = [optimizer.state[owner][name] for owner, other in momenta if other == name]
            compared = digest.clone()
            round_ = average_tensors(self.channels, make_round, [*tensors, compared], self.samples)
            self._check_digest(compared - digest)
            self.count_bytes(round_, sum(tensor.nbytes for tensor in tensors))

    def _find_momenta(self) -> list[tuple[nn.Parameter, str]]:
        """Return the vectors of the optimizer's state to average, as pairs of a parameter and a name.

        Replicas may have trained different layers. A parameter not yet trained here gets the state after a gradient of
        zero, so that all workers exchange the same vectors in the same order.
        """
        optimizer, learning = self.replica.optimizer, self.replica.trainable_parameters
        missing = [item for item in learning if not optimizer.state.get(item) and item not in self._stateless]
        if missing:
            try:
                made = make_missing_states(optimizer, missing)
            except Exception as error:  # a user's own optimizer may raise anything
                raise ExperimentError(
                    f"the state of {type(optimizer).__name__} cannot be averaged: this worker has no state for "
                    f"parameters that it did not train, and none can be created ({error}); set "
                    'parallel.optimizer_state = "local"'
                ) from error
            optimizer.state.update({owner: state for owner, state in made.items() if state})
            self._stateless.update(owner for owner, state in made.items() if not state)
        return [
            (owner, name)
            for owner in learning
            for name, value in optimizer.state.get(owner, {}).items()
            if isinstance(value, Tensor) and value.ndim
        ]

    def _digest(self, momenta: list[tuple[nn.Parameter, str]]) -> Tensor:
        """Return numbers that are equal on all workers if their momenta have the same names and shapes, in order."""
        if self._digested is None or self._digested[0] != [(id(owner), name) for owner, name in momenta]:
            places = {parameter: place for place, parameter in enumerate(self.replica.trainable_parameters)}
            state = self.replica.optimizer.state
            content = str([(places[owner], name, tuple(state[owner][name].shape)) for owner, name in momenta])
            numbers = list(hashlib.blake2b(content.encode(), digest_size=DIGEST_SIZE).digest())
            digest = torch.tensor(numbers, dtype=torch.float32, device=self.weights.device)
            self._digested = [(id(owner), name) for owner, name in momenta], digest
        return self._digested[1]

    @staticmethod
    def _check_digest(difference: Tensor) -> None:
        """Raise ExperimentError if the mean of all digests is not this worker's own."""
        if not bool((difference.abs() < DIGEST_TOLERANCE).all()):
            raise ExperimentError(
                "the workers' optimizer states cannot be averaged, because their names or shapes differ; "
                'set parallel.optimizer_state = "local"'
            )


def _views_of(buffer: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return views into a buffer with the parameters' layouts, and one with one number per parameter."""
    views, start = [], 0
    for parameter in parameters:
        views.append(view_like(parameter, buffer, start))
        start += padded_size(parameter.numel())
    return [*views, buffer[start : start + len(parameters)]]


def average_tensors(
    channels: Channels, make_round: MakeRound, tensors: list[Tensor], samples: Sequence[float]
) -> Round:
    """Average tensors outside the replica's flat state, such as momenta, in place."""
    sizes = [tensor.numel() for tensor in tensors]
    parts = torch.split(channels.gradient_transport.buffer[: sum(sizes)], sizes)
    shared = [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
    if tensors:
        torch._foreach_copy_(shared, tensors)
    round_ = channels.run_round(channels.gradient_transport, make_round, samples)
    if tensors:
        torch._foreach_copy_(tensors, shared)
    return round_


# Steps of Muon with averaged gradients, in which the workers of one machine divide the orthogonalization.
#
# All workers have the same gradients, momenta and weights, so all would compute the same update. If it saves time, each
# updates only its part of the large matrices, and writes the result into the others' weights. With one thread, the
# products for a part of a stack of matrices are bit-equal to those for the whole stack.

OPERATIONS_PER_SECOND = 4e10
"""Multiplications and additions of one core, in products of matrices with 64 rows."""
BYTES_PER_SECOND = 4e9
"""Of weights that are written into the memory of another worker."""
MEETING_SECONDS = 1e-3
"""Seconds that an additional wait for the slowest worker may cost in every step, on a machine that is not idle."""


class SharedOrthogonalization:
    """One worker's part of every step."""

    def __init__(self, replica: Replica, optimizer: Muon, transport: SharedMemoryTransport) -> None:
        self._optimizer = optimizer
        self._transport = transport
        stacks = large_stacks(optimizer)
        own = assign_matrices(list(stacks.values()), transport.size)[transport.rank]
        optimizer.own = dict(zip(stacks, own, strict=True))
        self._slices = []
        for (parameter, (_, rows, columns)), part in zip(stacks.items(), own, strict=True):
            start = (parameter.data_ptr() - replica.flat.vector.data_ptr()) // parameter.element_size()
            size = rows * columns
            self._slices.append(slice(start + part.start * size, start + part.stop * size))

    def step(self) -> None:
        """Update this worker's part of the weights, and wait until the others have written theirs into the rest."""
        self._optimizer.step()
        self._transport.copy_to_others(self._slices)


def share_orthogonalization(
    replica: Replica | ReplicaRows, channels: Channels, strategy: Strategy
) -> SharedOrthogonalization | None:
    """Return this worker's part of the steps, or None if every worker should take whole steps.

    A worker may write into another's weights only after that one has computed its gradient; averaging ensures this.
    """
    transport = channels.transport
    if not isinstance(transport, SharedMemoryTransport) or not isinstance(replica, Replica):
        return None
    optimizer = replica.optimizer
    if not isinstance(optimizer, Muon):
        return None
    if channels.is_elastic or not strategy.always_exact or torch.get_num_threads() > 1:
        return None
    return (
        SharedOrthogonalization(replica, optimizer, transport)
        if stacks_worth_sharing(optimizer, transport.size)
        else None
    )


def shared_stacks(task: Task, workers: int | None = None) -> list[Shape]:
    """Return the stacks of matrices that this task's worker processes divide; none if they take whole steps.

    `workers` replaces the task's own number of workers.
    """
    training, machine = task.experiment.training, task.experiment.machine
    if built_in_optimizer(training) is not Muon or task.parallel.average != "gradients":
        return []
    if machine.on_failure == "continue" or task.threads > 1 or not task.strategy.always_exact:
        return []
    optimizer = make_optimizer(training, make_network(task))
    return list(stacks_worth_sharing(optimizer, workers or task.replicas).values())


def large_stacks(optimizer: torch.optim.Optimizer) -> dict[Tensor, Shape]:
    """Return the learned parameters with large matrices; workers can divide every stack of them.

    Small matrices are omitted: they are orthogonalized together, which takes hardly any time.
    """
    if not isinstance(optimizer, Muon):
        return {}
    return {
        parameter: shape
        for group in optimizer.param_groups
        if group["rule"] == "muon"
        for parameter, shape in zip(group["params"], group["shapes"], strict=True)
        if parameter.requires_grad and min(shape[1:]) > SMALL
    }


def stacks_worth_sharing(optimizer: torch.optim.Optimizer, workers: int) -> dict[Tensor, Shape]:
    """Return the parameters whose matrices `workers` workers should divide; none if that saves no time.

    It saves none if a parameter has more than two dimensions, as in convolutions: they use each weight many times, so
    the rest of a step takes far longer.
    """
    stacks = large_stacks(optimizer)
    up_to_matrices = all(parameter.ndim <= 2 for group in optimizer.param_groups for parameter in group["params"])
    return stacks if up_to_matrices and parallel_pays(list(stacks.values()), workers) else {}


def parallel_pays(stacks: Sequence[Shape], workers: int) -> bool:
    """Return whether dividing these stacks among `workers` workers saves more time than it costs."""
    if workers == 1 or not stacks:
        return False
    saved = (1 - largest_share(stacks, workers)) * sum(map(_operations, stacks)) / OPERATIONS_PER_SECOND
    nbytes = np.repeat([4 * rows * columns for _, rows, columns in stacks], [stack[0] for stack in stacks])
    written = float(np.bincount(_owners(stacks, workers), nbytes).max()) * (workers - 1)
    return saved > MEETING_SECONDS + written / BYTES_PER_SECOND


def assign_matrices(stacks: Sequence[Shape], workers: int) -> list[list[slice]]:
    """Assign each worker matrices of each stack, with about equal work for all."""
    of_stacks = np.split(_owners(stacks, workers), np.cumsum([stack[0] for stack in stacks])[:-1])
    return [
        [slice(*np.searchsorted(owners, [worker, worker + 1]).tolist()) for owners in of_stacks]
        for worker in range(workers)
    ]


def _owners(stacks: Sequence[Shape], workers: int) -> NDArray[np.int64]:
    """Return the worker of each matrix: the one whose part of all operations contains the matrix's middle."""
    each = _operations_of_each(stacks)
    owners: NDArray[np.int64] = workers * (2 * np.cumsum(each) - each) // (2 * each.sum())
    return owners


def largest_share(stacks: Sequence[Shape], workers: int) -> float:
    """Return the largest share of the work that a worker has."""
    work = np.bincount(_owners(stacks, workers), _operations_of_each(stacks))
    return float(work.max() / work.sum())


def stacked_bytes(stacks: Sequence[Shape]) -> int:
    return sum(4 * count * rows * columns for count, rows, columns in stacks)


def _operations_of_each(stacks: Sequence[Shape]) -> NDArray[np.int64]:
    return np.repeat([_operations(stack) // stack[0] for stack in stacks], [stack[0] for stack in stacks])


def _operations(stack: Shape) -> int:
    """Return the operations that orthogonalize a stack: Gram matrices, nine products of these, and the updates."""
    count, rows, columns = stack
    size, other = min(rows, columns), max(rows, columns)
    return count * size * size * (4 * other + 18 * size)
