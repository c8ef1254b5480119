"""`tenfold.train`: train a model and record the run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from tenfold import crossval
from tenfold.api.open_run import load_model
from tenfold.common.files import sweep
from tenfold.common.imports import warn_user
from tenfold.common.trust import remember_named
from tenfold.data import FetchProgress
from tenfold.engines import RecordedRun, resolve
from tenfold.engines.choose import resolve_defaults
from tenfold.engines.prepare import check_same_data, prepare, user_modules
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.experiment.experiment import fields_by_name
from tenfold.experiment.field_types import Fields
from tenfold.reports.display import follow
from tenfold.reports.loggers import make_loggers
from tenfold.reports.progress import FoldProgress, RunProgress
from tenfold.runs import Emit, Event, Note, Run, Stopwatch, Store, Warned, WorkerDropped
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.store import CROSSVAL, FOLD, absolute


@fields_by_name
def train(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    callbacks: Sequence[object] = (),
    log: str | Sequence[str] | None = None,
    listen: Emit | None = None,
    progress: bool | None = None,
    fetching: FetchProgress | None = None,
    kind: str = "train",
    **fields: Unpack[Fields],
) -> Run:
    """Train a model and record the run.

    The experiment is given as a value, or by its fields: `train(model="lenet5", data="mnist", epochs=3, lr=0.05)`;
    fields next to an experiment change it. `runs` is the folder of the run store ($TENFOLD_RUNS, else "runs").
    `callbacks` are objects with methods such as `on_epoch_end(event)` (see `tenfold.Callback`), which may stop the
    training by raising `tenfold.StopTraining`; `log`, "tensorboard" or "mlflow" or both, also writes the run's numbers
    there. `listen` is called with every event, `fetching` with the progress of a download. `progress` shows the epochs;
    by default on a terminal and in a notebook, but not in logs. `kind` is the kind of run that the store records.

    Under torchrun, mpirun or srun all ranks call it, and each is a worker. Rank 0 records; the others get the same
    result and weights, but cannot read events from the store.
    """
    stopwatch, runs = Stopwatch(), absolute(runs)  # before the user's own code can change the current folder
    experiment = Experiment.given(experiment, **fields)
    with follow(lambda: RunProgress(experiment), progress, listen, warn) as shown:
        listener = shown
        if callbacks != () or log is not None or listen is not None:  # each may ask to stop
            listener = Callbacks(shown, [*as_list(callbacks), *make_loggers(log, runs)])
        resolved = resolve(experiment, noting(listener, stopwatch))
        recorded = resolved.engine.train(
            resolved.experiment, runs=runs, kind=kind, stopwatch=stopwatch, listen=listener, fetching=fetching
        )
    return finished_run(recorded)


def noting(listen: Emit, stopwatch: Stopwatch) -> Callable[[str], None]:
    """Return a function that passes texts on as events."""
    return lambda text: listen(Note(at=stopwatch.now(), text=text))


def finished_run(recorded: RecordedRun) -> Run:
    """Return a run that has just ended, with its weights and its result."""
    return Run(
        recorded.store,
        recorded.record,
        build=load_model,
        experiment=recorded.experiment,
        weights=recorded.outcome.weights,
        result=recorded.outcome.result,
    )


def warn(event: Event) -> None:
    """Show warning events as Python warnings, where no other listener is given."""
    if isinstance(event, Warned | WorkerDropped):
        concerns_worker = isinstance(event, Warned) and event.concerns_worker
        warn_user(f"worker {event.worker}: {event.text}" if concerns_worker else event.text)


def resume(
    run: str | int | Run = "last",
    *,
    runs: str | Path | None = None,
    force: bool = False,
    trust: bool = False,
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
    """Resume an interrupted run from the checkpoint of its last completed epoch; it ends with the same weights.

    The finished folds of a cross-validation are not trained again, and one whose folds failed can be resumed, too. What
    the run was given as Python objects (model, data, loss, metrics, groups, collate, optimizer, schedule) has to be
    given again, and so has everything that the run names by import paths which your own commands have not named before,
    unless `trust` is set: importing runs code. `force` takes over the run even if another process seems to work on it;
    if that process is still alive, it stops before its next write.
    """
    given = {"model": model, "data": data, "loss": loss, "metrics": metrics, "groups": groups}
    given |= {"collate": collate, "optimizer": optimizer, "schedule": schedule}
    store = run.store if isinstance(run, Run) else Store(runs, create=False)
    record = store.find(run.id if isinstance(run, Run) else run)
    number = record["id"]
    callbacks = [*as_list(callbacks), *make_loggers(log, store.folder)]
    _check_resumable(store, record)
    again = {field: value for field, value in given.items() if value is not None}
    trust = trust or (isinstance(run, Run) and run.is_trusted)
    before = Run(store, record, build=load_model, trust=trust).experiment
    experiment = before.replace(**again).with_trusted_imports()
    _check_given(experiment, number)
    remember_named(Experiment(**again).import_paths)
    _warn_of_changes(experiment, record)
    folded = record["kind"] == CROSSVAL
    with follow(lambda: FoldProgress() if folded else RunProgress(experiment), progress, listen, warn) as shown:
        listener = Callbacks(shown, callbacks)
        if folded:
            return _resume_folds(store, record, experiment, listener, force=force)
        resolved = resolve(experiment, noting(listener, Stopwatch()))
        recorded = resolved.engine.resume(resolved.experiment, store, record, listener, force=force)
    return finished_run(recorded)


def _resume_folds(store: Store, record: dict[str, Any], experiment: Experiment, listen: Emit, *, force: bool) -> Run:
    experiment = resolve_defaults(experiment)
    crossval.check_folds(experiment)
    crossval.start_processes_early(experiment)
    number, facts = record["id"], record["facts"]
    with crossval.shared_data(prepare(experiment)) as task:
        check_same_data(record, task)
        splits = crossval.make_fold_splits(task)
        stopwatch = Stopwatch(store.claim_and_restart(number, epoch=1, force=force))  # the events so far stay
        sweep(store.path(number, record["title"]))
        outcome = crossval.CrossValidationRun(task, splits, store, number, facts, stopwatch, listen).record()
    return finished_run(RecordedRun.finished(store, number, outcome, experiment))


def _check_resumable(store: Store, record: dict[str, Any]) -> None:
    """Raise StoreError for a run that is damaged, finished, or a fold of another."""
    number = record["id"]
    if not record["experiment"] or "data" not in record["facts"]:
        raise StoreError(f"run {number} cannot be resumed: {'; '.join(record['problems'])}")
    if record["status"] == "finished" and not record["result"].get("failed"):
        unfinished = [run for run in store.runs() if run["status"] in ("interrupted", "failed")]
        open_ones = [str(one["id"]) for one in unfinished if one["kind"] != FOLD]
        others = f"; runs that did not finish: {', '.join(open_ones)}" if open_ones else ""
        raise StoreError(f"run {number} is finished; there is nothing to resume{others}")
    if record["kind"] == FOLD:
        parent = record["facts"]["crossval"]["parent"]
        raise StoreError(f"run {number} is a fold of run {parent}; `tenfold resume {parent}` resumes all of its folds")


def _warn_of_changes(experiment: Experiment, record: dict[str, Any]) -> None:
    """Warn if a module that the experiment names has changed; data that have changed are refused later."""
    before = record["facts"].get("user_files", {})
    for name, digest in user_modules(experiment).items():
        if before.get(name, digest) != digest:
            warn_user(
                f"the module {name} has changed since run {record['id']} began; the rest is trained with the new one"
            )


def _check_given(experiment: Experiment, number: int) -> None:
    """Raise StoreError if the run was given Python objects that are not given again."""
    missing = experiment.unrecorded_fields
    if missing:
        again = ", ".join(f"{field}=..." for field in missing)
        raise StoreError(f"run {number} was given Python objects; give them again: tenfold.resume({number}, {again})")
