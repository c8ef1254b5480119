"""The kinds of values that an experiment's fields hold, and how they are checked, written and shown.

Fields that take a name also take a Python object; the experiment that is recorded with a run keeps the object's name.
"""

import datetime
import inspect
import json
import math
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from tenfold.common.files import names_data_file
from tenfold.common.imports import RecordedPath, resolve
from tenfold.errors import ExperimentError
from tenfold.registry import Registry, suggest

LARGEST = 2**63
EPOCH = "epoch"
AUTO = "auto"
DEEPEST = 32
LARGEST_PICKLE = 16 * 2**20
"""Bytes; a function that holds whole data sets is not kept with each run."""


class TakesList(BeforeValidator):
    """Marks a field whose value is a list, so that a grid tells it from a list of values; the function converts it."""


class CountOrAuto(BeforeValidator):
    """Marks a field that takes a number or "auto", which becomes a number when the experiment is made."""


def _check_text(text: str) -> str:
    """Raise ValueError for text that no file can hold, such as a command-line argument that is not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!a} is not valid Unicode text") from None
    return text


def _written(value: Any, depth: int = 0) -> Any:
    """Return options as a file would give them back: tuples as lists, NumPy's numbers as Python's."""
    value = plain(value)
    if depth > DEEPEST:
        raise ValueError(f"options are nested deeper than {DEEPEST} levels")
    if isinstance(value, str):
        return _check_text(str(value))
    if isinstance(value, bool) or (isinstance(value, int) and -LARGEST <= value < LARGEST):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_written(item, depth + 1) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {_check_text(key): _written(item, depth + 1) for key, item in value.items()}
    raise ValueError(
        f"{format_value(value)} cannot be written to a file; options hold text, numbers (finite, up to 64 bits), true "
        "or false, lists and tables; other objects go into a callable of your own, such as a functools.partial"
    )


def _as_tuple(value: object) -> object:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def _as_names(value: object) -> object:
    """Return a list of names as a tuple, and a single name as a tuple of one."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _as_table(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    return str(value) if isinstance(value, Path) else value


def _check_steps(value: object) -> object:
    """Raise an error for anything but a number of steps or "epoch"."""
    number = isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST
    if value == EPOCH or number or value is None:
        return value
    raise PydanticCustomError("steps_or_epoch", 'should be a number of steps above 0, or "epoch"')


def count_workers(device: str = "cpu") -> int:
    """Return the number of workers that "auto" stands for on this machine; see `machine/cores.py`."""
    count: int = resolve("tenfold.machine.cores:count_workers", "function")(device)  # experiments know no machines
    return count


def plain(value: Any) -> Any:
    """Turn NumPy's numbers into Python's, which is what strict fields accept."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def format_value(value: object) -> str:
    """Return a value as a sentence shows it, on one line and not too long."""
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number with thousands of digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


Text = Annotated[str, AfterValidator(_check_text)]
AsTuple = TakesList(_as_tuple)
AsNames = TakesList(_as_names)
AsTable = BeforeValidator(_as_table)
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0, lt=LARGEST)]
WorkerCount = Annotated[
    Count,
    CountOrAuto(lambda value: count_workers() if value == AUTO else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"const": AUTO}]}),
]
NonNegative = Annotated[int, Field(ge=0, lt=LARGEST)]
StepsOrEpoch = Annotated[Count | Literal["epoch"] | None, BeforeValidator(_check_steps)]
Options = Annotated[dict[str, Any], AfterValidator(_written)]


class PythonObject:
    """A Python object given in place of a name: a callable, tensors, a data set. Equal only to itself."""

    def __init__(self, value: object, name: str | None = None) -> None:
        self.value = value
        qualified = getattr(value, "__qualname__", None) or type(value).__name__
        self.name = name or qualified.rpartition(".")[2].strip("<>")

    @property
    def import_path(self) -> str | None:
        """Return "package.module:name" if importing that gives the object again, else None."""
        module = getattr(self.value, "__module__", None)
        qualified = getattr(self.value, "__qualname__", None)
        if isinstance(module, str) and isinstance(qualified, str) and module not in ("__main__", "__mp_main__"):
            member: Any = sys.modules.get(module)
            for attribute in qualified.split("."):
                member = getattr(member, attribute, None)
            same = member is self.value or (inspect.ismethod(self.value) and member == self.value)
            if same and self.name == qualified.rpartition(".")[2]:
                return f"{module}:{qualified}"
        return None

    def pickled(self) -> bytes | None:
        """Return the object by value, with the code that makes it; None where that is impossible or too large."""
        import cloudpickle

        try:
            content: bytes = cloudpickle.dumps(self.value)
        except Exception:  # whatever the object's own code raises
            return None
        return content if len(content) <= LARGEST_PICKLE else None

    @classmethod
    def unpickled(cls, content: bytes, name: str) -> "PythonObject":
        """Return the object again; this runs code that the pickle holds, so it must come from someone to be trusted."""
        import cloudpickle

        return cls(cloudpickle.loads(content), name)

    def __repr__(self) -> str:
        return self.import_path or repr(UnrecordedObject(self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value, so that definitions in a script or a notebook reach other processes."""
        import cloudpickle

        return PythonObject.unpickled, (cloudpickle.dumps(self.value), self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PythonObject) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True)
class UnrecordedObject:
    """The name of a Python object that an experiment was run with; the object itself was not recorded."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @classmethod
    def read(cls, text: str) -> "UnrecordedObject | str":
        """Return the unrecorded object that a text such as "<Net>" stands for, or the text itself."""
        return cls(text[1:-1]) if text.startswith("<") and text.endswith(">") and len(text) > 2 else text


WANTED = {
    "model": "an nn.Module, or a callable that returns one",
    "optimizer": "a class such as torch.optim.NAdam, or a function of the parameters that returns an optimizer",
    "schedule": "a function of the progress from 0 to 1, or of the optimizer that returns a scheduler",
    "loss": "f(outputs, targets)",
    "metric": "f(outputs, targets)",
}
"""The callable that an object in the place of a name should be, by kind; other kinds need not be callable."""

ALIASES = {
    "loss": {
        "ce": "cross-entropy",
        "crossentropy": "cross-entropy",
        "nll": "cross-entropy",
        "mae": "l1",
        "bce_logits": "bce",
    },
    "metric": {"acc": "accuracy", "auc": "roc_auc", "mse": "rmse", "l1": "mae", "f1_score": "f1_macro"},
}
"""What other libraries call losses and metrics, and the names that these have here."""


def check_name(
    name: str | PythonObject | UnrecordedObject, kind: str, names: Collection[str]
) -> str | PythonObject | UnrecordedObject:
    """Raise an error for a name that is neither built in nor an import path, and for an object that is not callable."""
    if isinstance(name, PythonObject):
        wanted = WANTED.get(kind)
        if wanted is not None and not callable(name.value):
            article = "an" if kind == "optimizer" else "a"
            raise ValueError(f"{article} {kind} is a name or {wanted}, not a {name.name}")
    elif isinstance(name, str) and name not in names and ":" not in name:
        if kind == "data set" and names_data_file(name):
            return name
        raise ValueError(
            f'unknown {kind} {name!r}; {suggest(name, names, ALIASES.get(kind))}, or "package.module:callable"'
        )
    return name


def refuse_others(kind: str, names: Collection[str], *unset: object) -> AfterValidator:
    """Return a validator that refuses unknown names, as `check_name` does, except for those of `unset`."""
    return AfterValidator(lambda name: name if name in unset else check_name(name, kind, names))


def named_or_imported(names: Collection[str]) -> WithJsonSchema:
    """Return the schema of a field that takes one of the known names or "package.module:callable"."""
    return WithJsonSchema({"anyOf": [{"type": "string", "enum": list(names)}, {"type": "string", "pattern": ":"}]})


def _wrap(value: object) -> object:
    if isinstance(value, RecordedPath):
        return value
    if isinstance(value, str | Path):
        return UnrecordedObject.read(str(value))
    if isinstance(value, bool | int | float | datetime.date | datetime.time):  # from a file; no object to train with
        raise ValueError(f'should be a name, "package.module:callable" or a Python object, not {format_value(value)}')
    return value if isinstance(value, PythonObject | UnrecordedObject) or value is None else PythonObject(value)


def _wrap_many(value: object) -> object:
    if isinstance(value, dict):
        return tuple(PythonObject(function, name) for name, function in value.items())
    return tuple(_wrap(item) for item in (value if isinstance(value, list | tuple) else (value,)))


def _name_of(value: object) -> object:
    if isinstance(value, PythonObject | UnrecordedObject):
        return repr(value)
    return str(value) if isinstance(value, RecordedPath) else value


_AS_TEXT = (PlainSerializer(_name_of, when_used="json"), WithJsonSchema({"type": "string"}))
_Member = InstanceOf[RecordedPath] | Text | InstanceOf[PythonObject] | InstanceOf[UnrecordedObject]
NameOrObject = Annotated[_Member, BeforeValidator(_wrap), *_AS_TEXT]
"""A name, "package.module:callable", or the object itself."""
NamesOrObjects = Annotated[tuple[Annotated[_Member, *_AS_TEXT], ...], TakesList(_wrap_many)]


def member_of(family: Registry[Any], given: str | PythonObject | UnrecordedObject) -> Any:
    """Return the object that a field means: the family's member of this name, an imported object, or itself."""
    if isinstance(given, UnrecordedObject):
        raise ExperimentError(f"the {family.kind} {given} was given as a Python object; pass it again")
    if isinstance(given, PythonObject):
        return given.value
    return resolve(given, family.kind) if ":" in given else family[given]


def label_of(value: str | PythonObject | UnrecordedObject) -> str:
    """Return the last part of an import path, or the name of an object."""
    return value.rpartition(":")[2].rpartition(".")[2] if isinstance(value, str) else value.name


# The mistake in a value that a file or a user gave, in one sentence each.
#
# Experiments, clusters and profiles are pydantic models; this is the only place that translates pydantic's errors.

Suggest = Callable[[str], str]
KINDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "should be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "should be true or false"),
    "string_type": "should be text",
}
"""The kind that a value should be of, by pydantic's name of the mistake."""


def explain(error: ValidationError, model: type[BaseModel], suggest_field: Suggest | None = None) -> str:
    """Return one line for each mistake in a model's fields.

    `suggest_field` returns what to say about an unknown field; by default the nearest fields of its table are listed.
    """
    mistakes = error.errors()
    # A value that fits no member of a union fails for each; "is not an instance of" says nothing to a user.
    shown = [item for item in mistakes if item["type"] != "is_instance_of"] or mistakes
    return "\n".join(_sentence(item, model, suggest_field) for item in shown)


def _sentence(error: Any, model: type[BaseModel], suggest_field: Suggest | None) -> str:
    loc, kind, value = error["loc"], error["type"], error["input"]
    path = list(_known(loc, model))
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind == "extra_forbidden":
        fields = _table(path, model).model_fields
        hint = suggest_field(str(loc[-1])) if suggest_field else suggest(str(loc[-1]), fields)
        return f"{_dotted_name(loc)} = {format_value(value)}: unknown field; {hint}"
    where = _dotted_name([part for part, _ in path] or loc)
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
    return next((model for argument in get_args(annotation) if (model := _model_in(argument)) is not None), None)


def _choices(info: FieldInfo) -> list[str]:
    annotation = info.annotation
    members = (annotation,) if get_origin(annotation) is Literal else get_args(annotation)
    return [str(choice) for member in members if get_origin(member) is Literal for choice in get_args(member)]


def _dotted_name(parts: Any) -> str:
    return "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
