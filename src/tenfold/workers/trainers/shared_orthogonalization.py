"""Steps of Muon with averaged gradients, in which the workers of one machine divide the orthogonalization.

All workers have the same gradients, momenta and weights, so that all would compute the same. Where it saves time, each
changes only its own part of the large matrices, and writes the result into the others' weights. The products of a part
of a stack of matrices have the same bits as those of the whole stack, as long as one thread computes them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tenfold.mixing import Strategy
from tenfold.mixing.builders import make_strategy
from tenfold.training import Replica
from tenfold.training.optimizers.make_optimizer import make_optimizer
from tenfold.training.optimizers.muon import Muon, Shape
from tenfold.training.optimizers.newton_schulz import SMALL
from tenfold.transport import SharedMemoryTransport
from tenfold.workers.channels import Channels
from tenfold.workers.task import Task, make_network

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


def share_orthogonalization(replica: Replica, channels: Channels, strategy: Strategy) -> SharedOrthogonalization | None:
    """Return this worker's part of the steps, or None where every worker should take whole steps.

    A worker may write into another's weights only after that one has computed its gradient: averaging waits for all.
    """
    transport, optimizer = channels.transport, replica.optimizer
    if not isinstance(transport, SharedMemoryTransport) or not isinstance(optimizer, Muon):
        return None
    if channels.is_elastic or not strategy.always_exact or torch.get_num_threads() > 1:
        return None
    return (
        SharedOrthogonalization(replica, optimizer, transport)
        if stacks_worth_sharing(optimizer, transport.size)
        else None
    )


def shared_stacks(task: Task, workers: int | None = None) -> list[Shape]:
    """Return the stacks of matrices that worker processes of this task share; none where they take whole steps.

    `workers` is how many there are, if not the task's own number.
    """
    training, machine = task.experiment.training, task.experiment.machine
    if training.optimizer != "muon" or task.division.average != "gradients":
        return []
    if machine.on_failure == "continue" or task.threads > 1 or not make_strategy(task.division).always_exact:
        return []
    optimizer = make_optimizer(training, make_network(task))
    return list(stacks_worth_sharing(optimizer, workers or task.workers).values())


def large_stacks(optimizer: torch.optim.Optimizer) -> dict[Tensor, Shape]:
    """Return the learnt parameters with large matrices, which workers can share: each takes some of every stack.

    Small matrices are not among them: they are orthogonalized together, in next to no time.
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
    """Return the parameters whose matrices `workers` workers share; none where that does not pay.

    It does not where a parameter has more than two dimensions, as in convolutions, which use their weights at many
    places: the rest of a step takes far longer.
    """
    stacks = large_stacks(optimizer)
    up_to_matrices = all(parameter.ndim <= 2 for group in optimizer.param_groups for parameter in group["params"])
    return stacks if up_to_matrices and division_pays(list(stacks.values()), workers) else {}


def division_pays(stacks: Sequence[Shape], workers: int) -> bool:
    """Return whether `workers` workers save more time by dividing these stacks than it costs them."""
    if workers == 1 or not stacks:
        return False
    saved = (1 - largest_share(stacks, workers)) * sum(map(_operations, stacks)) / OPERATIONS_PER_SECOND
    written = max(_own_bytes(stacks, parts) for parts in assign_matrices(stacks, workers)) * (workers - 1)
    return saved > MEETING_SECONDS + written / BYTES_PER_SECOND


def assign_matrices(stacks: Sequence[Shape], workers: int) -> list[list[slice]]:
    """Return for each worker its matrices of each stack, so that all have about the same amount of work."""
    total, before = sum(map(_operations, stacks)), 0
    divided: list[list[slice]] = [[] for _ in range(workers)]
    for stack in stacks:
        count, each = stack[0], _operations(stack) // stack[0]
        middles = [2 * (before + place * each) + each for place in range(count)]
        owners = [workers * middle // (2 * total) for middle in middles]
        for worker, parts in enumerate(divided):
            first = sum(owner < worker for owner in owners)
            parts.append(slice(first, first + owners.count(worker)))
        before += count * each
    return divided


def largest_share(stacks: Sequence[Shape], workers: int) -> float:
    """Return the share of the work that the worker with the most work has."""
    each = [_operations(stack) // stack[0] for stack in stacks]
    work: list[int] = [
        sum(operations * (part.stop - part.start) for operations, part in zip(each, parts, strict=True))
        for parts in assign_matrices(stacks, workers)
    ]
    return max(work) / sum(work)


def stacked_bytes(stacks: Sequence[Shape]) -> int:
    """Return the bytes of all matrices."""
    return sum(4 * count * rows * columns for count, rows, columns in stacks)


def _own_bytes(stacks: Sequence[Shape], parts: Sequence[slice]) -> int:
    own = (len(range(stack[0])[part]) for stack, part in zip(stacks, parts, strict=True))
    return stacked_bytes([(count, *stack[1:]) for count, stack in zip(own, stacks, strict=True)])


def _operations(stack: Shape) -> int:
    """Return the operations that orthogonalize a stack: Gram matrices, nine products of these, and the updates."""
    count, rows, columns = stack
    size, other = min(rows, columns), max(rows, columns)
    return count * size * size * (4 * other + 18 * size)
