"""`tenfold.open_run` and `tenfold.list_runs`: read runs from the store."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.catalog import MODELS
from tenfold.common.files import read_regular
from tenfold.common.trust import was_written_here
from tenfold.errors import ModelError
from tenfold.experiment.values import LARGEST_PICKLE, PythonObject, UnrecordedObject
from tenfold.machine.cores import use_threads_that_exist
from tenfold.runs import Run, Store
from tenfold.runs.run_filter import filter_runs
from tenfold.runs.store import MODEL_PICKLE, SWEEP

if TYPE_CHECKING:
    from torch import nn


def open_run(run: str | int = "last", *, runs: str | Path | None = None, trust: bool = False) -> Run:
    """Return a recorded run by its number, its title, or "last".

    `run.model` builds the network again if its class or function can be imported. Importing runs code: what the record
    names (model, data, loss, metrics, ...) is imported if your own commands have named it before, for the same file, or
    with `trust=True`. A network that was defined in a script or a notebook is kept with the run as a pickle, which is
    read only if this process has written it, or with `trust=True`: unpickling runs the code it holds, so trust only
    folders that nobody else can write to. A class of the same name in the running script or notebook is used without
    it, if the weights fit.
    """
    store = Store(runs, create=False)
    return Run(store, store.find(run), build=load_model, trust=trust)


def list_runs(*, runs: str | Path | None = None, filter: str = "") -> list[Run]:  # noqa: A002 - as the option
    """Return the recorded runs, oldest first: all, or those that a filter selects.

    >>> list_runs(filter="workers>=4 strategy=butterfly accuracy>99%")  # doctest: +SKIP
    """
    store = Store(runs, create=False)
    listed = [Run(store, record, build=load_model) for record in store.runs()]
    return filter_runs(listed, filter) if filter else listed


def newest_runs(count: int, *, runs: str | Path | None = None, members: bool = False) -> tuple[list[Run], int]:
    """Return the newest runs, oldest first, and the number of all runs, with or without folds and trials."""
    store = Store(runs, create=False)
    rows, total = store.newest(count, members=members)
    return [Run(store, row, build=load_model) for row in rows], total


def build_model(run: Run) -> "nn.Module":
    """Return a run's trained network, rebuilt with the saved weights; a pickled model is read only if it is trusted."""
    import torch

    from tenfold.data.part import shape_from_record
    from tenfold.models import build

    weights, shapes, model = run.weights, run.metadata["data"], run.experiment.model
    make = partial(build, model, shape_from_record(shapes["shape"]), shapes["outputs"])
    if isinstance(model.name, UnrecordedObject) and (file := _model_pickle(run)).exists():
        content = _read_pickle(file)
        if not run.is_trusted and not was_written_here(content):
            if (network := _from_class_in_main(run, model, make)) is not None:
                return network
            raise ModelError(
                f"the model {model.name} of run {run.id} was given as a Python object and cannot be imported; "
                f"tenfold.open_run({run.id}, trust=True) reads the one kept in {file.parent.name}, as --trust does on "
                "the command line, which runs the code in it; or define its class, or build the network yourself and "
                "give it the weights: network.load_state_dict(run.weights)"
            )
        try:
            kept = PythonObject.unpickled(content, model.name.name)
        except Exception as error:  # a damaged pickle may raise anything
            raise ModelError(f"{file} cannot be read ({type(error).__name__}: {error})") from error
        make = partial(build, model := model.model_copy(update={"name": kept}), *make.args[1:])
    if isinstance(model.name, str) and model.name in MODELS:  # a damaged record may ask for more than there is memory
        try:
            with torch.device("meta"):
                _fill(make(seed=0), weights, run, assign=True)
        except (RuntimeError, OverflowError, TypeError) as error:
            raise ModelError(f"the model of run {run.id} cannot be built as its record says: {error}") from None
    return _fill(make(seed=run.experiment.training.seed), weights, run).eval()


def _read_pickle(file: Path) -> bytes:
    try:
        return read_regular(file, LARGEST_PICKLE)
    except Exception as error:
        raise ModelError(f"{file} cannot be read ({type(error).__name__}: {error})") from error


def _from_class_in_main(run: Run, model: Any, make: "partial[nn.Module]") -> "nn.Module | None":
    """Return the trained network, made from a class that the running script or notebook defines; None if none fits."""
    from torch import nn

    network_class = getattr(sys.modules.get("__main__"), model.name.name, None)
    if not (
        isinstance(network_class, type)
        and issubclass(network_class, nn.Module)
        and network_class.__module__ == "__main__"
    ):
        return None
    try:
        network = make.func(model.model_copy(update={"name": PythonObject(network_class)}), *make.args[1:], seed=0)
        return _fill(network, run.weights, run).eval()
    except Exception:  # it takes arguments that are not known, or was changed
        return None


def _fill(network: "nn.Module", weights: dict[str, Any], run: Run, *, assign: bool = False) -> "nn.Module":
    """Return a network with the weights of a run; raise ModelError if they are not those of such a network."""
    import torch

    from tenfold.data.part import change_main_output
    from tenfold.models.networks import add_scaling, scaling_in

    floats = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    problem = ""
    if run.experiment.training.precision == "fp64":
        network.double()
    add_scaling(network, scaling_in(weights), change_main_output)
    for name, own in network.state_dict().items():
        kinds = {own.dtype, weights[name].dtype} if name in weights and isinstance(own, torch.Tensor) else set()
        if len(kinds) > 1 and not kinds <= floats:
            problem = f"{name} is of type {weights[name].dtype}, in the model {own.dtype}"
    try:
        if not problem:
            network.load_state_dict(weights, assign=assign)
            return network
    except RuntimeError as error:
        problem = " ".join(str(error).split())
    raise ModelError(f"{run.path / 'model.pt'} does not fit the model of run {run.id}: {problem:.400}") from None


def _model_pickle(run: Run) -> Path:
    """Return where the model of a run is kept; that of a fold is in the folder of the cross-validation."""
    parent = run.metadata.get("crossval", {}).get("parent")
    return (run.path if parent is None else run.other(parent).path) / MODEL_PICKLE


def _trained(run: Run) -> Run:
    """Return the run whose model is meant: the best trial of a sweep, and any other run itself."""
    if run.kind != SWEEP:
        return run
    from tenfold.reports.sweep import Sweep

    return Sweep(run).best_run


class _ModelLoader:
    """What a `Run` does with its model; torch is imported only when it is used."""

    def __call__(self, run: Run, /) -> "nn.Module":
        use_threads_that_exist()
        return build_model(_trained(run))

    def predict(self, run: Run, x: Any, /, *, probabilities: bool = False) -> Any:
        from tenfold.api.predict import predict

        use_threads_that_exist()
        return predict(_trained(run), x, probabilities=probabilities)

    def evaluate(self, run: Run, data: Any, /, *, part: str | None, metrics: Any, loss: Any) -> dict[str, float]:
        from tenfold.api.predict import evaluate

        use_threads_that_exist()
        return evaluate(_trained(run), data, part=part, metrics=metrics, loss=loss).metrics

    def report(self, run: Run, path: str | Path, /) -> Path:
        from tenfold.reports.pages.run_pages import report

        return report(run, path)


load_model = _ModelLoader()
