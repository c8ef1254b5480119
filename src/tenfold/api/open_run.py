"""`tenfold.open_run` and `tenfold.list_runs`: read runs from the store."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.runs import Run, Store
from tenfold.runs.run_filter import filter_runs

if TYPE_CHECKING:
    from torch import nn


def open_run(run: str | int = "last", *, runs: str | Path | None = None) -> Run:
    """Return a recorded run by its number, its title, or "last"."""
    store = Store(runs, create=False)
    return Run(store, store.find(run), build=load_model)


def list_runs(*, runs: str | Path | None = None, filter: str = "") -> list[Run]:  # noqa: A002 - as the option
    """Return the recorded runs, oldest first: all, or those that a filter selects.

    >>> list_runs(filter="workers>=4 strategy=butterfly accuracy>99%")  # doctest: +SKIP
    """
    store = Store(runs, create=False)
    listed = [Run(store, record, build=load_model) for record in store.runs()]
    return filter_runs(listed, filter) if filter else listed


def build_model(run: Run) -> "nn.Module":
    """Return a run's trained network, built anew and given the saved weights."""
    from tenfold.data.tree import shape_from_record
    from tenfold.models import build

    weights, shapes = run.weights, run.facts["data"]
    network = build(
        run.experiment.model, shape_from_record(shapes["shape"]), shapes["outputs"], seed=run.experiment.training.seed
    )
    network.load_state_dict(weights)
    return network.eval()


class _ModelLoader:
    """What `Run` does with its model, imported when it is asked for."""

    def __call__(self, run: Run, /) -> "nn.Module":
        return build_model(run)

    def predict(self, run: Run, x: Any, /, *, probabilities: bool = False) -> Any:
        from tenfold.api.predict import predict

        return predict(run, x, probabilities=probabilities)

    def evaluate(self, run: Run, data: Any, /, *, part: str | None, metrics: Any, loss: Any) -> dict[str, float]:
        from tenfold.api.evaluate import evaluate

        return evaluate(run, data, part=part, metrics=metrics, loss=loss).metrics


load_model = _ModelLoader()
