"""Continuing after the loss of a worker: the others resume the last completed epoch, with the data divided again."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tenfold.errors import StoreError
from tenfold.runs import checkpoint
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task


def divide_among(task: Task, workers: int) -> Task:
    """Return the task with its data divided among so many workers."""
    return task if workers == task.workers else replace(task, experiment=task.experiment.replace(workers=workers))


def shrink(task: Task, lost: int, resumption: Resumption | None) -> tuple[Task, Resumption | None]:
    """Return the task of the remaining workers, and the checkpoint that they continue from (None: the beginning).

    `resumption` is where the workers before the loss had started from.
    """
    remaining = divide_among(task, task.workers - 1)
    folder = task.checkpoints
    manifest = checkpoint.latest(folder) if folder is not None else None
    if folder is None or manifest is None:
        return remaining, None
    if resumption is not None and resumption.manifest["epoch"] == manifest["epoch"]:
        manifest = resumption.manifest  # no epoch was completed since the last loss, which this manifest includes
    manifest = manifest | {"ranks": survivors(Resumption(folder, manifest).ranks, lost)}
    with suppress(StoreError):  # matters only if the run is interrupted before the next checkpoint, and resumed
        checkpoint.commit(folder, manifest)
    return remaining, Resumption(folder, manifest)


def survivors(ranks: Sequence[int], lost: int) -> list[int]:
    """Return the saved ranks that continue as 0, 1, ...: all but the one whose present rank is `lost`.

    >>> survivors([0, 2, 3], lost=1)
    [0, 3]
    """
    return [rank for place, rank in enumerate(ranks) if place != lost]


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
