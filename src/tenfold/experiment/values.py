"""The kinds of values that an experiment's fields hold, and how they are checked, written and shown."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_core import PydanticCustomError, core_schema

from tenfold.common.registry import Registry, suggest

LARGEST = 2**63
EPOCH = "epoch"
DEEPEST = 32


class TakesList(BeforeValidator):
    """Marks a field whose value is a list, so that a grid tells it from a list of values; the function converts it."""


class OneOf:
    """Marks a field that holds the name of a member of a family, or another: `Annotated[str, OneOf(STRATEGIES)]`."""

    def __init__(self, family: Registry[Any], *others: str) -> None:
        self.names = [*others, *family]

    def _check(self, name: object) -> object:
        if isinstance(name, str) and name in self.names:
            return name
        hint = suggest(name, self.names) if isinstance(name, str) else f"known: {', '.join(self.names)}"
        raise PydanticCustomError("unknown_name", "{hint}", {"hint": hint})

    def __get_pydantic_core_schema__(self, source: Any, _handler: Any) -> core_schema.CoreSchema:
        known = core_schema.no_info_plain_validator_function(self._check)
        return known if source is str else core_schema.nullable_schema(known)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "string", "enum": self.names}


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


def _check_steps(value: object) -> object:
    """Refuse what is neither a number of steps nor "epoch", in one sentence for both."""
    number = isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST
    if value == EPOCH or number or value is None:
        return value
    raise PydanticCustomError("steps_or_epoch", 'should be a number of steps above 0, or "epoch"')


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


Text = Annotated[str, AfterValidator(_check_text)]
AsTuple = TakesList(_as_tuple)
AsTable = BeforeValidator(_as_table)
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(gt=0, lt=LARGEST)]
NonNegative = Annotated[int, Field(ge=0, lt=LARGEST)]
StepsOrEpoch = Annotated[Count | Literal["epoch"] | None, BeforeValidator(_check_steps)]
Options = Annotated[dict[str, Any], AfterValidator(_written)]
