"""Writes what follows from the fields of an experiment: experiment/field_types.py and docs/fields.md."""

import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from tenfold.experiment import FIELDS, SECTIONS, Experiment
from tenfold.experiment import experiment as module
from tenfold.experiment.values import AsTable, CountOrAuto, PythonObject, TakesList

FILE = Path(module.__file__).with_name("field_types.py")
HEAD = '''"""The types of an experiment's fields as keyword arguments, for editors and type checkers.

Made from the fields by `python tools/generate_fields.py`; do not change it by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

T = TypeVar("T")
OneOrSeveral: TypeAlias = Sequence[T] | T
Table = Mapping[str, Any]


'''


def written() -> str:
    """Return the module as it should be."""
    fields = {"name": "str"}
    for short, (section, field) in FIELDS.items():
        fields[short] = type_of(SECTIONS[section].model_fields[field])
    sections = {name: "Any" for name in SECTIONS if name not in fields}
    lines = [
        HEAD + "class Fields(TypedDict, total=False):",
        '    """Every field of an experiment by its short name."""',
        "",
    ]
    lines += [f"    {name}: {kind}" for name, kind in (fields | sections).items()]
    lines += ["", "", "class Grid(TypedDict, total=False):"]
    lines += ['    """Every field with one value, or with several as a dimension of a grid."""', ""]
    for name, kind in (fields | sections).items():
        lines.append(f"    {name}: {kind if kind == 'Any' else f'OneOrSeveral[{kind}]'}")
    return "\n".join(lines) + "\n"


def type_of(field: FieldInfo) -> str:
    """Return the type of the values that a field takes."""
    if any(one is AsTable for one in field.metadata) or _holds_objects(field.annotation):
        return "Any"
    if any(isinstance(one, CountOrAuto) for one in field.metadata):
        return 'int | Literal["auto"]'
    return _named(field.annotation, takes_list=any(isinstance(one, TakesList) for one in field.metadata))


def _named(kind: Any, *, takes_list: bool = False) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _named(inside[0])
    if origin in (Union, types.UnionType):
        return " | ".join(_named(one, takes_list=takes_list) for one in inside)
    if origin is Literal:
        return _literal(list(inside))
    if origin is tuple:
        return f"Sequence[{_named(inside[0])}]" if takes_list else "Any"
    if origin is dict:
        return "Table"
    return "None" if kind is type(None) else str(kind.__name__)


def _literal(names: list[str]) -> str:
    return "Literal[" + ", ".join(f'"{name}"' for name in names) + "]"


def _holds_objects(kind: Any) -> bool:
    return kind is PythonObject or any(_holds_objects(argument) for argument in get_args(kind))


def write() -> None:
    """Write the module, formatted."""
    import subprocess
    import sys

    FILE.write_text(written())
    subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(FILE)], check=True)


FIELDS_PAGE = Path(__file__).parents[1] / "docs" / "fields.md"
HEADER = """# Fields

This page lists every field of an experiment. [Experiment files](experiment-files.md) explains how to set them.
`python tools/generate_fields.py` generates the page from the code.

`cluster` and `link` apply to virtual clusters only (`engine = "virtual"`, `tenfold simulate`).
"""


def fields_page() -> str:
    lines = [HEADER]
    schema = Experiment.model_json_schema()["$defs"]
    for key, section in SECTIONS.items():
        lines += [
            f"## {key}",
            "",
            section.__doc__ or "",
            "",
            "| field | default | values | meaning |",
            "|---|---|---|---|",
        ]
        short = {field: name for name, (owner, field) in FIELDS.items() if owner == key}
        for field, info in section.model_fields.items():
            about = schema[section.__name__]["properties"][field]
            name = f"`{field}`" if short[field] == field else f"`{field}` (short: `{short[field]}`)"
            default = "unset" if info.default is None else f"`{json.dumps(about.get('default', info.default))}`"
            meaning = " ".join((info.description or "").split())
            lines.append(f"| {name} | {default} | {values(about)} | {meaning} |")
        lines.append("")
    return "\n".join(lines)


def values(about: dict[str, Any]) -> str:
    """Return in words what a field takes."""
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(values(one) for one in about["anyOf"] if one.get("type") != "null"))
    if "enum" in about:
        return ", ".join(f"`{choice}`" for choice in about["enum"])
    if "const" in about:
        return f"`{about['const']}`"
    if about.get("type") == "array":
        return f"list of: {values(about['items'])}"
    words = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true`, `false`"}
    bounds = {"exclusiveMinimum": ">", "minimum": "≥", "exclusiveMaximum": "<", "maximum": "≤"}
    told = [f"{sign} {about[key]:g}" for key, sign in bounds.items() if abs(about.get(key, 2**63)) < 2**63]
    return " ".join([words.get(about.get("type", ""), "table"), ", ".join(told)]).strip()


if __name__ == "__main__":
    write()
    FIELDS_PAGE.write_text(fields_page())
    print(f"wrote {FILE} and {FIELDS_PAGE}")
