"""What is said of a value from a TOML file when something is wrong with it."""

from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tenfold.common.registry import suggest
from tenfold.experiment.values import shown


def sentences(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one line for each thing that is wrong with a model's fields."""
    return "\n".join(_sentence(one, model) for one in error.errors())


def _sentence(error: Any, model: type[BaseModel]) -> str:
    loc, kind, value = error["loc"], error["type"], error["input"]
    where = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if kind == "missing":
        return f"{where}: is missing"
    if kind == "extra_forbidden":
        return f"{where} = {shown(value)}: unknown field; {suggest(str(loc[-1]), _fields(model, loc[:-1]))}"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} = {shown(value)}: {message}"


def _fields(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Return the names of the fields at a place inside a model."""
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = _model_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for one in get_args(annotation) if (model := _model_in(one)) is not None), None)
