"""An experiment as a TOML file that explains itself."""

import textwrap
from typing import Any

import tomli_w

from tenfold.experiment import SECTIONS, Experiment

WIDTH = 118


def commented(experiment: Experiment) -> str:
    """Return the experiment as TOML, every field under its explanation; fields without a value are commented out."""
    dumped = experiment.model_dump(mode="json")
    lines = ["# A Tenfold experiment. Run it: tenfold train FILE. Change a field for one run: --set lr=0.1", ""]
    lines += [*_explained("A title for tables and plots."), f"name = {_value(experiment.name)}"]
    for key, section in SECTIONS.items():
        lines += ["", *_explained(section.__doc__ or ""), f"[{key}]"]
        for field, info in section.model_fields.items():
            value = dumped[key][field]
            lines += _explained(info.description or "")
            lines.append(f"# {field} =" if value is None else f"{field} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _explained(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent="# ", subsequent_indent="# ")


def _key(key: str) -> str:
    """Return a key as TOML writes it: in quotes where it is not a plain word."""
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _value(value: Any) -> str:
    """Return a value as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").rstrip("\n")
