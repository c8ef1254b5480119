"""Errors for calls such as `train(network, loader)`, which should name fields: they show the correct call."""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tenfold.errors import ExperimentError, TenfoldError
from tenfold.experiment.experiment import Experiment
from tenfold.experiment.values import format_value

Function = TypeVar("Function", bound=Callable[..., Any])


def fields_by_name(function: Function) -> Function:
    """Decorate a function that takes one argument by position, an experiment; the fields are given by name.

    If anything else is passed by position, the function raises ExperimentError, which shows the correct call.
    """

    @functools.wraps(function)
    def checked(*given: Any, **fields: Any) -> Any:
        if len(given) > 1 or (given and _is_model(given[0])):
            raise ExperimentError(_correct_call(function.__name__, given))
        try:
            return function(*given, **fields)
        except TenfoldError as error:
            raise _without_inner_frames(error)  # noqa: B904 - it is the same error

    return checked  # type: ignore[return-value]


def _without_inner_frames(error: TenfoldError) -> TenfoldError:
    """Return an error whose traceback ends at the user's call; what it says is enough, with the user's own lines in it.

    What caused it stays in `__context__`. The environment variable TENFOLD_TRACEBACK=full keeps everything.
    """
    if os.environ.get("TENFOLD_TRACEBACK") == "full":
        return error
    error.__context__, error.__cause__ = error.__cause__ or error.__context__, None  # which also hides the context
    return error.with_traceback(None)


def fields_of_loader(loader: Any) -> str:
    """Return the fields that stand for a DataLoader: "data=loader.dataset, batch_size=32"."""
    fields = ["data=loader.dataset"]
    if getattr(loader, "batch_size", None):
        fields.append(f"batch_size={loader.batch_size}")
    collate = getattr(loader, "collate_fn", None)
    if collate is not None and not getattr(collate, "__module__", "").startswith("torch."):
        fields.append("collate=loader.collate_fn")
    if getattr(loader, "num_workers", 0):
        fields.append(f"loader_workers={loader.num_workers}")
    return ", ".join(fields)


def is_loader(value: object) -> bool:
    """Return whether a value is a DataLoader of torch or of a package that follows it."""
    return any(base.__name__ == "DataLoader" for base in type(value).__mro__)


def _correct_call(name: str, given: Sequence[Any]) -> str:
    first, others = given[0], given[1:]
    if first is None or isinstance(first, Experiment):
        return f"{name} takes one argument by position, the experiment; give fields by name: {name}(experiment, lr=0.1)"
    data = _data_fields(others)
    call = f"{name} takes the fields of an experiment by name: tenfold.{name}(model={_model(first)}, {data})"
    if any(map(is_loader, others)):
        call += "; Tenfold makes the batches itself, since it divides the samples among workers"
    return call


def _data_fields(given: Sequence[Any]) -> str:
    """Return the fields that stand for data given by position."""
    if not given:
        return "data=..."
    if isinstance(given[0], tuple):
        given = given[0] or [None]
    loaders = [is_loader(one) for one in given[:2]]
    if all(loaders) and len(loaders) == 2:
        return fields_of_loader(given[0]).replace("loader.dataset", "(train_loader.dataset, test_loader.dataset)")
    if loaders[0]:
        return fields_of_loader(given[0])
    if hasattr(given[0], "columns") and hasattr(given[0], "dtypes") and len(given) == 1:
        return f'data=frame, target_column="{list(given[0].columns)[-1]}"'
    if isinstance(given[0], str):
        return f"data={format_value(given[0])}"
    if hasattr(given[0], "shape") or isinstance(given[0], list):
        return "data=(x, y)"
    sets = [hasattr(one, "__getitem__") and hasattr(one, "__len__") for one in given[:2]]
    return "data=(train_set, test_set)" if sets == [True, True] else "data=dataset"


def _is_model(value: Any) -> bool:
    return value is not None and not isinstance(value, Experiment | str) and callable(value)


def _model(value: Any) -> str:
    if isinstance(value, str):
        return format_value(value)
    return str(value.__name__) if hasattr(value, "__name__") else "network"
