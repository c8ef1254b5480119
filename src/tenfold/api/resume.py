"""`tenfold.resume`: continue an interrupted run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold import crossval
from tenfold.api.open_run import load_model
from tenfold.api.train import engine_for, finished_run, warn
from tenfold.common.files import sweep
from tenfold.common.trust import remember_named
from tenfold.common.user_code import warn_user
from tenfold.engines import RecordedRun
from tenfold.engines.prepare import prepare, resolve_defaults
from tenfold.engines.run_facts import check_same_data, own_modules
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.report.live.fold_progress import FoldProgress
from tenfold.report.live.follow import follow
from tenfold.report.live.run_progress import RunProgress
from tenfold.report.loggers.make_loggers import make_loggers
from tenfold.runs import Emit, Run, Stopwatch, Store
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.store import CROSSVAL, FOLD


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
        engine = engine_for(experiment, Stopwatch(), listener)
        recorded = engine.resume(experiment, store, record, listener, force=force)
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
        unfinished = [one for one in store.runs() if one["status"] in ("interrupted", "failed")]
        open_ones = [str(one["id"]) for one in unfinished if one["kind"] != FOLD]
        others = f"; runs that did not finish: {', '.join(open_ones)}" if open_ones else ""
        raise StoreError(f"run {number} is finished; there is nothing to resume{others}")
    if record["kind"] == FOLD:
        parent = record["facts"]["crossval"]["parent"]
        raise StoreError(f"run {number} is a fold of run {parent}; `tenfold resume {parent}` resumes all of its folds")


def _warn_of_changes(experiment: Experiment, record: dict[str, Any]) -> None:
    """Warn if a module that the experiment names has changed; data that have changed are refused later."""
    before = record["facts"].get("own_files", {})
    for name, digest in own_modules(experiment).items():
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
