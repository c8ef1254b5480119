"""Which columns of a table, or keys of a dict, are the inputs and which is the target."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tenfold.catalog import suggest
from tenfold.data.part import as_input
from tenfold.errors import DataError

TARGET_NAMES = ("labels", "label", "targets", "target", "y", "class")
"""What the target is usually called; one of these is recognized where it is not named."""


@dataclass(frozen=True)
class Columns:
    """The names of the inputs and of the target, as far as they are given."""

    inputs: tuple[str, ...] | None = None
    target: str | None = None

    def choose(self, names: Iterable[str]) -> "Columns":
        """Return the inputs and the target among these names: by default all that are not the target."""
        present = list(map(str, names))
        for name in (*(self.inputs or ()), *([self.target] if self.target is not None else [])):
            if name not in present:
                field = "target_column" if name == self.target else "input_columns"
                raise DataError(f"data.{field}: the data have no '{name}'; {suggest(name, present)}")
        target = self.target
        if target is None:
            usual = [name for name in TARGET_NAMES if name in present]
            targets = [name for name in usual if name not in (self.inputs or ())] or usual
            if len(targets) != 1:
                several = (
                    f"{' and '.join(targets)} could both be" if targets else f"none of {', '.join(present)} is known as"
                )
                raise DataError(f'{several} the target; name it: target_column = "{(targets or present)[-1]}"')
            target = targets[0]
        inputs = self.inputs or tuple(name for name in present if name != target)
        if not inputs:
            raise DataError(f"the data have no column other than the target '{target}'; they need at least one input")
        return Columns(inputs, target)

    def pick(self, values: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return inputs and target: a single input as it is, several in a dict."""
        chosen = self if self.inputs is not None and self.target in values else self.choose(values)
        assert chosen.inputs is not None
        assert chosen.target is not None
        inputs = {name: values[name] for name in chosen.inputs}
        return inputs if len(inputs) > 1 else next(iter(inputs.values())), values[chosen.target]


NOT_NAMED: Columns = Columns()
"""No names are given."""


def split_sample(sample: Any, columns: Columns, what: str) -> tuple[Any, Any]:
    """Return the inputs and the target of a sample or a batch: a dict, (x, y), (a, b, ..., y), or x alone.

    `what` names it in errors.
    """
    if isinstance(sample, Mapping):
        return columns.pick(sample)
    if columns != NOT_NAMED:
        raise DataError(
            f"data.target_column and data.input_columns name keys of dicts or columns of tables, but {what} is "
            f"{describe(sample)}"
        )
    if isinstance(sample, (tuple, list)) and len(sample) == 1:
        sample = sample[0]
    if isinstance(sample, (torch.Tensor, np.ndarray)) and sample.ndim:
        inputs = torch.as_tensor(sample)
        floats = inputs.dtype if inputs.is_floating_point() else torch.float32
        return sample, as_input(inputs, floats)  # without a target: the network learns to return its inputs
    if not isinstance(sample, (tuple, list)) or len(sample) < 2:
        raise DataError(f"{what} is {describe(sample)}; it should be a pair (x, y), a tuple (a, b, ..., y) or a dict")
    return (sample[0], sample[1]) if len(sample) == 2 else (tuple(sample[:-1]), sample[-1])


def describe(value: Any) -> str:
    """Return what kind of value this is, for errors."""
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"a {type(value).__name__}{size}"


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
    """Return the values of a Series as an array; those of a categorical one as categories."""
    values = series.to_numpy() if hasattr(series, "to_numpy") else np.asarray(series)
    if str(getattr(series, "dtype", "")).lower().startswith(("category", "categorical", "enum")):
        return Categories(_category(value) for value in values.tolist())
    return values


def as_column(values: Any, name: str = "") -> Column:
    """Return a column as floats, with NaN where a value is missing; or as text, where that cannot be.

    True and false are 1 and 0; dates and times become days since the beginning of 1970, durations days.
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
    """Return a column as the names of its categories, "" where a value is missing.

    What a value is called does not depend on the others in its column: 01 is "01" even where all are numbers.
    """
    if isinstance(values, Categories):
        return np.array(values, dtype=object)
    array = np.asarray(values)
    if array.dtype.kind in "UO":
        names = [_category(item) for item in array.tolist()]
        return np.array(["" if name.lower() in MISSING else name for name in names], dtype=object)
    return array.astype(str) if array.dtype.kind == "b" else as_text(as_column(values, name))


def as_text(column: Column) -> Column:
    """Return the values of a column as categories are called: whole numbers without a point, "" if missing."""
    if column.dtype.kind != "f":
        return column.astype(str)
    return np.array(["" if np.isnan(value) else f"{value:.15g}" for value in column])


def _category(value: Any) -> str:
    """Return what one value is called as a category."""
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
