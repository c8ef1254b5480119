"""`tenfold.train`, `tenfold.cross_validate` and `tenfold.resume`: train models and record the runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack, overload

from tenfold import crossval
from tenfold.cluster.time_prediction import TimePrediction
from tenfold.common.files import remove_partial_files
from tenfold.common.imports import remember_named, warn_user
from tenfold.crossval import CrossValidation
from tenfold.data import Splits
from tenfold.engines import RecordedRun, Resolved, require_no_launcher, resolve
from tenfold.engines.prepare import check_new_run, check_same_data, describe, prepare
from tenfold.errors import StopTraining, StoreError
from tenfold.executors.folds import check_jobs, train_on
from tenfold.executors.jobs import Job
from tenfold.executors.submitting import LOCAL, Asked, Submitter, executor_named, follow_jobs, recorded_executor
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.field_types import Fields
from tenfold.launchers import detect_world
from tenfold.machine.metadata import module_digests
from tenfold.prediction.ledger import Ledger
from tenfold.reports.display import Display, is_watched
from tenfold.reports.loggers import make_loggers
from tenfold.reports.progress import FoldProgress, RunProgress
from tenfold.runs import Run, Store
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.events import Emit, Event, Note, Stopwatch, Warned, WorkerDropped
from tenfold.runs.store import CROSSVAL, FOLD, MEMBERS, SCRIPT, SWEEP, absolute
from tenfold.workers.task import Task

KIND = "train"
"""The kind of run that the store records."""
USUAL_FOLDS = 5


class Shown(TypedDict, total=False):
    """The arguments of `train` for following a run."""

    callbacks: Sequence[object]
    log: str | Sequence[str] | None
    listen: Emit | None
    progress: bool | None


@fields_by_name
def train(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    on: Asked | Submitter = LOCAL,
    **fields: Unpack[Fields],
) -> Run:
    """Train a model and record the run.

    Pass an experiment, or its fields: `train(model="lenet5", data="mnist", epochs=3, lr=0.05)`; fields passed
    with an experiment change it. `runs` is the folder of the run store (default: $TENFOLD_RUNS, or "runs").
    `callbacks` are objects with methods such as `on_epoch_end(event)` (see `tenfold.Callback`), which may stop the
    training by raising `tenfold.StopTraining`. `log` is "tensorboard", "mlflow" or both, to write the run's numbers
    there, too. `listen` is called with every event. `progress` shows the epochs; by default on a terminal and in a
    notebook.

    Under torchrun, mpirun or srun all ranks call `train`, and each is a worker. Rank 0 records the run; the others get
    the same result and weights, but cannot read events from the store. With `on="ray"` each worker is a Ray actor, on
    this machine or a cluster; callbacks receive the events, but cannot stop the training.
    """
    experiment = Experiment.given(experiment, **fields)
    shown: Shown = {"callbacks": callbacks, "log": log, "listen": listen, "progress": progress}
    submitter = executor_named(on) if on != LOCAL else None
    if submitter is not None:
        return _train_elsewhere(experiment, submitter, absolute(runs), **shown)
    return finished_run(train_and_record(experiment, runs=runs, **shown))


def _train_elsewhere(
    experiment: Experiment,
    submitter: Submitter,
    runs: Path,
    *,
    stopwatch: Stopwatch | None = None,
    resumes: int | None = None,
    force: bool = False,
    **shown: Unpack[Shown],
) -> Run:
    """Train or resume a run with ranks that an executor starts; they record it."""
    require_no_launcher("a training on an executor")
    with listening(lambda: RunProgress(experiment), runs, **shown) as listener:

        def hear(event: Event) -> None:
            with suppress(StopTraining):
                listener(event)

        follow_jobs(submitter, hear, stopwatch or Stopwatch())
        number = submitter.train(experiment, KIND, runs, hear, resumes=resumes, force=force)
    store = Store(runs)
    return Run(store, store.find(number), experiment=experiment)


def train_and_record(
    experiment: Experiment, *, runs: str | Path | None, kind: str = KIND, **shown: Unpack[Shown]
) -> RecordedRun:
    """Train as `train` does, record the run with this kind, and return it with its data."""
    stopwatch, runs = Stopwatch(), absolute(runs)  # before the user's own code can change the current folder
    with listening(lambda: RunProgress(experiment), runs, **shown) as listener:
        resolved = resolve(experiment, noting(listener, stopwatch))
        recorded: RecordedRun = resolved.engine.train(
            resolved, runs=runs, kind=kind, stopwatch=stopwatch, listen=listener
        )
    if resolved.engine.predictable:
        Ledger.score(finished_run(recorded))
    return recorded


@contextmanager
def listening(
    make_display: Callable[[], Display],
    runs: Path,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
) -> Iterator[Emit]:
    """Yield the listener of a run: the caller's, a display, callbacks and loggers; without any, it shows warnings."""
    shows = progress if progress is not None else listen is None and is_watched()
    with make_display() if shows else nullcontext() as display:
        heard = both(display.listen, listen) if display is not None else listen or warn
        if callbacks != () or log is not None or listen is not None:  # each may ask to stop
            yield Callbacks(heard, [*as_list(callbacks), *make_loggers(log, runs)])
        else:
            yield heard


def both(first: Callable[[Any], None], other: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """Return a function that calls both, or the first if there is no second."""

    def call(value: Any) -> None:
        first(value)
        if other is not None:
            other(value)

    return call


def noting(listen: Emit, stopwatch: Stopwatch) -> Callable[[str], None]:
    """Return a function that emits texts as events."""
    last = [""]

    def note(text: str) -> None:
        if text != last[0]:
            last[0] = text
            listen(Note(at=stopwatch.now(), text=text))

    return note


def finished_run(recorded: RecordedRun) -> Run:
    """Return a run that has just finished, with its weights and its result."""
    return Run(
        recorded.store,
        recorded.record,
        experiment=recorded.experiment,
        weights=recorded.outcome.weights,
        result=recorded.outcome.result,
    )


def warn(event: Event) -> None:
    """Show warning events as Python warnings, if there is no other listener."""
    if isinstance(event, Warned | WorkerDropped):
        concerns_worker = isinstance(event, Warned) and event.concerns_worker
        warn_user(f"worker {event.worker}: {event.text}" if concerns_worker else event.text)


def resume(
    run: str | int | Run = "last",
    *,
    runs: str | Path | None = None,
    force: bool = False,
    trust: bool = False,
    on: Asked | Submitter | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    model: Any = None,
    data: Any = None,
    loss: Any = None,
    metrics: Any = None,
    groups: Any = None,
    collate: Any = None,
    optimizer: Any = None,
    schedule: Any = None,
) -> Run:
    """Resume an interrupted run from its last checkpoint; the final weights are the same as without interruption.

    In a cross-validation, finished folds are not trained again, and failed folds are trained, too. Python objects
    (model, data, loss, metrics, groups, collate, optimizer, schedule) must be passed again. The same holds for import
    paths that you have not named in a command before, because importing runs code, unless `trust` is set. `force` takes
    over the run even if another process seems to work on it; if that process is still alive, it stops before its next
    write. `on` is where the run continues, as in `train`, `cross_validate` and `sweep`; the default is the same
    executor as before, if it has a name. Jobs of folds and trials that still run there are awaited.
    """
    given = {"model": model, "data": data, "loss": loss, "metrics": metrics, "groups": groups}
    given |= {"collate": collate, "optimizer": optimizer, "schedule": schedule}
    store = run.store if isinstance(run, Run) else Store(runs, create=False)
    record = store.find(run.id if isinstance(run, Run) else run)
    number = record["id"]
    _check_resumable(store, record)
    resume_fields = {field: value for field, value in given.items() if value is not None}
    trust = trust or (isinstance(run, Run) and run.is_trusted)
    recorded_experiment = Run(store, record, trust=trust).experiment
    experiment = recorded_experiment.replace(**resume_fields).with_trusted_imports()
    _check_given(experiment, number)
    remember_named(Experiment(**resume_fields).import_paths)
    _warn_of_changes(experiment, record)
    shown: Shown = {"callbacks": callbacks, "log": log, "listen": listen, "progress": progress}
    if record["kind"] == SWEEP:
        from tenfold.api.sweep import continue_sweep

        return continue_sweep(store, record, experiment, on=on, force=force, **shown).run
    submitter = executor_named(on or executor_to_resume(record["kind"], record["metadata"]))
    resume_recorded = continue_cross_validation if record["kind"] == CROSSVAL else _resume_training
    return resume_recorded(store, record, experiment, submitter, force=force, **shown)


def continue_cross_validation(
    store: Store,
    record: dict[str, Any],
    experiment: Experiment,
    submitter: Submitter | None,
    *,
    force: bool = False,
    **shown: Unpack[Shown],
) -> Run:
    """Train the folds of a recorded cross-validation that are not finished."""
    number = record["id"]

    def continue_recorded(task: Task, _experiment: Experiment) -> ClaimedRun:
        check_same_data(record, task)
        stopwatch = Stopwatch(store.claim_and_restart(number, epoch=1, force=force))  # the events so far stay
        remove_partial_files(store.path(number, record["title"]))
        return ClaimedRun(store, number, record["metadata"], stopwatch)

    with listening(FoldProgress, store.folder, **shown) as listener:
        return _run_folds(experiment, submitter, listener, continue_recorded)


def _resume_training(
    store: Store,
    record: dict[str, Any],
    experiment: Experiment,
    submitter: Submitter | None,
    *,
    force: bool,
    **shown: Unpack[Shown],
) -> Run:
    """Continue a recorded training from its checkpoint, here or with the ranks that an executor starts."""
    stopwatch = Stopwatch(store.elapsed(record["id"]))
    if submitter is not None:
        number = record["id"]
        return _train_elsewhere(
            experiment, submitter, store.folder, stopwatch=stopwatch, resumes=number, force=force, **shown
        )
    with listening(lambda: RunProgress(experiment), store.folder, **shown) as listener:
        resolved = resolve(experiment, noting(listener, stopwatch))
        recorded = resolved.engine.resume(resolved, store, record, listener, force=force)
    return finished_run(recorded)


def executor_to_resume(kind: str, metadata: Mapping[str, Any]) -> str:
    """Return the name of the executor that resumes a run by default: the one that trained it.

    A launcher's ranks resume a training themselves, and this process resumes one row of a comparison itself.
    """
    world = detect_world()
    trained_here = kind not in (KIND, CROSSVAL, SWEEP) or (kind == KIND and world is not None and world.size > 1)
    return LOCAL if trained_here else recorded_executor(metadata)


class CrossValidationFields(Fields, Shown, total=False):
    """The arguments of a cross-validation."""

    runs: str | Path | None
    on: Asked | Submitter


@overload
def cross_validate(
    experiment: Experiment | None = None, *, as_sklearn: Literal[False] = False, **fields: Unpack[CrossValidationFields]
) -> CrossValidation: ...
@overload
def cross_validate(
    experiment: Experiment | None = None, *, as_sklearn: Literal[True], **fields: Unpack[CrossValidationFields]
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
    """Train and validate a model on k folds, and record the cross-validation and every fold as a run.

    `cross_validate(model="lenet5", data="mnist", folds=10, epochs=3)`; the arguments are as in `train`, and the default
    is 5 folds. The folds divide the training part; the test part is in none of them. `callbacks` are called for the
    folds, their epochs and their metrics, and may stop one fold or all (see `tenfold.StopTraining`). `on` is where the
    folds are trained, as in `compare`: each is a job whose events arrive when it has finished, so callbacks can stop
    only folds that have not started. With engine = "virtual" the folds are trained here, and the time is predicted for
    a virtual cluster, as in `simulate`. With `as_sklearn` the dictionary of `sklearn.model_selection.cross_validate` is
    returned.
    """
    require_no_launcher("a cross-validation")
    stopwatch, runs = Stopwatch(), absolute(runs)  # before the user's own code can change the current folder
    experiment = Experiment.given(experiment, **fields)
    if experiment.parallel.folds is None:
        experiment = experiment.replace(folds=USUAL_FOLDS)
    submitter = executor_named(on)

    def begin(task: Task, with_defaults: Experiment) -> ClaimedRun:
        check_new_run(task)
        metadata = describe(task) | ({"executor": submitter.name} if submitter is not None else {})
        store = Store(runs)
        number = store.create(with_defaults, kind=CROSSVAL, metadata=metadata)
        return ClaimedRun(store, number, metadata, stopwatch)

    with listening(FoldProgress, runs, callbacks, log, listen, progress) as listener:
        done = CrossValidation(_run_folds(experiment, submitter, listener, begin))
    return done.as_sklearn() if as_sklearn else done


class ClaimedRun(NamedTuple):
    """The run of a cross-validation that this process trains."""

    store: Store
    number: int
    metadata: dict[str, Any]
    stopwatch: Stopwatch


def _run_folds(
    experiment: Experiment,
    submitter: Submitter | None,
    listen: Emit,
    begin_or_continue: Callable[[Task, Experiment], ClaimedRun],
) -> Run:
    """Train the unfinished folds; `begin_or_continue` claims their run, a new or a recorded one.

    Its arguments are the task, and the experiment with its defaults.
    """
    resolved = Resolved.of(crossval.trained_here(experiment))
    experiment = Resolved.of(experiment).experiment if experiment.machine.is_virtual else resolved.experiment
    crossval.check_folds(resolved.experiment)
    if submitter is None:
        crossval.start_processes_early(resolved.experiment)
    else:
        check_jobs(resolved.experiment)
    with crossval.shared_data(resolved) as task, submitter or nullcontext():
        splits = crossval.make_fold_splits(task)
        prediction = _predict_folds(experiment, task.splits)
        if submitter is not None:
            follow_jobs(submitter, listen, Stopwatch())
            submitter.open(Job.of(task.experiment, FOLD, 0).cores)  # nothing is recorded if that fails
        store, number, metadata, stopwatch = begin_or_continue(task, experiment)
        running = crossval.CrossValidationRun(task, splits, store, number, metadata, stopwatch, listen, prediction)
        if submitter is not None:
            running.train_folds = partial(train_on, submitter)
        outcome = running.record()
    return finished_run(RecordedRun.finished(store, number, outcome, experiment))


def _predict_folds(experiment: Experiment, splits: Splits) -> TimePrediction | None:
    """Return the predicted time of all folds on the experiment's virtual cluster; None if it has none."""
    if not experiment.machine.is_virtual:
        return None
    from tenfold.prediction.task_prediction import predict_task

    return crossval.predict_fold_times(prepare(Resolved.of(experiment), splits=splits), predict_task)


def _check_resumable(store: Store, record: dict[str, Any]) -> None:
    """Raise StoreError for a run that is damaged, finished, or a fold of another run."""
    number = record["id"]
    if record["kind"] == SCRIPT:
        raise StoreError(f"run {number} is a simulated script and cannot be resumed; simulate it again")
    if not record["experiment"] or "data" not in record["metadata"]:
        raise StoreError(f"run {number} cannot be resumed: {'; '.join(record['problems'])}")
    if record["status"] == "finished" and not record["result"].get("failed"):
        unfinished = [run for run in store.runs() if run["status"] in ("interrupted", "failed")]
        open_ones = [str(item["id"]) for item in unfinished if item["kind"] not in MEMBERS]
        others = f"; runs that did not finish: {', '.join(open_ones)}" if open_ones else ""
        raise StoreError(f"run {number} is finished; there is nothing to resume{others}")
    if record["kind"] == FOLD:
        parent = record["metadata"]["crossval"]["parent"]
        raise StoreError(f"run {number} is a fold of run {parent}; `tenfold resume {parent}` resumes all of its folds")


def _warn_of_changes(experiment: Experiment, record: dict[str, Any]) -> None:
    """Warn if a module that the experiment names has changed; changed data raise an error later."""
    before = record["metadata"].get("user_files", {})
    for name, digest in module_digests(experiment.import_paths).items():
        if before.get(name, digest) != digest:
            warn_user(
                f"the module {name} has changed since run {record['id']} began; the rest is trained with the new one"
            )


def _check_given(experiment: Experiment, number: int) -> None:
    """Raise StoreError if the run was given Python objects that were not passed again."""
    missing = experiment.unrecorded_fields
    if missing:
        again = ", ".join(f"{field}=..." for field in missing)
        raise StoreError(f"run {number} was given Python objects; pass them again: tenfold.resume({number}, {again})")
