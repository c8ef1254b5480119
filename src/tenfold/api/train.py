"""`tenfold.train`: train a model and record the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.api.choose_engine import engine_for
from tenfold.api.finished import finished_run, warn
from tenfold.data import FetchProgress
from tenfold.experiment import Experiment
from tenfold.runs import Clock, Emit, Run
from tenfold.runs.callbacks import with_callbacks
from tenfold.runs.store import absolute


def train(
    experiment: Experiment | None = None,
    *,
    runs: str | Path | None = None,
    on: Sequence[object] = (),
    listen: Emit | None = None,
    fetching: FetchProgress | None = None,
    kind: str = "train",
    **fields: Any,
) -> Run:
    """Train a model and record the run.

    The experiment is given as a value, or by its fields: `train(model="lenet5", data="mnist", epochs=3, lr=0.05)`;
    fields next to an experiment change it. `runs` is the folder of the run store ($TENFOLD_RUNS, else "runs"). `on`
    lists callbacks, objects with methods such as `on_epoch_end(event)` (see `tenfold.Callback`), which may stop the
    training by raising `tenfold.StopTraining`. `listen` is called with every event, `fetching` with the progress of a
    download; `kind` is the kind of run that the store records.

    Under torchrun, mpirun or srun all ranks call it, and each is a worker. Rank 0 records; the others get the same
    result and weights, but cannot read events from the store.
    """
    clock, listen = Clock(), with_callbacks(listen or warn, on)
    runs = absolute(runs)  # before the user's own code can change the current folder
    experiment = (experiment or Experiment()).replace(**fields)
    engine = engine_for(experiment, clock, listen)
    return finished_run(engine.train(experiment, runs=runs, kind=kind, clock=clock, listen=listen, fetching=fetching))
