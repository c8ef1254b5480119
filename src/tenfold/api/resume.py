"""`tenfold.resume`: continue an interrupted run."""

from pathlib import Path
from typing import Any

from tenfold import crossval
from tenfold.api.finished import opened, shown, warn
from tenfold.common.files import sweep
from tenfold.engines import choose
from tenfold.engines.launched import recorded as together
from tenfold.engines.launched.engine import Launched
from tenfold.engines.prepare import check_same_data, prepare, settle_device
from tenfold.engines.recording import reopen, train_recorded
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.runs import Clock, Emit, Run, Store
from tenfold.runs.store import FOLD, FOLDED
from tenfold.workers.task import make_network
from tenfold.workers.worker_pool import warm_up


def resume(
    run: str | int | Run = "last",
    *,
    runs: str | Path | None = None,
    listen: Emit | None = None,
    model: Any = None,
    data: Any = None,
    loss: Any = None,
    metrics: Any = None,
    groups: Any = None,
) -> Run:
    """Go on with a run that was interrupted, from its last epoch's checkpoint; it ends with the same weights.

    Of a cross-validation, folds that are finished are not trained again; it is enough that some have failed. What the
    run was given as Python objects (model, data, loss, metrics, groups) has to be given again.
    """
    given = {"model": model, "data": data, "loss": loss, "metrics": metrics, "groups": groups}
    store = run.store if isinstance(run, Run) else Store(runs, create=False)
    record = store.find(run.id if isinstance(run, Run) else run)
    number = record["id"]
    if record["status"] == "finished" and not record["result"].get("failed"):
        unfinished = [one for one in store.runs() if one["status"] in ("interrupted", "failed")]
        open_ones = [str(one["id"]) for one in unfinished if one["kind"] != FOLD]
        others = f"; runs that did not finish: {', '.join(open_ones)}" if open_ones else ""
        raise StoreError(f"run {number} is finished; there is nothing to resume{others}")
    if record["kind"] == FOLD:
        parent = record["facts"]["crossval"]["parent"]
        raise StoreError(
            f"run {number} is a fold of run {parent}; `tenfold resume {parent}` goes on with all its folds"
        )
    again = {field: value for field, value in given.items() if value is not None}
    experiment = Experiment(**record["experiment"]).replace(**again)
    _check_given(experiment, number)
    if record["kind"] == FOLDED:
        return _resume_folds(store, record, experiment, listen or warn)
    engine = choose(experiment)
    if isinstance(engine, Launched):
        return shown(*together.resume(engine, experiment, store, record, listen or warn), experiment)
    experiment = settle_device(experiment)
    task = prepare(experiment)
    check_same_data(record, task)
    make_network(task)  # what cannot be built should leave the run as it is
    clock, resumption = reopen(store, record)
    outcome = train_recorded(engine, task, store, number, clock, listen or warn, resumption)
    return opened(store, number, experiment, outcome)


def _resume_folds(store: Store, record: dict[str, Any], experiment: Experiment, listen: Emit) -> Run:
    experiment = settle_device(experiment)
    crossval.check_folds(experiment)
    if experiment.machine.device == "cpu":
        warm_up()
    number, facts = record["id"], record["facts"]
    with crossval.shared_data(prepare(experiment)) as task:
        check_same_data(record, task)
        sweep(store.path(number, record["title"]))
        clock = Clock(store.reopen(number, epoch=1))  # what happened so far stays
        outcome = crossval.run_cross_validation(task, store, number, facts, clock, listen)
    return opened(store, number, experiment, outcome)


def _check_given(experiment: Experiment, number: int) -> None:
    """Refuse to resume what was given as Python objects and is not given again."""
    fields = {
        "model": experiment.model.name,
        "data": experiment.data.name,
        "groups": experiment.data.groups,
        "loss": experiment.training.loss,
    }
    missing = [field for field, value in fields.items() if isinstance(value, str) and value.startswith("<")]
    if any(isinstance(metric, str) and metric.startswith("<") for metric in experiment.training.metrics):
        missing.append("metrics")
    if missing:
        again = ", ".join(f"{field}=..." for field in missing)
        raise StoreError(f"run {number} was given Python objects; give them again: tenfold.resume({number}, {again})")
