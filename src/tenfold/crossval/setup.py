"""From a task with folds to a recorded cross-validation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tenfold.crossval import layout as plan
from tenfold.crossval.crossval_run import CrossValidationRun
from tenfold.crossval.modes import choose_mode
from tenfold.data import pool
from tenfold.engines import Outcome, choose
from tenfold.engines.recording import execute
from tenfold.errors import DataError
from tenfold.experiment import Experiment
from tenfold.runs import Clock, Emit, Store
from tenfold.workers.snapshot import PARTS, Resident, in_shared_memory
from tenfold.workers.task import Task
from tenfold.workers.worker_pool import warm_up


def ready(experiment: Experiment) -> None:
    """Refuse what cannot be cross-validated before anything starts, and let processes get ready meanwhile."""
    plan.check(experiment)
    choose_mode(experiment)
    choose(plan.of_one_fold(experiment, "fold"))
    if plan.mode_of(experiment) != "fold-by-fold":
        warm_up()


@contextmanager
def resident(task: Task) -> Iterator[Task]:
    """Put the data where all processes see them, once: in shared memory; a validation part goes back to the rest."""
    splits = task.splits
    if splits.validation is not None:
        if splits.groups is not None:
            raise DataError(
                "data.groups belong to the training part, which a cross-validation pools with the validation part; "
                "give the data without a validation part"
            )
        splits = replace(splits, train=pool(splits.train, splits.validation), validation=None)
    on_cpu = task.experiment.machine.device == "cpu"
    task = replace(task, splits=in_shared_memory(splits) if on_cpu else splits)
    del splits
    try:
        yield task
    finally:
        for part in (getattr(task.splits, name) for name in PARTS):
            if isinstance(part, Resident):
                part.shared.close()


def carry_out(task: Task, store: Store, run: int, facts: dict[str, Any], clock: Clock, listen: Emit) -> Outcome:
    """Train all folds that are not finished yet, with everything recorded, however it ends."""
    whole = CrossValidationRun(store, run, facts, listen)
    try:
        return execute(whole, task, store, run, clock, listen)
    except BaseException:
        store.update(run, result=whole.known())
        raise
