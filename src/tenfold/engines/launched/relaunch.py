"""A launch whose ranks were started again: which run it had begun, and which workers are missing."""

import os
from typing import Any

import psutil

from tenfold.engines.launched.rank import launch_name
from tenfold.errors import ExperimentError, WorkerLost
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
