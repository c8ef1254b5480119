"""Tables with named columns, turned into one matrix of inputs and a target: numbers, categories, missing values."""

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.common.imports import warn_user
from tenfold.data.dataset_part import Columns
from tenfold.data.part import Tensors
from tenfold.data.user_datasets import ValueRules, part_from_arrays, warn_of_rounding
from tenfold.errors import DataError

MISSING = frozenset(("", "na", "n/a", "nan", "nat", "null", "none", "?", "<na>"))
BOOLEANS = {"true": 1.0, "false": 0.0}
DAY_SECONDS = 86_400
Column = NDArray[Any]


class Categories(list[str]):
    """A column whose values are categories, although they may look like numbers."""


def is_frame(value: Any) -> bool:
    """Return whether a value is a DataFrame of pandas or polars."""
    return hasattr(value, "columns") and hasattr(value, "__getitem__") and hasattr(value, "to_numpy")


def is_series(value: Any) -> bool:
    """Return whether a value is a single column: a Series of pandas or polars, or an array of one dimension."""
    return not is_frame(value) and (hasattr(value, "to_numpy") or isinstance(value, np.ndarray)) and value.ndim == 1


def columns_of(frame: Any) -> dict[str, Any]:
    """Return the columns of a DataFrame by name."""
    names = list(map(str, frame.columns))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"the table has {names.count(twice)} columns called '{twice}'; columns need different names")
    return {str(name): series_values(frame[name]) for name in frame.columns}


def series_values(series: Any) -> Any:
    """Return the values of a Series as an array; a categorical Series becomes categories."""
    values = series.to_numpy() if hasattr(series, "to_numpy") else np.asarray(series)
    if str(getattr(series, "dtype", "")).lower().startswith(("category", "categorical", "enum")):
        return Categories(_category(value) for value in values.tolist())
    return values


def as_column(values: Any, name: str = "") -> Column:
    """Return a column as floats, with NaN for missing values; as text if it is not numeric.

    True and false become 1 and 0; dates and times become days since the beginning of 1970, durations days.
    """
    if isinstance(values, Categories):
        return np.array(values, dtype=object)
    if getattr(values, "ndim", 1) == 1 and any(
        isinstance(value, (list, tuple, dict, np.ndarray)) for value in values[:1]
    ):
        raise DataError(
            f"the column{f' {name!r}' if name else ''} of a table holds lists; it should be one value per row"
        )
    array = np.asarray(values)
    if array.ndim != 1:
        raise DataError(f"a column of a table has the shape {array.shape}; it should be one value per row")
    if array.dtype.kind in "fiub":
        return array.astype(np.float64)
    if array.dtype.kind in "mM":
        days = array.astype(f"{array.dtype.kind}8[us]").astype(np.float64) / (DAY_SECONDS * 1e6)
        return np.where(np.isnat(array), np.nan, days)
    text = [_cell(item) for item in array.tolist()]
    for convert in (float, _boolean, _date):
        try:
            return np.array([np.nan if word.lower() in MISSING else convert(word) for word in text])
        except ValueError:
            continue
    return np.array(["" if word.lower() in MISSING else word for word in text], dtype=object)


def is_boolean(values: Any) -> bool:
    """Return whether a column holds only true and false, and missing values."""
    if isinstance(values, Categories):
        return False
    array = np.asarray(values)
    if array.dtype.kind != "O" and array.dtype.kind != "U":
        return array.dtype.kind == "b"
    text = [str(item).strip().lower() for item in array.tolist() if not _is_missing(item)]
    return any(word in BOOLEANS for word in text) and all(word in BOOLEANS or word in MISSING for word in text)


def as_categories(values: Any, name: str = "") -> Column:
    """Return a column as the names of its categories, "" for missing values.

    The name of a value does not depend on the others in its column: 01 is "01" even if all values are numbers.
    """
    if isinstance(values, Categories):
        return np.array(values, dtype=object)
    array = np.asarray(values)
    if array.dtype.kind in "UO":
        names = [_category(item) for item in array.tolist()]
        return np.array(["" if name.lower() in MISSING else name for name in names], dtype=object)
    return array.astype(str) if array.dtype.kind == "b" else as_text(as_column(values, name))


def as_text(column: Column) -> Column:
    """Return the values of a column as names of categories: whole numbers without a decimal point, "" if missing."""
    if column.dtype.kind != "f":
        return column.astype(str)
    return np.array(["" if np.isnan(value) else f"{value:.15g}" for value in column])


def _category(value: Any) -> str:
    """Return the name of one value as a category."""
    if _is_missing(value):
        return ""
    return f"{value:.15g}" if isinstance(value, float) else str(value).strip()


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # the missing value of pandas, which is neither equal to itself nor different
        return True


def _boolean(text: str) -> float:
    if text.lower() not in BOOLEANS:
        raise ValueError
    return BOOLEANS[text.lower()]


def _date(text: str) -> float:
    value = datetime.datetime.fromisoformat(text)
    return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp() / DAY_SECONDS


def _cell(value: Any) -> str:
    """Return a value as text, a duration in days; "" if it is missing."""
    if _is_missing(value):
        return ""
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds() / DAY_SECONDS
    return str(value).strip()


MOST_SHOWN = 3
InputColumns = dict[str, list[str] | None]
"""The columns of a table that hold the inputs, each with its categories; None for one that holds numbers."""


@dataclass(frozen=True)
class KnownData:
    """The inputs and the classes of the data that a model was trained on."""

    features: tuple[str, ...] = ()
    """The names of the inputs of a table: "age", "city=Rome"; none for images."""
    class_names: tuple[str, ...] = ()
    """The names of the classes; none for a regression."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> "KnownData | None":
        """Return the data's description in a run's metadata; None unless the data were a table or folders of images."""
        features, names = (tuple(metadata.get(key) or ()) for key in ("features", "class_names"))
        return cls(features, names) if features or names else None

    def columns(self, table: Mapping[str, Any], where: str) -> InputColumns:
        """Return the columns of a table that hold the inputs; `where` names the table in errors."""
        names = dict.fromkeys(_column_of(table, feature, where) for feature in self.features)
        return {name: None if name in self.features else self._categories(name) for name in names}

    def inputs(self, table: Mapping[str, Any], where: str, dtype: torch.dtype = torch.float32) -> NDArray[Any]:
        """Return the inputs of a table as a matrix; `where` names the table in errors."""
        return input_matrix(table, self.columns(table, where), where, dtype)

    def _categories(self, name: str) -> list[str]:
        return [feature.removeprefix(f"{name}=") for feature in self.features if feature.startswith(f"{name}=")]


def input_matrix(
    table: Mapping[str, Any], columns: InputColumns, where: str, dtype: torch.dtype = torch.float32
) -> NDArray[Any]:
    """Return columns as one matrix, categories one-hot: an unknown category becomes all zeros, with a warning."""
    blocks = []
    for name, categories in columns.items():
        if categories is not None:
            blocks.append(one_hot(as_categories(table[name], name), categories, name))
            continue
        column = as_column(table[name], name)
        if column.dtype.kind != "f":
            raise DataError(f"{where}: the column '{name}' holds text; it should hold numbers, as in training")
        if np.isinf(column).any():
            row = int(np.isinf(column).argmax())
            raise DataError(f"{where}: the column '{name}' holds infinity, first in row {row}; remove or replace it")
        if dtype != torch.float64:
            warn_of_rounding(column, f"{where}: the column '{name}'")
            column = column.astype(np.float32)
        blocks.append(column[:, None])
    return np.concatenate(blocks, 1)


def one_hot(values: Column, categories: list[str], name: str) -> NDArray[np.float32]:
    """Return one column for each known category of the column `name`; warn of unknown values."""
    unseen = set(values.tolist()) - set(categories)
    if unseen:
        new = sorted(unseen)
        rows = int(np.isin(values, new).sum())
        warn_user(
            f"the column '{name}' has values that the model was not trained on, in {rows} of {len(values)} rows: "
            f"{shorten(new)}; they count as none of its categories"
        )
    return np.stack([values == item for item in categories], 1).astype(np.float32)


def shorten(values: list[str]) -> str:
    """Return a few of these values for a message."""
    shown = ", ".join(repr(value) if value else "missing" for value in values[:MOST_SHOWN])
    return f"{shown}, ..." if len(values) > MOST_SHOWN else shown


def _column_of(table: Mapping[str, Any], feature: str, where: str) -> str:
    """Return the column of a feature such as "city=Rome"; names and categories may contain "="."""
    words = feature.split("=")
    names = ["=".join(words[:count]) for count in range(len(words), 0, -1)]
    column = next((name for name in names if name in table), None)
    if column is None:
        raise DataError(f"{where} has no column '{names[-1]}', which the model was trained on")
    return column


MOST_CATEGORIES = 100
"""A column of text with more different values than this is an error: it is a name or a description."""
MOST_INTEGER_CLASSES = 20
"""Whole numbers with at most this many different values are classes; with more, a regression."""
COMMA_NUMBER = re.compile(r"[+-]?\d+(,\d+)+(\.\d+)?")
BOOLEAN_NAMES = ("False", "True")


class TableEncoder:
    """Turns the parts of a table into matrices; the categories and classes are collected from all parts.

    With `trained_on`, the categories and classes of a model's training table are used instead.
    """

    def __init__(
        self, columns: Columns, trained_on: KnownData | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self.columns = columns
        self._dtype = dtype
        self.inputs: InputColumns = {}
        self.class_names: list[str] | None = None
        """The names of the classes; None for a regression."""
        self.has_missing = False
        self._trained_on = trained_on
        self._classes = _named_by_number

    def learn(self, tables: list[Mapping[str, Any]]) -> None:
        """Look at all parts to learn their categories and classes."""
        if self._trained_on is not None and self._trained_on.features:
            self.inputs = self._trained_on.columns(tables[0], "the table")
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
        arrays_part = part_from_arrays(filled, self._target(table), part, rules)  # this checks everything else
        return Tensors(arrays_part.x.new_tensor(x), arrays_part.y)

    @property
    def names(self) -> list[str]:
        """The names of the columns of the matrix: "age", "city=Rome"."""
        return [
            feature
            for name, categories in self.inputs.items()
            for feature in ([name] if categories is None else [f"{name}={item}" for item in categories])
        ]

    def describe(self) -> str:
        """Return a sentence that names the inputs and the target."""
        target = self.columns.target
        inputs = f"{len(self.inputs)} columns"
        if any(categories is not None for categories in self.inputs.values()):
            inputs += f" as {len(self.names)} inputs (categories are one-hot)"
        if self.class_names is None:
            return f"regression: '{target}' is predicted as a number, from {inputs}"
        shown = ", ".join(self.class_names[:5]) + (", ..." if len(self.class_names) > 5 else "")
        return f"classification: '{target}' has {len(self.class_names)} classes ({shown}), predicted from {inputs}"

    def _learn_target(self, targets: list[tuple[Column, Any]]) -> None:
        """Collect the names of the classes from the target of each part: as a column, and in its original form."""
        target = self.columns.target
        is_text = any(column.dtype.kind != "f" for column, _ in targets)
        named = [as_categories(given) if is_text else as_text(column) for column, given in targets]
        missing = int(sum((item == "").sum() for item in named))
        if missing:
            rows = sum(map(len, named))
            raise DataError(f"the target '{target}' is missing in {missing} of {rows} rows; remove these rows")
        if self._trained_on is not None:
            self._take_trained_target(self._trained_on, [given for _, given in targets], is_text)
        elif is_text:
            self._classes = as_categories
            self.class_names = sorted(set(np.concatenate(named).tolist()))
        elif all(is_boolean(given) for _, given in targets):
            self._classes = _named_by_truth
            self.class_names = sorted({name for _, given in targets for name in _named_by_truth(given)})
        else:
            values = np.unique(every := np.concatenate([column for column, _ in targets]))
            few = len(values) <= MOST_INTEGER_CLASSES and len(values) < len(every) / 2
            if few and (values == values.round()).all():
                self.class_names = as_text(values).tolist()
        if self._trained_on is None and self.class_names is not None and len(self.class_names) < 2:
            raise DataError(
                f"the target '{target}' is {self.class_names[0]} in all rows; a classification needs two classes"
            )

    def _take_trained_target(self, trained_on: KnownData, targets: list[Any], is_text: bool) -> None:
        target = self.columns.target
        if not trained_on.class_names:
            if is_text:
                raise DataError(f"the target '{target}' holds text; the model was trained to predict numbers")
            return
        self.class_names = list(trained_on.class_names)
        ways = [as_categories, *([] if is_text else [_named_by_truth, _named_by_number])]
        unknown = [{name for given in targets for name in way(given)} - set(trained_on.class_names) for way in ways]
        self._classes = next((way for way, left in zip(ways, unknown, strict=True) if not left), ways[0])
        if self._classes is ways[0] and unknown[0]:
            raise DataError(
                f"the target '{target}' holds {shorten(sorted(unknown[0]))}, which the model was not trained on; "
                f"it knows the classes {', '.join(self.class_names)}"
            )

    def _target(self, table: Mapping[str, Any]) -> Column:
        if self.class_names is None:
            return _get(table, str(self.columns.target))
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
            "categories; omit it: input_columns selects the columns to use"
        )
    return categories
