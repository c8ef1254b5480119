"""From what pydantic finds wrong with a field to a sentence for the user."""

import difflib
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from tenfold.common.registry import suggest
from tenfold.experiment.values import shown

OTHER_NAMES = {
    "learning_rate": "lr",
    "num_workers": "workers",
    "nodes": "workers",
    "replicas": "workers",
    "n_workers": "workers",
    "dataset": "data",
    "network": "model",
    "num_epochs": "epochs",
    "n_epochs": "epochs",
    "batch": "batch_size",
    "scheduler": "schedule",
    "criterion": "loss",
    "random_state": "seed",
    "grad_clip": "clip",
    "early_stopping": "patience",
    "dataloader_workers": "loader_workers",
}
"""What people call fields elsewhere."""


class Complaints:
    """Says in one sentence each what is wrong, where, and which name was probably meant."""

    def __init__(self, sections: dict[str, type[BaseModel]], fields: dict[str, tuple[str, str]]) -> None:
        self._sections = sections
        self._fields = fields
        self._names = {"name", *sections} | {field for cls in sections.values() for field in cls.model_fields}

    def sentence(self, error: Any) -> str:
        """Return the sentence for one of pydantic's errors."""
        loc, kind, value = error["loc"], error["type"], error["input"]
        path = [part for part in loc if isinstance(part, str) and part in self._names] or list(loc)
        where = ".".join(str(part) for part in (path if kind != "extra_forbidden" else loc))
        if kind == "extra_forbidden":
            return f"{where} = {shown(value)}: unknown field; {self._nearest(str(loc[-1]))}"
        if kind == "literal_error":
            choices = self._choices(loc)
            hint = suggest(str(value), choices) if isinstance(value, str) else f"known: {', '.join(choices)}"
            return f"{where} = {shown(value)}: {hint}"
        if kind == "tuple_type":
            return f"{where} = {shown(value)}: should be a list, such as [{shown(value)}]"
        message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
        return f"{where} = {shown(value)}: {message}" if kind != "value_error" else f"{where}: {message}"

    def _nearest(self, name: str) -> str:
        key = name.lower().replace("-", "_")
        near = difflib.get_close_matches(key, [*self._fields, *self._sections], n=1, cutoff=0.6)
        known = OTHER_NAMES.get(key) or (near[0] if near else "")
        if known in self._fields:
            return f"did you mean {'.'.join(self._fields[known])}?"
        return f"did you mean [{known}]?" if known else "`tenfold schema` lists the fields"

    def _choices(self, loc: tuple[Any, ...]) -> list[str]:
        annotation = self._sections[loc[0]].model_fields[loc[1]].annotation
        members = (annotation,) if get_origin(annotation) is Literal else get_args(annotation)
        return [str(choice) for one in members if get_origin(one) is Literal for choice in get_args(one)]
