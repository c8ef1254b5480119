"""How long a cross-validation takes on a virtual cluster, predicted from the time of one of its folds."""

import math
from collections.abc import Callable
from dataclasses import replace

from tenfold.cluster.time_prediction import TimePrediction
from tenfold.crossval.fold import FoldJob, fold_task
from tenfold.crossval.fold_experiment import resolve_fold_mode
from tenfold.crossval.fold_splits import make_fold_splits
from tenfold.crossval.prepare_folds import check_folds
from tenfold.errors import ExperimentError
from tenfold.workers.task import Task


def predict_fold_times(task: Task, predict: Callable[[Task], TimePrediction]) -> TimePrediction:
    """Predict the time of all folds of a task; `predict` predicts a single training.

    One fold is predicted, and multiplied by the turns that the busiest worker takes: all folds one after another where
    every fold uses all workers or every node has its own folds, else a worker's share of them.
    """
    check_folds(task.experiment.replace(engine="auto", cluster=None, link=None))
    mode, workers = resolve_fold_mode(task.experiment), task.workers
    if mode == "fused":
        raise ExperimentError(
            'division.fold_mode = "fused" trains all folds on one device, which a virtual cluster does not have; use '
            "folds-over-workers, data-and-folds or fold-by-fold"
        )
    splits = make_fold_splits(task)
    longest = max(splits, key=lambda split: len(split.train))
    models = len(splits) // workers if mode == "data-and-folds" else len(splits)
    turns = math.ceil(models / workers) if mode == "folds-over-workers" else models
    return _repeated(predict(fold_task(task, FoldJob(0, longest, threads=task.threads))), turns)


def _repeated(one: TimePrediction, turns: int) -> TimePrediction:
    """Return the prediction of `turns` trainings, one after another; workers start once."""
    low, high = one.interval
    start = float(one.times["start"].max())
    return replace(
        one,
        seconds=one.seconds * turns,
        interval=(low * turns, high * turns),
        total=(one.total - start) * turns + start,
        times={kind: seconds if kind == "start" else seconds * turns for kind, seconds in one.times.items()},
        bytes_per_worker=one.bytes_per_worker * turns,
    )
