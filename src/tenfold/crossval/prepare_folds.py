"""What happens before the first fold: checks, the start of processes, and data in shared memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tenfold.crossval.core_slots import share_cores
from tenfold.crossval.fold_experiment import fold_experiment, resolve_fold_mode, trains_folds_together
from tenfold.data import Splits, join_parts
from tenfold.engines import choose, validate
from tenfold.engines.processes import Processes
from tenfold.engines.validate import validate_fused
from tenfold.errors import DataError, ExperimentError
from tenfold.experiment import Experiment
from tenfold.training.measures import require_direction
from tenfold.workers.pool.fork_server import start_server_for
from tenfold.workers.pool.snapshot import SharedTensors, in_shared_memory
from tenfold.workers.task import Task


def check_folds(experiment: Experiment) -> None:
    """Raise an ExperimentError if the experiment cannot be cross-validated."""
    if experiment.division.folds is None:
        raise ExperimentError("division.folds is not set; set the number of folds, such as folds = 10")
    if experiment.data.validation_fraction:
        raise ExperimentError(
            f"data.validation_fraction = {experiment.data.validation_fraction:g}: each fold is validated on the "
            "samples that it does not train on; set it to 0"
        )
    if experiment.machine.engine in ("virtual", "launched"):
        raise ExperimentError(
            f'machine.engine = "{experiment.machine.engine}" does not support cross-validation; use "auto"'
        )
    for metric in experiment.training.metric_names[:1]:
        require_direction(experiment.training, metric, "the best fold")
    mode = resolve_fold_mode(experiment)
    if mode == "folds-over-workers" and experiment.machine.device != "cpu":
        raise ExperimentError(
            f'division.fold_mode = "{mode}" is supported on CPU only, but machine.device = '
            f'"{experiment.machine.device}"; use fused or fold-by-fold'
        )
    one = fold_experiment(experiment, "fold")
    if trains_folds_together(experiment):
        validate_fused(one)
        one = one.replace(engine="fused")
    validate(one, None)


def start_processes_early(experiment: Experiment) -> None:
    """Start the server that worker processes are forked from, if any fold needs one; it imports torch meanwhile.

    Raise MachineError where worker processes cannot be started.
    """
    if trains_folds_together(experiment):
        return
    by_fold = resolve_fold_mode(experiment) == "fold-by-fold"
    if by_fold and not isinstance(choose(fold_experiment(experiment, "fold")), Processes):
        return
    start_server_for(
        experiment.division.workers if by_fold else share_cores(experiment, _count_models(experiment)).at_once
    )


def _count_models(experiment: Experiment) -> int:
    """Return how many models are trained: one for each fold, of each node where every node has its own."""
    division = experiment.division
    nodes = division.workers if resolve_fold_mode(experiment) == "data-and-folds" else 1
    return (division.folds or 2) * division.fold_repeats * nodes


@contextmanager
def shared_data(task: Task) -> Iterator[Task]:
    """Give the task with its data in memory that all processes share, and its validation part joined to the training
    part."""
    task = replace(task, splits=_with_validation_joined(task.splits))
    if task.experiment.machine.device == "cpu":
        task = replace(task, splits=in_shared_memory(task.splits))
    try:
        yield task
    finally:
        for part in task.splits.parts.values():
            if isinstance(part, SharedTensors):
                part.shared.close()


def _with_validation_joined(splits: Splits) -> Splits:
    """Return the splits with the samples of the validation part at the end of the training part."""
    if splits.validation is None:
        return splits
    if splits.groups is not None:
        raise DataError(
            "data.groups cover the training part only, but cross-validation joins the validation part to it; "
            "give the data without a validation part"
        )
    return replace(splits, train=join_parts(splits.train, splits.validation), validation=None)
