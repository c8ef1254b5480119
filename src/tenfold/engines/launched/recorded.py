"""A run of many ranks from its beginning to its record: rank 0 leads and writes, the others follow."""

import os
import re
from pathlib import Path
from typing import Any

import psutil

from tenfold.data import Progress
from tenfold.engines.base import Outcome
from tenfold.engines.launched.engine import Launched
from tenfold.engines.launched.rank import launch_name, settled
from tenfold.engines.prepare import check_same_data, describe
from tenfold.engines.recording import reopen, train_recorded
from tenfold.engines.recovery import Loss, told
from tenfold.errors import ExperimentError, WorkerLost
from tenfold.experiment import Experiment
from tenfold.launch.detect import World
from tenfold.runs import Clock, Emit, Store
from tenfold.runs.elsewhere import Elsewhere
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task

CLOCKS_DIFFER_BY = 5.0
"""Seconds, between hosts."""
Recorded = tuple[Store, dict[str, Any], Outcome]
"""The store, the run's record in it, and what came out; on ranks that do not record, as rank 0 told."""


def train(
    engine: Launched,
    experiment: Experiment,
    *,
    runs: str | Path | None,
    clock: Clock,
    listen: Emit,
    fetching: Progress | None,
    kind: str,
) -> Recorded:
    """Train with all ranks; when the launcher has restarted them, go on with the run that they had begun."""
    experiment = settled(experiment, engine.world)
    with engine.session():
        task = engine.prepare(experiment, fetching)
        if not engine.records:
            return _follow(engine, task, clock)
        store = Store(runs)
        may_have_begun = engine.world.restarts or experiment.machine.on_failure == "continue"
        record = begun(store, engine.world, experiment) if may_have_begun else None
        if record is not None:
            return _go_on(engine, task, store, record, listen, abandoned=True)
        number = store.create(experiment, kind=kind, facts=describe(task) | engine.facts())
        outcome = train_recorded(engine, task, store, number, clock, listen)
        return _close(engine, store, number, outcome)


def resume(engine: Launched, experiment: Experiment, store: Store, record: dict[str, Any], listen: Emit) -> Recorded:
    """Go on with a run, with all ranks; each has found the run's record."""
    experiment = settled(experiment, engine.world)
    with engine.session():
        task = engine.prepare(experiment)
        if not engine.records:
            return _follow(engine, task, Clock())
        return _go_on(engine, task, store, record, listen)


def begun(store: Store, world: World, experiment: Experiment) -> dict[str, Any] | None:
    """Return the run that this launch has begun and not finished, if there is one.

    A name may be used again for another launch, so the run must be younger than the launcher's process. Slurm's names
    are numbers of jobs, and a job that is started anew has other processes. Where torchrun starts the ranks anew as
    hosts come or go, it does not count that as a restart.
    """
    name = launch_name(world)
    since = 0.0 if world.launcher == "slurm" else psutil.Process(os.getppid()).create_time()
    wanted = experiment.model_dump(mode="json")
    ended = ("finished",) if world.restarts else ("finished", "failed")
    for run in reversed(store.runs()):
        if run["facts"].get("launch", {}).get("name") == name and run["created"] > since - CLOCKS_DIFFER_BY:
            before: int = run["experiment"]["division"]["workers"]
            wanted["division"]["workers"] = before
            if run["status"] in ended or run["experiment"] != wanted:
                return None
            if before != world.size and experiment.machine.on_failure == "end":
                raise ExperimentError(
                    f"run {run['id']} was begun by {before} ranks, but {world.launcher} has started {world.size} in "
                    f'their place; start {before}, or set machine.on_failure = "continue"'
                )
            return dict(run)
    return None


def _go_on(
    engine: Launched, task: Task, store: Store, record: dict[str, Any], listen: Emit, *, abandoned: bool = False
) -> Recorded:
    """Go on with a run; `abandoned` says that this launch has begun it, so that whoever had it is gone."""
    number = record["id"]
    check_same_data(record, task)
    clock, resumption = reopen(store, record, abandoned=abandoned)
    engine.lost = _missing(record, resumption, engine.world)
    outcome = train_recorded(engine, task, store, number, clock, listen, resumption)
    return _close(engine, store, number, outcome)


def _missing(record: dict[str, Any], resumption: Resumption | None, world: World) -> list[Loss]:
    """Return that there are fewer ranks than before; which was lost is in the run's error, if anyone noticed."""
    before = resumption.manifest["workers"] if resumption else record["experiment"]["division"]["workers"]
    why = record["error"].partition("\n")[0] or f"{world.launcher} has started {world.size} ranks after {before}"
    named = re.match(r"worker (\d+) ", why)
    lost = WorkerLost(int(named[1]) if named else before - 1, why)
    return [told(lost, world.size, resumption)] if world.size < before else []


def _close(engine: Launched, store: Store, number: int, outcome: Outcome) -> Recorded:
    record = store.find(number) | {"status": "finished", "result": outcome.result}
    engine.dismiss((str(store.folder), record))
    return store, record, outcome


def _follow(engine: Launched, task: Task, clock: Clock) -> Recorded:
    (folder, record), weights = engine.follow(task, clock)
    return Elsewhere(folder), record, Outcome(record["result"], weights)
