"""Values that live in TOML files: how they are read and written, and what is said when one is wrong."""

import tomllib
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tenfold.errors import ExperimentError
from tenfold.registry import suggest
from tenfold.values import shown


def read_toml(path: Path, kind: str) -> dict[str, Any]:
    """Return what a TOML file holds; `kind` says in sentences what it should have been, such as "a cluster"."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ExperimentError(f"there is no file {path}; it should be a TOML file that describes {kind}") from None
    except UnicodeDecodeError:
        raise ExperimentError(f"{path} is not a text file in UTF-8; {kind} is a TOML file") from None
    except OSError as error:
        raise ExperimentError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ExperimentError(f"{path} is not {kind}: its values are nested too deeply") from None
    except ValueError as error:  # besides TOMLDecodeError: a number with thousands of digits
        raise ExperimentError(f"{path} is not valid TOML: {error}") from None


def write_toml(path: Path, content: dict[str, Any]) -> None:
    """Write a TOML file, whole or not at all."""
    import tomli_w

    from tenfold.files import write_atomically

    write_atomically(path, tomli_w.dumps(content).encode())


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
