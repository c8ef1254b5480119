"""The functions behind the public names: from an experiment to a recorded run, and back from the store."""

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from tenfold.data import Progress as Fetching
from tenfold.engines import Outcome, Resumption, choose
from tenfold.engines.prepare import describe, prepare
from tenfold.engines.record import execute
from tenfold.errors import StoreError
from tenfold.experiment import Experiment
from tenfold.files import sweep, write_atomically
from tenfold.models import build
from tenfold.report.trace import chrome_trace
from tenfold.runs import Clock, Emit, Event, Lifecycle, Run, Store, checkpoint


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
    """
    clock = Clock()
    experiment = (experiment or Experiment()).replace(**fields)
    engine = choose(experiment)
    task = prepare(experiment, fetching)
    store = Store(runs)
    number = store.create(experiment, kind=kind, facts=describe(task))
    outcome = execute(engine, task, store, number, clock, listen or _warn)
    return _opened(store, number, experiment, outcome)


def resume(
    run: str | int | Run = "last",
    *,
    runs: str | Path | None = None,
    listen: Emit | None = None,
    model: Any = None,
    data: Any = None,
    loss: Any = None,
    metrics: Any = None,
) -> Run:
    """Go on with a run that was interrupted, from its last epoch's checkpoint; it ends with the same weights.

    What the run was given as Python objects (model, data, loss, metrics) has to be given again.
    """
    given = {"model": model, "data": data, "loss": loss, "metrics": metrics}
    store = run.store if isinstance(run, Run) else Store(runs, create=False)
    record = store.find(run.id if isinstance(run, Run) else run)
    number = record["id"]
    if record["status"] == "finished":
        open_ones = [str(one["id"]) for one in store.runs() if one["status"] in ("interrupted", "failed")]
        others = f"; runs that did not finish: {', '.join(open_ones)}" if open_ones else ""
        raise StoreError(f"run {number} is finished; there is nothing to resume{others}")
    again = {field: value for field, value in given.items() if value is not None}
    experiment = Experiment(**record["experiment"]).replace(**again)
    _check_given(experiment, number)
    engine = choose(experiment)
    folder = store.path(number, record["title"]) / "checkpoint"
    manifest = checkpoint.latest(folder)
    task = prepare(experiment)
    if record["facts"]["data"]["fingerprint"] != task.splits.fingerprint():
        raise StoreError(f"the data of run {number} have changed since it began; start a new one with `tenfold train`")
    sweep(folder.parent)
    clock = Clock(store.reopen(number, epoch=manifest["epoch"] if manifest else 0))
    resumption = Resumption(folder, manifest) if manifest else None
    outcome = execute(engine, task, store, number, clock, listen or _warn, resumption)
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
    shapes = run.facts["data"]
    network = build(run.experiment.model, tuple(shapes["shape"]), shapes["outputs"], seed=run.experiment.training.seed)
    network.load_state_dict(run.weights)
    return network.eval()


def _opened(store: Store, number: int, experiment: Experiment, outcome: Outcome) -> Run:
    """Return the run that has just finished, as it is even where the store could not take it all."""
    record = store.find(number) | {"status": "finished", "result": outcome.result}
    run = Run(store, record, build=load_model, experiment=experiment, weights=outcome.weights)
    with suppress(OSError):  # the trace is a view of events that are recorded anyway
        write_atomically(run.path / "trace.json", json.dumps(chrome_trace(run.events())).encode())
    return run


def _check_given(experiment: Experiment, number: int) -> None:
    """Refuse to resume what was given as Python objects and is not given again."""
    fields = {"model": experiment.model.name, "data": experiment.data.name, "loss": experiment.training.loss}
    missing = [field for field, value in fields.items() if isinstance(value, str) and value.startswith("<")]
    if any(isinstance(metric, str) and metric.startswith("<") for metric in experiment.training.metrics):
        missing.append("metrics")
    if missing:
        again = ", ".join(f"{field}=..." for field in missing)
        raise StoreError(f"run {number} was given Python objects; give them again: tenfold.resume({number}, {again})")


def _warn(event: Event) -> None:
    """Pass warnings on to whoever listens to nothing else."""
    if isinstance(event, Lifecycle) and event.what == "warning":
        warnings.warn(event.detail, stacklevel=2)
