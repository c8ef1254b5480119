"""What is wrong with a value that a file or a user gave, in one sentence per mistake.

Experiments, clusters and profiles are pydantic models; this is the only place that translates pydantic's errors.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tenfold.common.registry import suggest
from tenfold.experiment.values import format_value

Suggest = Callable[[str], str]
KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "should be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "should be true or false"),
    "string_type": "should be text",
}
"""What a value of the wrong kind should be, by pydantic's name of the mistake."""


def explain(error: ValidationError, model: type[BaseModel], suggest_field: Suggest | None = None) -> str:
    """Return one line for each mistake in a model's fields.

    `suggest_field` returns what to say about an unknown field; by default the nearest fields of its table are listed.
    """
    found = error.errors()
    # A value that fits no member of a union fails for each; "is not an instance of" says nothing to a user.
    shown = [one for one in found if one["type"] != "is_instance_of"] or found
    return "\n".join(_sentence(one, model, suggest_field) for one in shown)


def _sentence(error: Any, model: type[BaseModel], suggest_field: Suggest | None) -> str:
    loc, kind, value = error["loc"], error["type"], error["input"]
    path = list(_known(loc, model))
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "extra_forbidden":
        fields = _table(path, model).model_fields
        hint = suggest_field(str(loc[-1])) if suggest_field else suggest(str(loc[-1]), fields)
        return f"{_written(loc)} = {format_value(value)}: unknown field; {hint}"
    where = _written([part for part, _ in path] or loc)
    if kind == "missing":
        return f"{where}: is missing"
    if kind == "literal_error" and path and path[-1][1] is not None:
        choices = _choices(path[-1][1])
        message = suggest(value, choices) if isinstance(value, str) else f"known: {', '.join(choices)}"
    message = KINDS.get(kind, message)
    if kind == "string_type" and value is None:
        message = "should be a name or a Python object; does the function that makes it lack a return?"
    if kind == "tuple_type":
        message = f"should be a list, such as [{format_value(value)}]"
    if kind == "value_error":
        return f"{where}: {message}" if where else message
    return f"{where} = {format_value(value)}: {message}"


def _known(loc: tuple[Any, ...], model: type[BaseModel]) -> Iterator[tuple[str | int, FieldInfo | None]]:
    """Yield the parts of a location that a user knows: fields and positions in lists, but no members of a union."""
    table: type[BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):
            yield part, None
        elif table is not None and part in table.model_fields:
            info = table.model_fields[part]
            yield part, info
            table = _model_in(info.annotation)


def _table(path: list[tuple[str | int, FieldInfo | None]], model: type[BaseModel]) -> type[BaseModel]:
    """Return the model that contains a location."""
    for _, info in path:
        model = (_model_in(info.annotation) if info is not None else None) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for one in get_args(annotation) if (model := _model_in(one)) is not None), None)


def _choices(info: FieldInfo) -> list[str]:
    annotation = info.annotation
    members = (annotation,) if get_origin(annotation) is Literal else get_args(annotation)
    return [str(choice) for one in members if get_origin(one) is Literal for choice in get_args(one)]


def _written(parts: Any) -> str:
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
