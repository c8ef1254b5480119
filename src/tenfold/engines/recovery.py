"""Continuing with another number of workers: whose saved states they take on, and how the data are divided."""

from collections.abc import Sequence
from dataclasses import replace

from tenfold.errors import StoreError
from tenfold.workers.task import Task


def divide_among(task: Task, workers: int) -> Task:
    """Return the task with its data divided among `workers` workers."""
    return task if workers == task.workers else replace(task, experiment=task.experiment.replace(workers=workers))


def assign_states(visible: Sequence[Sequence[int]]) -> list[int]:
    """Return the saved rank whose state each new rank loads, from those whose files it can see on its host.

    Each takes its own if it can, else one that no other rank has taken, else any.

    >>> assign_states([[0, 1], [3], [3]])
    [0, 3, 3]
    """
    if not all(visible):
        blind = next(rank for rank, ranks in enumerate(visible) if not ranks)
        raise StoreError(
            f"rank {blind} finds no checkpoint on its host to resume from; keep the runs in a folder that all hosts see"
        )
    taken: dict[int, int] = {rank: rank for rank, ranks in enumerate(visible) if rank in ranks}
    for rank, ranks in enumerate(visible):
        if rank not in taken:
            taken[rank] = next((one for one in ranks if one not in taken.values()), ranks[rank % len(ranks)])
    return [taken[rank] for rank in range(len(visible))]
