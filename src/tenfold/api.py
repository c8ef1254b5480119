"""The functions behind the public names: from an experiment to a recorded run, and back from the store."""

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, overload

from torch import nn

from tenfold import crossval
from tenfold.crossval import CrossValidation
from tenfold.data import Progress as Fetching
from tenfold.engines import Outcome, check_unlaunched, choose, together
from tenfold.engines.base import make_network
from tenfold.engines.launched import Launched
from tenfold.engines.prepare import check_same_data, describe, prepare, settle_device
from tenfold.engines.record import execute, take_up
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.files import sweep, write_atomically
from tenfold.models import build
from tenfold.report.trace import chrome_trace
from tenfold.runs import Clock, Emit, Event, Lifecycle, Run, Store
from tenfold.runs.elsewhere import Elsewhere
from tenfold.runs.store import FOLD, FOLDED

USUAL_FOLDS = 5


def train(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    listen: Emit | None = None,
    fetching: Fetching | None = None,
    kind: str = "train",
    **fields: Any,
) -> Run:
    """Train a model and record the run.

    The experiment is given whole, or by its fields: `train(model="lenet5", data="mnist", epochs=3, lr=0.05)`; fields
    beside an experiment change it. `runs` is the folder of the run store ($TENFOLD_RUNS, else "runs"), `listen` is
    called with every event, `fetching` with the progress of a download; `kind` is what the store files the run under.

    Under torchrun, mpirun or srun all ranks call it, and each is a worker. Rank 0 records; the others get the same
    result and weights, but cannot read events from the store.
    """
    clock = Clock()
    experiment = (experiment or Experiment()).replace(**fields)
    engine = choose(experiment)
    if isinstance(engine, Launched):
        recorded = together.train(
            engine, experiment, runs=runs, clock=clock, listen=listen or _warn, fetching=fetching, kind=kind
        )
        return _shown(*recorded, experiment)
    experiment = settle_device(experiment)
    task = prepare(experiment, fetching)
    store = Store(runs)
    number = store.create(experiment, kind=kind, facts=describe(task))
    outcome = execute(engine, task, store, number, clock, listen or _warn)
    return _opened(store, number, experiment, outcome)


@overload
def cross_validate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    listen: Emit | None = None,
    fetching: Fetching | None = None,
    as_sklearn: Literal[False] = False,
    **fields: Any,
) -> CrossValidation: ...
@overload
def cross_validate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    listen: Emit | None = None,
    fetching: Fetching | None = None,
    as_sklearn: Literal[True],
    **fields: Any,
) -> dict[str, Any]: ...
def cross_validate(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    listen: Emit | None = None,
    fetching: Fetching | None = None,
    as_sklearn: bool = False,
    **fields: Any,
) -> CrossValidation | dict[str, Any]:
    """Train and validate a model on k folds, and record the whole and every fold as a run.

    `cross_validate(model="lenet5", data="mnist", folds=10, epochs=3)`; the arguments are those of `train`, and 5 folds
    are made where none are asked for. The folds are cut from the training part; the test part is in none of them.
    With `as_sklearn` the dictionary of `sklearn.model_selection.cross_validate` is returned.
    """
    check_unlaunched("a cross-validation")
    clock = Clock()
    experiment = settle_device((experiment or Experiment()).replace(**fields))
    if experiment.division.folds is None:
        experiment = experiment.replace(folds=USUAL_FOLDS)
    crossval.ready(experiment)
    with crossval.resident(prepare(experiment, fetching)) as task:
        store = Store(runs)
        facts = describe(task)
        number = store.create(experiment, kind=FOLDED, facts=facts)
        outcome = crossval.carry_out(task, store, number, facts, clock, listen or _warn)
    done = CrossValidation(_opened(store, number, experiment, outcome))
    return done.as_sklearn() if as_sklearn else done


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
        return _resume_folds(store, record, experiment, listen or _warn)
    engine = choose(experiment)
    if isinstance(engine, Launched):
        return _shown(*together.resume(engine, experiment, store, record, listen or _warn), experiment)
    experiment = settle_device(experiment)
    task = prepare(experiment)
    check_same_data(record, task)
    make_network(task)  # what cannot be built should leave the run as it is
    clock, resumption = take_up(store, record)
    outcome = execute(engine, task, store, number, clock, listen or _warn, resumption)
    return _opened(store, number, experiment, outcome)


def _resume_folds(store: Store, record: dict[str, Any], experiment: Experiment, listen: Emit) -> Run:
    experiment = settle_device(experiment)
    crossval.ready(experiment)
    number, facts = record["id"], record["facts"]
    with crossval.resident(prepare(experiment)) as task:
        check_same_data(record, task)
        sweep(store.path(number, record["title"]))
        clock = Clock(store.reopen(number, epoch=1))  # what happened so far stays
        outcome = crossval.carry_out(task, store, number, facts, clock, listen)
    return _opened(store, number, experiment, outcome)


def open_run(run: str | int = "last", *, runs: str | Path | None = None) -> Run:
    """Return a recorded run by its number, its title, or "last"."""
    store = Store(runs, create=False)
    return Run(store, store.find(run), build=load_model)


def list_runs(*, runs: str | Path | None = None) -> list[Run]:
    """Return all recorded runs, oldest first."""
    store = Store(runs, create=False)
    return [Run(store, record, build=load_model) for record in store.runs()]


def load_model(run: Run) -> nn.Module:
    """Return a run's trained network, built anew and given the saved weights."""
    weights, shapes = run.weights, run.facts["data"]
    network = build(run.experiment.model, tuple(shapes["shape"]), shapes["outputs"], seed=run.experiment.training.seed)
    network.load_state_dict(weights)
    return network.eval()


def _opened(store: Store, number: int, experiment: Experiment, outcome: Outcome) -> Run:
    """Return the run that has just finished, as it is even where the store could not take it all."""
    return _shown(store, store.find(number) | {"status": "finished", "result": outcome.result}, outcome, experiment)


def _shown(store: Store, record: dict[str, Any], outcome: Outcome, experiment: Experiment) -> Run:
    run = Run(store, record, build=load_model, experiment=experiment, weights=outcome.weights)
    if isinstance(store, Elsewhere):
        return run
    with suppress(OSError):  # the trace is a view of events that are recorded anyway
        write_atomically(run.path / "trace.json", json.dumps(chrome_trace(run.events(), clock=run.clock)).encode())
    return run


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


def _warn(event: Event) -> None:
    """Pass warnings on to whoever listens to nothing else."""
    if isinstance(event, Lifecycle) and event.what in ("warning", "lost"):
        names = event.worker and event.what == "warning"
        warnings.warn(f"worker {event.worker}: {event.detail}" if names else event.detail, stacklevel=2)
