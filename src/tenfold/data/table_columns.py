"""Which columns of a table, or keys of a dict, are the inputs and which is the target."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tenfold.common.registry import suggest
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
        known = list(map(str, names))
        for name in (*(self.inputs or ()), *([self.target] if self.target is not None else [])):
            if name not in known:
                field = "target_column" if name == self.target else "input_columns"
                raise DataError(f"data.{field}: the data have no '{name}'; {suggest(name, known)}")
        target = self.target
        if target is None:
            usual = [name for name in TARGET_NAMES if name in known]
            found = [name for name in usual if name not in (self.inputs or ())] or usual
            if len(found) != 1:
                several = f"{' and '.join(found)} could both be" if found else f"none of {', '.join(known)} is known as"
                raise DataError(f'{several} the target; name it: target_column = "{(found or known)[-1]}"')
            target = found[0]
        inputs = self.inputs or tuple(name for name in known if name != target)
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


NOT_NAMED = Columns()
"""No names are given."""


def split_sample(sample: Any, columns: Columns, what: str) -> tuple[Any, Any]:
    """Return the inputs and the target of a sample or a batch: a dict, (x, y), or (a, b, ..., y).

    `what` names it in errors.
    """
    if isinstance(sample, Mapping):
        return columns.pick(sample)
    if columns != NOT_NAMED:
        raise DataError(
            f"data.target_column and data.input_columns name keys of dicts or columns of tables, but {what} is "
            f"{describe(sample)}"
        )
    if not isinstance(sample, (tuple, list)) or len(sample) < 2:
        raise DataError(f"{what} is {describe(sample)}; it should be a pair (x, y), a tuple (a, b, ..., y) or a dict")
    return (sample[0], sample[1]) if len(sample) == 2 else (tuple(sample[:-1]), sample[-1])


def describe(value: Any) -> str:
    """Return what kind of value this is, for errors."""
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"a {type(value).__name__}{size}"
