"""`tenfold.train`: train a model and record the run."""

from pathlib import Path
from typing import Any

from tenfold.api.finished import opened, shown, warn
from tenfold.data import Progress as Fetching
from tenfold.engines import choose
from tenfold.engines.launched import recorded as together
from tenfold.engines.launched.engine import Launched
from tenfold.engines.prepare import describe, prepare, settle_device
from tenfold.engines.recording import train_recorded
from tenfold.experiment import Experiment
from tenfold.runs import Clock, Emit, Run, Store


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
            engine, experiment, runs=runs, clock=clock, listen=listen or warn, fetching=fetching, kind=kind
        )
        return shown(*recorded, experiment)
    experiment = settle_device(experiment)
    task = prepare(experiment, fetching)
    store = Store(runs)
    number = store.create(experiment, kind=kind, facts=describe(task))
    outcome = train_recorded(engine, task, store, number, clock, listen or warn)
    return opened(store, number, experiment, outcome)
