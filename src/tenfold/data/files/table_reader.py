"""Tables with named columns, turned into one matrix of inputs and a target: numbers, categories, missing values."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tenfold.data.files.column_values import MISSING, Column, as_column, as_text, is_boolean
from tenfold.data.part import Tensors
from tenfold.data.table_columns import Columns
from tenfold.data.user_arrays import part_from_arrays
from tenfold.errors import DataError

MOST_CATEGORIES = 100
"""A column of text with more different values is refused: it is a name or a description."""
MOST_INTEGER_CLASSES = 20
"""Whole numbers with at most so many different values are classes; with more, a regression."""


class TableReader:
    """Reads the parts of one table alike: the first decides which categories and classes there are."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.categories: dict[str, list[str]] = {}
        self.classes: list[str] | None = None
        """The different values of the target; None for a regression."""
        self.class_names: list[str] = []
        """What the classes are called."""
        self.names: list[str] = []
        """What the columns of the matrix are called: "age", "city=Rome"."""
        self.has_missing = False

    def learn(self, tables: list[Mapping[str, Any]]) -> None:
        """Look at all parts to learn their categories and classes."""
        self.columns = self.columns.choose(tables[0])
        assert self.columns.inputs is not None
        for name in self.columns.inputs:
            found = [_get(table, name) for table in tables]
            if any(one.dtype.kind != "f" for one in found):
                self.categories[name] = _categories(np.concatenate([as_text(one) for one in found]), name)
        assert self.columns.target is not None
        target = [_get(table, self.columns.target) for table in tables]
        if any(one.dtype.kind != "f" for one in target):
            target = [as_text(one).astype(object) for one in target]
        self._learn_target(np.concatenate(target))
        if self.classes is not None and all(is_boolean(table[self.columns.target]) for table in tables):
            self.class_names = ["False", "True"][-len(self.classes) :]

    def part(self, table: Mapping[str, Any], part: str) -> Tensors:
        """Return a part with the inputs as one matrix, categories one-hot."""
        assert self.columns.inputs is not None
        assert self.columns.target is not None
        blocks, self.names = [], []
        for name in self.columns.inputs:
            values = _get(table, name)
            if name in self.categories:
                text = as_text(values)
                blocks.append(np.stack([text == one for one in self.categories[name]], 1).astype(np.float32))
                self.names += [f"{name}={one}" for one in self.categories[name]]
            else:
                blocks.append(values.astype(np.float32)[:, None])
                self.names.append(name)
        x = np.concatenate(blocks, 1)
        self.has_missing = self.has_missing or bool(np.isnan(x).any())
        found = part_from_arrays(np.nan_to_num(x), self._target(table), part)  # which checks everything else
        return Tensors(found.x.new_tensor(x), found.y)

    def describe(self) -> str:
        """Return what is learnt from what, in a sentence."""
        target = self.columns.target
        inputs = f"{len(self.columns.inputs or ())} columns" + (
            f" as {len(self.names)} inputs (categories are one-hot)" if self.categories else ""
        )
        if self.classes is None:
            return f"regression: '{target}' is predicted as a number, from {inputs}"
        shown = ", ".join(self.class_names[:5]) + (", ..." if len(self.classes) > 5 else "")
        return f"classification: '{target}' has {len(self.classes)} classes ({shown}), predicted from {inputs}"

    def _learn_target(self, target: Column) -> None:
        missing = np.isnan(target) if target.dtype.kind == "f" else np.array([one in MISSING for one in target])
        if missing.any():
            raise DataError(
                f"the target '{self.columns.target}' is missing in {int(missing.sum())} of {len(target)} rows; "
                "remove these rows"
            )
        if target.dtype.kind != "f":
            self.classes = self.class_names = sorted(set(target.tolist()))
            return
        values = np.unique(target)
        if len(values) <= MOST_INTEGER_CLASSES and len(values) < len(target) / 2 and (values == values.round()).all():
            self.classes = self.class_names = as_text(values).tolist()

    def _target(self, table: Mapping[str, Any]) -> Column:
        values = _get(table, str(self.columns.target))
        if self.classes is None:
            return values.astype(np.float32)
        places = {name: place for place, name in enumerate(self.classes)}
        return np.array([places[one] for one in as_text(values).tolist()], dtype=np.int64)


def _get(table: Mapping[str, Any], name: str) -> Column:
    if name not in table:
        raise DataError(f"a part of the data has no column '{name}'; all parts need the same columns")
    return as_column(table[name], name)


def _categories(values: Column, name: str) -> list[str]:
    """Return the categories of a column of text; a missing value is its own category."""
    found = sorted(set(values.tolist()))
    if len(found) > MOST_CATEGORIES:
        raise DataError(
            f"the column '{name}' has {len(found)} different texts, such as {found[-1]!r}, too many for categories; "
            "leave it out: input_columns names the columns to use"
        )
    return found
