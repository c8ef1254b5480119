"""`tenfold.cross_validate`: train and validate a model on k folds."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, overload

from tenfold import crossval
from tenfold.api.train import finished_run, predict_folds, warn
from tenfold.crossval import CrossValidation
from tenfold.engines import RecordedRun, Resolved, require_no_launcher
from tenfold.engines.prepare import check_new_run, describe
from tenfold.executors.folds import check_jobs, train_on
from tenfold.executors.submitting import LOCAL, Asked, Submitter, executor_named, follow_jobs
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.field_types import Fields
from tenfold.reports.display import follow
from tenfold.reports.loggers import make_loggers
from tenfold.reports.progress import FoldProgress
from tenfold.runs import Emit, Stopwatch, Store
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.store import CROSSVAL, absolute

USUAL_FOLDS = 5


@overload
def cross_validate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    on: Asked | Submitter = LOCAL,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    as_sklearn: Literal[False] = False,
    **fields: Unpack[Fields],
) -> CrossValidation: ...
@overload
def cross_validate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    on: Asked | Submitter = LOCAL,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    as_sklearn: Literal[True],
    **fields: Unpack[Fields],
) -> dict[str, Any]: ...
@fields_by_name
def cross_validate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    on: Asked | Submitter = LOCAL,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    as_sklearn: bool = False,
    **fields: Unpack[Fields],
) -> CrossValidation | dict[str, Any]:
    """Train and validate a model on k folds, and record the whole and every fold as a run.

    `cross_validate(model="lenet5", data="mnist", folds=10, epochs=3)`; the arguments are those of `train`, and 5 folds
    are made where none are asked for. The folds are cut from the training part; the test part is in none of them.
    `callbacks` are called for the folds, their epochs and their metrics, and may stop one fold or all (see
    `tenfold.StopTraining`). `on` says where the folds go, as for `compare`: each is a job, whose events come when it is
    done, so that callbacks may stop only folds that have not begun. With engine = "virtual" the folds are trained here,
    and the time is that of a virtual cluster, as for `simulate`. With `as_sklearn` the dictionary of
    `sklearn.model_selection.cross_validate` is returned.
    """
    require_no_launcher("a cross-validation")
    stopwatch, runs = Stopwatch(), absolute(runs)  # before the user's own code can change the current folder
    experiment = Experiment.given(experiment, **fields)
    if experiment.parallel.folds is None:
        experiment = experiment.replace(folds=USUAL_FOLDS)
    resolved = Resolved.of(crossval.trained_here(experiment))
    experiment = Resolved.of(experiment).experiment if experiment.machine.is_virtual else resolved.experiment
    crossval.check_folds(resolved.experiment)
    submitter = executor_named(on)
    if submitter is None:
        crossval.start_processes_early(resolved.experiment)
    else:
        check_jobs(resolved.experiment)
    with follow(FoldProgress, progress, listen, warn) as shown:
        listener = Callbacks(shown, [*as_list(callbacks), *make_loggers(log, runs)])
        with crossval.shared_data(resolved) as task:
            check_new_run(task)
            splits = crossval.make_fold_splits(task)
            prediction = predict_folds(experiment, task.splits)
            store = Store(runs)
            metadata = describe(task) | ({"executor": submitter.name} if submitter is not None else {})
            number = store.create(experiment, kind=CROSSVAL, metadata=metadata)
            recorded = crossval.CrossValidationRun(
                task, splits, store, number, metadata, stopwatch, listener, prediction
            )
            if submitter is not None:
                follow_jobs(submitter, listener, stopwatch)
                recorded.train_folds = partial(train_on, submitter)
            outcome = recorded.record()
    done = CrossValidation(finished_run(RecordedRun.finished(store, number, outcome, experiment)))
    return done.as_sklearn() if as_sklearn else done
