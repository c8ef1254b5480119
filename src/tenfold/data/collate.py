"""Turning samples of a Dataset into a batch of inputs and targets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from tenfold.data.table_columns import NOT_NAMED, Columns, split_sample
from tenfold.errors import DataError

HOW_TO_COLLATE = (
    "give collate = f(samples), which returns a batch (x, y), for example with torch.nn.utils.rnn.pad_sequence"
)


@dataclass(frozen=True)
class Collate:
    """What a DataLoader calls with the samples of a batch."""

    columns: Columns = NOT_NAMED
    function: Callable[[list[Any]], Any] | None = None
    """The user's own, which gets samples as they are, and returns a batch as (x, y) or a dict."""

    def __call__(self, samples: Sequence[Any]) -> tuple[Any, Any]:
        """Return inputs and targets of a batch."""
        if self.function is not None:
            return split_sample(self.function(list(samples)), self.columns, "what collate returned")
        pairs = [split_sample(sample, self.columns, "a sample") for sample in samples]
        try:
            x, y = default_collate([(as_arrays(x), as_arrays(y)) for x, y in pairs])
        except RuntimeError as error:
            raise different_shapes(error) or error from None
        return x, y


STACKED = Collate()
"""Samples that are pairs are stacked."""


def as_arrays(value: Any) -> Any:
    """Return a sample with lists of numbers as tensors, which is how Hugging Face's data sets give tokens."""
    if isinstance(value, Mapping):
        return {key: as_arrays(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], (int, float, bool, list, np.generic)):
        try:
            return torch.as_tensor(np.asarray(value))
        except (ValueError, TypeError):
            return value
    if isinstance(value, (tuple, list)):
        return tuple(map(as_arrays, value))
    return value


def different_shapes(error: Exception) -> DataError | None:
    """Return the error for samples that cannot be stacked, if that is what torch said."""
    _, found, sizes = str(error).partition("stack expects each tensor to be equal size, but got ")
    if not found:
        return None
    return DataError(f"samples differ in shape ({sizes.splitlines()[0]}), so they cannot be stacked; {HOW_TO_COLLATE}")


def is_plain_pair(sample: Any) -> bool:
    """Return whether a sample is (tensor or array, target), which torch's own collate handles best."""
    return isinstance(sample, (tuple, list)) and len(sample) == 2 and isinstance(sample[0], (Tensor, np.ndarray))
