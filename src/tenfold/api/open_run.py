"""`tenfold.open_run` and `tenfold.list_runs`: read runs from the store."""

from pathlib import Path
from typing import TYPE_CHECKING

from tenfold.runs import Run, Store

if TYPE_CHECKING:
    from torch import nn


def open_run(run: str | int = "last", *, runs: str | Path | None = None) -> Run:
    """Return a recorded run by its number, its title, or "last"."""
    store = Store(runs, create=False)
    return Run(store, store.find(run), build=load_model)


def list_runs(*, runs: str | Path | None = None) -> list[Run]:
    """Return all recorded runs, oldest first."""
    store = Store(runs, create=False)
    return [Run(store, record, build=load_model) for record in store.runs()]


def load_model(run: Run) -> "nn.Module":
    """Return a run's trained network, built anew and given the saved weights."""
    from tenfold.models import build

    weights, shapes = run.weights, run.facts["data"]
    network = build(run.experiment.model, tuple(shapes["shape"]), shapes["outputs"], seed=run.experiment.training.seed)
    network.load_state_dict(weights)
    return network.eval()
