"""Going on without a worker that was lost: the others take up the last whole epoch, with the data divided anew."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tenfold.errors import StoreError, WorkerLost
from tenfold.runs import Clock, WorkerDropped, checkpoint
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task

Loss = dict[str, Any]
"""Which worker was lost and why, how many were left, and the epoch (from 1) that they went on with."""


def among(task: Task, workers: int) -> Task:
    """Return the task for so many workers: its data are divided among these."""
    return task if workers == task.workers else replace(task, experiment=task.experiment.replace(workers=workers))


def without(lost: int, task: Task, resumption: Resumption | None) -> tuple[Task, Resumption | None]:
    """Return the task of the workers that are left, and where they go on; None: at the beginning.

    `resumption` is where the crew that lost a worker had gone on.
    """
    left = among(task, task.workers - 1)
    folder = task.checkpoints
    manifest = checkpoint.latest(folder) if folder is not None else None
    if folder is None or manifest is None:
        return left, None
    if resumption is not None and resumption.manifest["epoch"] == manifest["epoch"]:
        manifest = resumption.manifest  # no epoch was finished since the last loss, which it knows of
    ranks = survivors(Resumption(folder, manifest).ranks, lost)
    manifest = manifest | {"ranks": ranks}
    with suppress(StoreError):  # only a run that is ended now and resumed later would miss it
        checkpoint.commit(folder, manifest)
    return left, Resumption(folder, manifest)


def survivors(ranks: Sequence[int], lost: int) -> list[int]:
    """Return the saved ranks that go on as 0, 1, ...: all of those before but the one in the place of the lost.

    >>> survivors([0, 2, 3], lost=1)
    [0, 3]
    """
    return [rank for place, rank in enumerate(ranks) if place != lost]


def matched(seen: Sequence[Sequence[int]]) -> list[int]:
    """Return the saved rank that each new rank takes on, of those whose files it sees on its host.

    Each takes its own if it can, else one that nobody has taken, else one that somebody has.

    >>> matched([[0, 1], [3], [3]])
    [0, 3, 3]
    """
    if not all(seen):
        blind = next(rank for rank, ranks in enumerate(seen) if not ranks)
        raise StoreError(
            f"rank {blind} finds no checkpoint on its host to go on from; keep the runs where all hosts see them"
        )
    taken: dict[int, int] = {rank: rank for rank, ranks in enumerate(seen) if rank in ranks}
    for rank, ranks in enumerate(seen):
        if rank not in taken:
            taken[rank] = next((one for one in ranks if one not in taken.values()), ranks[rank % len(ranks)])
    return [taken[rank] for rank in range(len(seen))]


def told(error: WorkerLost, left: int, resumption: Resumption | None) -> Loss:
    """Return what is to be remembered of a loss."""
    epoch = resumption.manifest["epoch"] if resumption else 0
    return {"worker": error.rank, "why": str(error), "left": left, "epoch": epoch + 1}


def announced(loss: Loss, clock: Clock) -> WorkerDropped:
    """Return the event that tells of a loss."""
    text = f"{loss['why']}; {sentence(loss)}"
    return WorkerDropped(at=clock.now(), text=text, epoch=loss["epoch"] - 1, worker=loss["worker"])


def sentence(loss: Loss) -> str:
    """Return who goes on, and where."""
    who = "1 worker goes" if loss["left"] == 1 else f"{loss['left']} workers go"
    return f"{who} on, from epoch {loss['epoch']}"
