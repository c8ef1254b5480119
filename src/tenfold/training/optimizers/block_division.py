"""Workers that step by the same gradients can divide the orthogonalization: each takes some matrices of every step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tenfold.training.optimizers.muon import Muon, Shape
from tenfold.training.optimizers.newton_schulz import SMALL

OPERATIONS_PER_SECOND = 4e10
"""Multiplications and additions of one core, in products of matrices with 64 rows."""
BYTES_PER_SECOND = 4e9
"""Of weights that are written into the memory of another worker."""
MEETING_SECONDS = 1e-3
"""Seconds that an additional wait for the slowest worker may cost in every step, on a machine that is not idle."""


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
