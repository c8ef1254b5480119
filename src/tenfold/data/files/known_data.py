"""What a model knows of the table or the folders of images that it was trained on, to read others in the same way."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenfold.common.user_code import warn_user
from tenfold.data.files.column_values import Column, as_categories, as_column
from tenfold.errors import DataError

MOST_SHOWN = 3
InputColumns = dict[str, list[str] | None]
"""The columns of a table that hold the inputs, each with its categories; None for one that holds numbers."""


@dataclass(frozen=True)
class KnownData:
    """The inputs and the classes of the data that a model was trained on."""

    features: tuple[str, ...] = ()
    """The names of the inputs of a table: "age", "city=Rome"; none for images."""
    class_names: tuple[str, ...] = ()
    """What the classes are called; none for a regression."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "KnownData | None":
        """Return what a run's facts say of its data; None where these were neither a table nor folders of images."""
        features, names = (tuple(facts.get(key) or ()) for key in ("features", "class_names"))
        return cls(features, names) if features or names else None

    def columns(self, table: Mapping[str, Any], where: str) -> InputColumns:
        """Return the columns of a table that hold the inputs; `where` names the table in errors."""
        names = dict.fromkeys(_column_of(table, feature, where) for feature in self.features)
        return {name: None if name in self.features else self._categories(name) for name in names}

    def inputs(self, table: Mapping[str, Any], where: str) -> NDArray[np.float32]:
        """Return the inputs of a table as a matrix; `where` names the table in errors."""
        return input_matrix(table, self.columns(table, where), where)

    def _categories(self, name: str) -> list[str]:
        return [feature.removeprefix(f"{name}=") for feature in self.features if feature.startswith(f"{name}=")]


def input_matrix(table: Mapping[str, Any], columns: InputColumns, where: str) -> NDArray[np.float32]:
    """Return columns as one matrix, categories one-hot: an unknown one is 0 for all known ones, with a warning."""
    blocks = []
    for name, known in columns.items():
        if known is not None:
            blocks.append(one_hot(as_categories(table[name], name), known, name))
            continue
        column = as_column(table[name], name)
        if column.dtype.kind != "f":
            raise DataError(f"{where}: the column '{name}' holds text; it should hold numbers, as in training")
        if np.isinf(column).any():
            row = int(np.isinf(column).argmax())
            raise DataError(f"{where}: the column '{name}' holds infinity, first in row {row}; remove or replace it")
        blocks.append(column.astype(np.float32)[:, None])
    return np.concatenate(blocks, 1)


def one_hot(values: Column, known: list[str], name: str) -> NDArray[np.float32]:
    """Return one column for each known category of the column `name`; warn of values that are none of them."""
    unseen = set(values.tolist()) - set(known)
    if unseen:
        spelled = {_category_name(one): one for one in known}
        same = {one: spelled[_category_name(one)] for one in unseen if _category_name(one) in spelled}
        values = np.array([same.get(one, one) for one in values.tolist()], dtype=object)
        unseen -= set(same)
    if new := sorted(unseen):
        rows = int(np.isin(values, new).sum())
        warn_user(
            f"the column '{name}' has values that the model was not trained on, in {rows} of {len(values)} rows: "
            f"{shorten(new)}; they count as none of its categories"
        )
    return np.stack([values == one for one in known], 1).astype(np.float32)


def _category_name(category: str) -> str:
    """Return the number 1.0 as "1", as categories are called now; older runs have it as "1.0"."""
    try:
        number = float(category)
    except ValueError:
        return category
    return f"{number:.15g}" if category == str(number) else category


def shorten(values: list[str]) -> str:
    """Return a few of these values as a message shows them."""
    shown = ", ".join(repr(one) if one else "missing" for one in values[:MOST_SHOWN])
    return f"{shown}, ..." if len(values) > MOST_SHOWN else shown


def _column_of(table: Mapping[str, Any], feature: str, where: str) -> str:
    """Return the column of a feature such as "city=Rome"; names and categories may themselves have a "="."""
    words = feature.split("=")
    names = ["=".join(words[:count]) for count in range(len(words), 0, -1)]
    found = next((name for name in names if name in table), None)
    if found is None:
        raise DataError(f"{where} has no column '{names[-1]}', which the model was trained on")
    return found
