"""The kinds of values that an experiment's fields hold, and how they are checked, written and shown."""

import inspect
import json
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError, core_schema

from tenfold.common.registry import Registry, suggest

LARGEST = 2**63
DEEPEST = 32


class Given:
    """A Python object in the place of a name: a callable, tensors, a data set. Equal only to itself."""

    def __init__(self, value: object, name: str | None = None) -> None:
        self.value = value
        qualified = getattr(value, "__qualname__", None) or type(value).__name__
        self.name = name or qualified.rpartition(".")[2].strip("<>")

    @property
    def reference(self) -> str:
        """Return "package.module:name" where importing that gives the object again, else a note in angle brackets."""
        module = getattr(self.value, "__module__", None)
        qualified = getattr(self.value, "__qualname__", None)
        if isinstance(module, str) and isinstance(qualified, str) and module not in ("__main__", "__mp_main__"):
            found: Any = sys.modules.get(module)
            for attribute in qualified.split("."):
                found = getattr(found, attribute, None)
            same = found is self.value or (inspect.ismethod(self.value) and found == self.value)
            if same and self.name == qualified.rpartition(".")[2]:
                return f"{module}:{qualified}"
        return f"<{self.name}>"

    def __repr__(self) -> str:
        return self.reference

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by value, so that what is defined in a script or a notebook reaches other processes."""
        import cloudpickle

        return _unpack, (cloudpickle.dumps(self.value), self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Given) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _unpack(value: bytes, name: str) -> Given:
    import cloudpickle

    return Given(cloudpickle.loads(value), name)


def _wrap(value: object) -> object:
    return value if isinstance(value, str | Given) or value is None else Given(value)


def _wrap_many(value: object) -> object:
    if isinstance(value, dict):
        return tuple(Given(function, name) for name, function in value.items())
    return tuple(_wrap(one) for one in (value if isinstance(value, list | tuple) else (value,)))


def check_name(name: str | Given, kind: str, known: Collection[str]) -> str | Given:
    """Refuse a name that is neither built in, nor "package.module:callable", nor stands for an object."""
    if isinstance(name, Given):
        if kind != "data set" and not callable(name.value):
            wanted = "a callable that returns an nn.Module" if kind == "model" else "f(outputs, targets)"
            raise ValueError(f"a {kind} is a name or {wanted}, not a {name.name}")
    elif name not in known and ":" not in name and not name.startswith("<"):
        raise ValueError(f"unknown {kind} '{name}'; {suggest(name, known)}, or \"package.module:callable\"")
    return name


class OneOf:
    """Marks a field that holds the name of a member of a family: `Annotated[str, OneOf(STRATEGIES)]`."""

    def __init__(self, family: Registry[Any]) -> None:
        self.family = family

    def _check(self, name: object) -> object:
        if isinstance(name, str) and name in self.family:
            return name
        hint = suggest(name, self.family) if isinstance(name, str) else f"known: {', '.join(self.family)}"
        raise PydanticCustomError("unknown_name", "{hint}", {"hint": hint})

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.family)}


def _check_text(text: str) -> str:
    """Refuse text that no file can hold, such as a command-line argument that is not in UTF-8."""
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
        return _check_text(value)
    if isinstance(value, bool) or (isinstance(value, int) and -LARGEST <= value < LARGEST):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_written(one, depth + 1) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {_check_text(key): _written(one, depth + 1) for key, one in value.items()}
    raise ValueError(
        f"{shown(value)} cannot be written to a file; options hold text, numbers (finite, up to 64 bits), true or "
        "false, lists and tables; other objects go into a callable of your own, such as a functools.partial"
    )


def _as_tuple(value: object) -> object:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def _as_table(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    return str(value) if isinstance(value, Path) else value


def _text(value: object) -> object:
    return value.reference if isinstance(value, Given) else value


def plain(value: Any) -> Any:
    """Turn NumPy's numbers into Python's, which is what strict fields accept."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def shown(value: object) -> str:
    """Return a value as a sentence shows it, on one line and not too long."""
    try:
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
    except (RecursionError, ValueError):  # nested too deeply; a number with thousands of digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


_string = WithJsonSchema({"type": "string"})
Text = Annotated[str, AfterValidator(_check_text)]
Named = Annotated[
    Text | Given, BeforeValidator(_wrap), PlainSerializer(_text, when_used="json"), _string
]  # a name, "package.module:callable", or the object itself
ManyNamed = Annotated[
    tuple[Annotated[Text | Given, PlainSerializer(_text, when_used="json"), _string], ...], BeforeValidator(_wrap_many)
]
Listed = BeforeValidator(_as_tuple)
Tabled = BeforeValidator(_as_table)
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0, lt=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, lt=LARGEST)]
Options = Annotated[dict[str, Any], AfterValidator(_written)]
