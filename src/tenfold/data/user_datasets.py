"""Map-style Datasets from the user, checked and turned into a part."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from tenfold.data.dataset_part import DatasetPart, quiet_randomness
from tenfold.data.part import Part, as_target
from tenfold.data.user_arrays import check_targets, is_array, is_sparse
from tenfold.errors import DataError

_MOST_READ_FOR_LABELS = 100_000
_MOST_COMPARED = 32


def is_dataset(value: Any) -> bool:
    """Tell whether a value is a Dataset, or anything else with a length whose items are asked for by number."""
    if isinstance(value, Dataset):
        return True
    container = isinstance(value, (str, bytes, tuple, list, dict, type)) or is_array(value) or is_sparse(value)
    return not container and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def part_from_dataset(dataset: Any, part: str) -> DatasetPart:
    """Turn a map-style Dataset into a part; `part` names it in errors."""
    if not hasattr(dataset, "__len__"):
        raise DataError(f"the {part} part, a {type(dataset).__name__}, has no __len__; a map-style Dataset needs one")
    if not len(dataset):
        raise DataError(f"the {part} part is empty; it should hold at least one sample")
    with quiet_randomness():
        label = _first_target(dataset, part)
        targets = _known_targets(dataset, label)
        if targets is None and not label.is_floating_point():
            targets = _read_targets(dataset, part)
    if targets is not None:
        check_targets(targets, part)
    return DatasetPart(dataset, targets=targets)


def first_sample(part: Part) -> tuple[Tensor, Tensor]:
    """Return x and y of one sample, as they come in a batch."""
    with quiet_randomness():
        x, y = next(part.batches([[0]]))
    return x[0], y[0]


def _first_target(dataset: Any, part: str) -> Tensor:
    sample = dataset[0]
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise DataError(f"a sample of the {part} part is {_described(sample)}; it should be a pair (x, y)")
    x, y = sample
    if is_sparse(x):
        raise DataError(f"x of a sample of the {part} part is sparse; convert it to a dense tensor")
    if not (isinstance(x, (Tensor, np.ndarray)) and x.ndim):
        raise DataError(
            f"x of a sample of the {part} part is {_described(x)}; it should be a tensor or an array "
            f"(let the Dataset's transform convert it)"
        )
    if not isinstance(y, (Tensor, np.ndarray, np.generic, int, float)) or np.asarray(y).dtype.kind not in "fiub":
        raise DataError(f"y of a sample of the {part} part is {_described(y)}; it should be a number")
    target = as_target(torch.as_tensor(y))
    if target.dim() and not target.is_floating_point():
        raise DataError(f"the label of a sample of the {part} part is {target.numel()} numbers; it should be one")
    return target


def _known_targets(dataset: Any, first: Tensor) -> Tensor | None:
    """Return the targets that the dataset itself lists, provided they are those its samples carry."""
    listed = _listed(dataset)
    if listed is None or len(listed) != len(dataset) or listed.dtype != first.dtype:
        return None
    some = np.unique(np.linspace(0, len(dataset) - 1, _MOST_COMPARED, dtype=np.int64)).tolist()

    def alike(i: int) -> bool:
        carried = as_target(torch.as_tensor(dataset[i][1]))
        return np.array_equal(listed[i].reshape(-1).numpy(), carried.reshape(-1).numpy(), equal_nan=True)

    return listed if all(alike(i) for i in some) else None


def _listed(dataset: Any) -> Tensor | None:
    if isinstance(dataset, Subset):
        whole = _listed(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        several = [_listed(one) for one in dataset.datasets]
        return None if any(one is None for one in several) else torch.cat([one for one in several if one is not None])
    values = getattr(dataset, "targets", None)
    values = getattr(dataset, "labels", None) if values is None else values
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        return None
    return as_target(torch.as_tensor(array)) if array.dtype.kind in "fiub" and array.ndim else None


def _read_targets(dataset: Any, part: str) -> Tensor:
    if len(dataset) > _MOST_READ_FOR_LABELS:
        raise DataError(
            f"the labels of the {part} part's {len(dataset)} samples are unknown and too many to read one by one; "
            f"give the Dataset an attribute 'targets' that lists them"
        )
    return as_target(torch.as_tensor(np.asarray([int(dataset[i][1]) for i in range(len(dataset))])))


def _described(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"a {type(value).__name__}{size}"
