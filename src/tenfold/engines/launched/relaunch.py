"""A launch whose ranks were started again: its run, the workers that are missing, and the states that ranks load."""

import os
from collections.abc import Sequence
from typing import Any

import psutil

from tenfold.engines.launched.rank import launch_name
from tenfold.errors import ExperimentError, StoreError, WorkerLost
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.runs import Store
from tenfold.runs.checkpoint import Resumption
from tenfold.runs.storage.lost_worker import LostWorker

CLOCKS_DIFFER_BY = 5.0
"""Seconds, between hosts."""


def find_begun(store: Store, world: World, experiment: Experiment) -> dict[str, Any] | None:
    """Return the record of the run that this launch has begun and not finished, if there is one.

    A later launch may have the same name, so the run must be younger than the launcher's process. Slurm's names are job
    numbers, and a job that is restarted has other processes. When torchrun restarts the ranks because hosts join or
    leave, it does not count that as a restart.
    """
    name = launch_name(world)
    since = 0.0 if world.launcher == "slurm" else psutil.Process(os.getppid()).create_time()
    wanted = experiment.model_dump(mode="json")
    ended = ("finished",) if world.restarts else ("finished", "failed")
    for run in reversed(store.records()):
        if run["problems"]:
            continue
        if run["facts"].get("launch", {}).get("name") == name and run["created"] > since - CLOCKS_DIFFER_BY:
            before: int = run["experiment"]["division"]["workers"]
            wanted["division"]["workers"] = before
            if run["status"] in ended or run["experiment"] != wanted:
                return None
            if before != world.size and experiment.machine.on_failure == "end":
                raise ExperimentError(
                    f"run {run['id']} was started with {before} ranks, but {world.launcher} has started {world.size}; "
                    f'start {before}, or set machine.on_failure = "continue"'
                )
            return dict(run)
    return None


def find_lost(record: dict[str, Any], resumption: Resumption | None, world: World) -> list[LostWorker]:
    """Return the worker that was lost if there are fewer ranks than before; the run's record may say which."""
    before = resumption.manifest["workers"] if resumption else record["experiment"]["division"]["workers"]
    if world.size >= before:
        return []
    why = record["error"].partition("\n")[0] or f"{world.launcher} has started {world.size} ranks after {before}"
    rank = record["result"].get("lost_rank")
    return [LostWorker.of(WorkerLost(before - 1 if rank is None else rank, why), world.size, resumption)]


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
