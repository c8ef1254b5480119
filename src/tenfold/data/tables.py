"""Tables with named columns, turned into one matrix of inputs and a target: numbers, categories, missing values."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tenfold.common.imports import warn_user
from tenfold.data.columns import Column, Columns, as_categories, as_column, as_text, is_boolean
from tenfold.data.files import InputColumns, KnownData, input_matrix, shorten
from tenfold.data.part import Tensors
from tenfold.data.user_datasets import ValueRules, part_from_arrays
from tenfold.errors import DataError

MOST_CATEGORIES = 100
"""A column of text with more different values than this is an error: it is a name or a description."""
MOST_INTEGER_CLASSES = 20
"""Whole numbers with at most this many different values are classes; with more, a regression."""
COMMA_NUMBER = re.compile(r"[+-]?\d+(,\d+)+(\.\d+)?")
BOOLEAN_NAMES = ("False", "True")


class TableEncoder:
    """Turns the parts of a table into matrices; together they decide which categories and classes there are.

    `known` is the table that a model was trained on, where that decides instead.
    """

    def __init__(self, columns: Columns, known: KnownData | None = None, dtype: torch.dtype = torch.float32) -> None:
        self.columns = columns
        self._dtype = dtype
        self.inputs: InputColumns = {}
        self.class_names: list[str] | None = None
        """What the classes are called; None for a regression."""
        self.has_missing = False
        self._known = known
        self._classes = _named_by_number

    def learn(self, tables: list[Mapping[str, Any]]) -> None:
        """Look at all parts to learn their categories and classes."""
        if self._known is not None and self._known.features:
            self.inputs = self._known.columns(tables[0], "the table")
            self.columns = replace(self.columns, inputs=tuple(self.inputs))
        self.columns = self.columns.choose(tables[0])
        assert self.columns.inputs is not None
        for name in self.columns.inputs:
            columns = [_get(table, name) for table in tables]
            if name not in self.inputs:
                is_text = any(item.dtype.kind != "f" for item in columns)
                self.inputs[name] = _categories([table[name] for table in tables], name) if is_text else None
        assert self.columns.target is not None
        self._learn_target([(_get(table, self.columns.target), table[self.columns.target]) for table in tables])

    def part(self, table: Mapping[str, Any], part: str) -> Tensors:
        """Return a part with the inputs as one matrix, categories one-hot."""
        x = input_matrix(table, self.inputs, f"the {part} part", self._dtype)
        self.has_missing = self.has_missing or bool(np.isnan(x).any())
        filled = np.where(np.isnan(x), x.dtype.type(0), x)
        rules = ValueRules(dtype=self._dtype)
        arrays_part = part_from_arrays(filled, self._target(table), part, rules)  # which checks everything else
        return Tensors(arrays_part.x.new_tensor(x), arrays_part.y)

    @property
    def names(self) -> list[str]:
        """What the columns of the matrix are called: "age", "city=Rome"."""
        return [
            feature
            for name, known in self.inputs.items()
            for feature in ([name] if known is None else [f"{name}={item}" for item in known])
        ]

    def describe(self) -> str:
        """Return a sentence that names the inputs and the target."""
        target = self.columns.target
        inputs = f"{len(self.inputs)} columns"
        if any(known is not None for known in self.inputs.values()):
            inputs += f" as {len(self.names)} inputs (categories are one-hot)"
        if self.class_names is None:
            return f"regression: '{target}' is predicted as a number, from {inputs}"
        shown = ", ".join(self.class_names[:5]) + (", ..." if len(self.class_names) > 5 else "")
        return f"classification: '{target}' has {len(self.class_names)} classes ({shown}), predicted from {inputs}"

    def _learn_target(self, found: list[tuple[Column, Any]]) -> None:
        """Learn what the classes are called, from the target of each part: as a column, and as it was given."""
        target = self.columns.target
        is_text = any(column.dtype.kind != "f" for column, _ in found)
        named = [as_categories(given) if is_text else as_text(column) for column, given in found]
        missing = int(sum((item == "").sum() for item in named))
        if missing:
            rows = sum(map(len, named))
            raise DataError(f"the target '{target}' is missing in {missing} of {rows} rows; remove these rows")
        if self._known is not None:
            self._take_known_target(self._known, [given for _, given in found], is_text)
        elif is_text:
            self._classes = as_categories
            self.class_names = sorted(set(np.concatenate(named).tolist()))
        elif all(is_boolean(given) for _, given in found):
            self._classes = _named_by_truth
            self.class_names = sorted({name for _, given in found for name in _named_by_truth(given)})
        else:
            values = np.unique(every := np.concatenate([column for column, _ in found]))
            few = len(values) <= MOST_INTEGER_CLASSES and len(values) < len(every) / 2
            if few and (values == values.round()).all():
                self.class_names = as_text(values).tolist()
        if self._known is None and self.class_names is not None and len(self.class_names) < 2:
            raise DataError(
                f"the target '{target}' is {self.class_names[0]} in all rows; a classification needs two classes"
            )

    def _take_known_target(self, known: KnownData, found: list[Any], is_text: bool) -> None:
        target = self.columns.target
        if not known.class_names:
            if is_text:
                raise DataError(f"the target '{target}' holds text; the model was trained to predict numbers")
            return
        self.class_names = list(known.class_names)
        ways = [as_categories, *([] if is_text else [_named_by_truth, _named_by_number])]
        unknown = [{name for given in found for name in way(given)} - set(known.class_names) for way in ways]
        self._classes = next((way for way, left in zip(ways, unknown, strict=True) if not left), ways[0])
        if self._classes is ways[0] and unknown[0]:
            raise DataError(
                f"the target '{target}' holds {shorten(sorted(unknown[0]))}, which the model was not trained on; "
                f"it knows the classes {', '.join(self.class_names)}"
            )

    def _numbers(self, target: Column) -> Column:
        """Return the target of a regression; warn if float32 no longer distinguishes its values."""
        if self._dtype == torch.float64:
            return target
        with np.errstate(over="ignore"):  # infinity is refused with the other inputs and targets
            rounded = target.astype(np.float32)
        before, after = len(np.unique(target)), len(np.unique(rounded))
        if after < before / 2:
            warn_user(
                f"the target '{self.columns.target}' has {before} different values, of which single precision "
                f"distinguishes {after}; subtract their mean first"
            )
        return rounded

    def _target(self, table: Mapping[str, Any]) -> Column:
        if self.class_names is None:
            return self._numbers(_get(table, str(self.columns.target)))
        places = {name: place for place, name in enumerate(self.class_names)}
        return np.array([places[class_] for class_ in self._classes(table[str(self.columns.target)])], dtype=np.int64)


def _named_by_number(values: Any) -> Column:
    return as_text(as_column(values))


def _named_by_truth(values: Any) -> Column:
    column = as_column(values)
    return np.where(column == 1, *BOOLEAN_NAMES[::-1]) if np.isin(column, (0, 1)).all() else as_text(column)


def _get(table: Mapping[str, Any], name: str) -> Column:
    if name not in table:
        raise DataError(f"a part of the data has no column '{name}'; all parts need the same columns")
    return as_column(table[name], name)


def _categories(parts: list[Any], name: str) -> list[str]:
    """Return the categories of a column of text in all parts; a missing value is its own category."""
    categories = sorted({as_category for values in parts for as_category in as_categories(values, name).tolist()})
    commas = [item for item in categories if COMMA_NUMBER.fullmatch(item)]
    if commas and all(not item or item in commas or item.lstrip("+-").isdecimal() for item in categories):
        raise DataError(
            f"the column '{name}' holds numbers with a comma, such as {commas[-1]!r}; write them with a decimal point"
        )
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"the column '{name}' has {len(categories)} different texts, such as {categories[-1]!r}, too many for "
            "categories; leave it out: input_columns names the columns to use"
        )
    return categories
