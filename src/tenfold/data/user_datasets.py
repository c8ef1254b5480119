"""Tensors and arrays from the user, checked and turned into a part."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from tenfold.common.imports import user_frames, warn_user
from tenfold.data.columns import describe, split_sample
from tenfold.data.dataset_part import STACKED, Collate, DatasetPart, as_arrays, is_plain_pair, quiet_randomness
from tenfold.data.part import NO_LABEL, Part, Tensors, as_inputs, as_target, tree_leaves, tree_map
from tenfold.errors import DataError
from tenfold.experiment.experiment import is_loader


def is_array(value: Any) -> bool:
    """Return whether a value is a tensor, a NumPy array or convertible to one, or a sparse matrix."""
    return (
        isinstance(value, Tensor) or is_sparse(value) or (hasattr(value, "__array__") and not isinstance(value, type))
    )


def is_sparse(value: Any) -> bool:
    """Return whether a value is a sparse tensor or a sparse matrix of SciPy."""
    if isinstance(value, Tensor):
        return value.layout is not torch.strided
    return hasattr(value, "toarray") and hasattr(value, "nnz")


def part_from_arrays(x: Any, y: Any, part: str) -> Tensors:
    """Turn inputs x (one array, or a tuple or dict of them) and targets y into a part; `part` names it in errors."""
    y = _with_labels(as_target(_target(y, part)))
    if isinstance(x, Mapping):
        inputs: Any = {key: _input(one, y, f"the input '{key}'", part) for key, one in x.items()}
    elif isinstance(x, (tuple, list)):
        if len(x) == len(y) > 1 and all(len(as_tensor(one, f"x of the {part} part")) != len(y) for one in x[:2]):
            raise DataError(
                f"x of the {part} part is a list of {len(x)} arrays, one for each sample; stack them into one array: "
                "torch.stack(x) or numpy.stack(x)"
            )
        inputs = tuple(_input(one, y, f"input {i + 1}", part) for i, one in enumerate(x))
    else:
        inputs = _input(x, y, "x", part)
        if inputs.dim() < 2:
            shape = tuple(inputs.shape)
            raise DataError(f"x of the {part} part has shape {shape}; it should be (samples, features, ...)")
    if not len(y):
        raise DataError(f"the {part} part is empty; it should hold at least one sample")
    check_targets(y, part)
    return Tensors(as_inputs(inputs), y)


def _with_labels(y: Tensor) -> Tensor:
    """Return a column of labels as one dimension, and several labels per sample, 0 or 1 each, as floats."""
    if y.is_floating_point() or y.dim() != 2 or not y.numel():
        return y
    if y.shape[1] == 1:
        return y[:, 0]
    return y.float() if bool(((y == 0) | (y == 1)).all()) else y


def _input(value: Any, y: Tensor, name: str, part: str) -> Tensor:
    what = f"{name} of the {part} part"
    x = as_tensor(value, what)
    if len(x) != len(y):
        raise DataError(f"the {part} part has {len(x)} rows of {name} but {len(y)} of y; they should be equal")
    check_finite(x, what)
    if x.dtype == torch.uint8 and x.numel() and int(x.max()) <= 1:
        warn_of_flags(what)
    return x


def warn_of_flags(what: str) -> None:
    """Warn of uint8 inputs that are 0 or 1, which `as_input` takes for pixels."""
    warn_user(
        f"{what} is uint8 and holds only 0 and 1, but uint8 is taken for the pixels of images and divided by 255; give "
        "bool or int64 for a mask, float32 for numbers"
    )


def check_targets(y: Tensor, part: str) -> None:
    """Check that targets are finite floats, or labels 0..C-1: one per sample, or one for each of its positions."""
    if y.is_floating_point():
        check_finite(y, f"y of the {part} part")
        return
    known = y if y.dim() == 1 else y[y != NO_LABEL]
    lowest = int(known.min()) if known.numel() else NO_LABEL
    if lowest < 0:
        positions = "" if y.dim() == 1 else f", and {NO_LABEL} for positions without a label"
        raise DataError(f"the {part} part has the label {lowest}; labels should be integers from 0 up{positions}")


def check_finite(values: Tensor, what: str) -> None:
    """Check that there is no NaN and no infinity."""
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[0])
        raise DataError(f"{what} holds NaN or infinity, first in sample {row}; remove or fill such values")


def _target(y: Any, part: str) -> Tensor:
    if not isinstance(y, Tensor) and not is_sparse(y) and np.asarray(y).dtype.kind in "USO":
        raise DataError(
            f"labels of the {part} part are of type {np.asarray(y).dtype}; "
            f"number the classes 0, 1, 2, ... (numpy.unique(y, return_inverse=True)[1] does)"
        )
    return as_tensor(y, f"y of the {part} part")


def as_tensor(value: Any, what: str) -> Tensor:
    """Return a tensor or an array as a tensor in main memory; `what` names it in errors."""
    if is_sparse(value):
        dense = ".to_dense()" if isinstance(value, Tensor) else ".toarray()"
        raise DataError(f"{what} is sparse, which is not supported; convert it with {dense}")
    if isinstance(value, Tensor):
        result = value.detach().cpu()
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{what} is of type {array.dtype}; it should be numbers")
        if array.dtype.kind == "f":
            array = array.astype(np.float32, copy=False)
        elif array.dtype.kind != "b" and array.dtype != np.uint8:
            array = array.astype(np.int64, copy=False)
        # torch takes neither negative strides nor memory that it may not write to.
        result = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if result.is_complex() or result.is_quantized or result.dim() == 0:
        raise DataError(f"{what} is {result.dtype} of shape {tuple(result.shape)}; it should be real, samples first")
    return result.contiguous()


_MOST_READ_FOR_LABELS = 100_000
_MOST_LABELS_KEPT = 2**26
_READ_AT_ONCE = 1000
_MOST_COMPARED = 32


def is_dataset(value: Any) -> bool:
    """Return whether a value is a Dataset, or anything else with a length whose items are asked for by number."""
    if isinstance(value, Dataset):
        return True
    container = isinstance(value, (str, bytes, tuple, list, dict, type)) or is_array(value)
    return not container and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def read_by_loader(data: Any) -> tuple[Any, Callable[..., Any] | None]:
    """Return the Dataset that a DataLoader reads, and its own collate function; other data as they are.

    Several DataLoaders may be the parts of a tuple or a dict. The order and the size of their batches do not matter,
    and `drop_last` is ignored. A DataLoader whose sampler leaves out or repeats samples is refused.
    """
    if isinstance(data, Mapping):
        parts, collate = read_by_loader(tuple(data.values()))
        return dict(zip(data, parts, strict=True)), collate
    if isinstance(data, (tuple, list)) and any(map(is_loader, data)):
        read = [read_by_loader(part) for part in data]
        collates = [collate for part, (_, collate) in zip(data, read, strict=True) if is_loader(part)]
        if any(collate != collates[0] for collate in collates):
            raise DataError("the DataLoaders have different collate functions; give them one at a time")
        return tuple(part for part, _ in read), collates[0]
    if not is_loader(data):
        return data, None
    dataset, collate, batches = (getattr(data, name, None) for name in ("dataset", "collate_fn", "batch_sampler"))
    if dataset is None or isinstance(dataset, IterableDataset) or batches is None:
        raise DataError("data is a DataLoader without a map-style Dataset or a batch size; give arrays (x, y)")
    sampler = batches.sampler if type(batches) is BatchSampler else batches
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == len(dataset)
    )
    if not whole:
        raise DataError(
            f"data is a DataLoader whose {type(sampler).__name__} chooses the samples; give those samples as a "
            "Dataset, such as Subset(loader.dataset, indices)"
        )
    return dataset, None if collate is default_collate else collate


def part_from_dataset(dataset: Any, part: str, collate: Collate) -> DatasetPart:
    """Turn a map-style Dataset into a part; `part` names it in errors."""
    if not hasattr(dataset, "__len__"):
        raise DataError(f"the {part} part, a {type(dataset).__name__}, has no __len__; a map-style Dataset needs one")
    try:
        length = len(dataset)
    except (ValueError, TypeError, OverflowError) as error:
        if user_frames(error):
            raise
        raise DataError(f"the {part} part, a {type(dataset).__name__}, has no valid length: {error}") from None
    if not length:
        raise DataError(f"the {part} part is empty; it should hold at least one sample")
    with quiet_randomness():
        sample = dataset[0]
        if isinstance(sample, Mapping) and collate.function is None:
            collate = replace(collate, columns=collate.columns.choose(sample))  # the same for every sample
        label = _first_target(sample, part, collate)
        targets = _known_targets(dataset, label, collate)
    label_range = None
    if targets is None and not label.is_floating_point():
        if label.numel() * length <= _MOST_LABELS_KEPT:
            targets = _read_targets(dataset, part, collate, label.shape)
        else:
            label_range = _read_targets(dataset, part, collate, label.shape, keep=_range_of)
            check_targets(label_range, part)
    if targets is not None:
        _check_labels(targets, part)
        check_targets(targets, part)
    plain = collate == STACKED and is_plain_pair(sample)
    return DatasetPart(dataset, targets=targets, label_range=label_range, collate=None if plain else collate)


def first_sample(part: Part) -> tuple[Any, Tensor]:
    """Return x and y of one sample, as they come in a batch."""
    with quiet_randomness():
        x, y = next(part.batches([[0]]))
    return tree_map(lambda tensor: tensor[0], x), y[0]


def _first_target(sample: Any, part: str, collate: Collate) -> Tensor:
    if collate.function is not None:
        y: Any = _first_collated(sample, part, collate)
    else:
        x, y = split_sample(sample, collate.columns, f"a sample of the {part} part")
        _check_inputs(x, part)
        y = as_arrays(y)
    if not isinstance(y, (Tensor, np.ndarray, np.generic, int, float)) or np.asarray(y).dtype.kind not in "fiub":
        raise DataError(f"y of a sample of the {part} part is {describe(y)}; it should be a number")
    return as_target(torch.as_tensor(y))


def _check_inputs(x: Any, part: str) -> None:
    """Check that the inputs of a sample are a tensor or an array, or several of them in a tuple or dict."""
    several = as_arrays(x)
    named = several if isinstance(several, dict) else dict(enumerate(several)) if isinstance(several, tuple) else {}
    for name, one in (named or {"": several}).items():
        what = f"the input '{name}'" if named else "x"
        if is_sparse(one):
            raise DataError(f"{what} of a sample of the {part} part is sparse; convert it to a dense tensor")
        number = bool(named) and isinstance(one, (int, float, np.generic))
        if not (isinstance(one, (Tensor, np.ndarray)) and (one.ndim or named)) and not number:
            fix = "name the inputs with input_columns" if named else "let the Dataset's transform convert it"
            raise DataError(
                f"{what} of a sample of the {part} part is {describe(one)}; it should be a tensor or an array ({fix})"
            )
        if named and not number and one.ndim == 1 and _holds_flags(torch.as_tensor(one)):
            warn_of_flags(f"{what} of a sample of the {part} part")


def _holds_flags(value: Tensor) -> bool:
    return value.dtype == torch.uint8 and value.numel() > 0 and int(value.max()) <= 1


def _first_collated(sample: Any, part: str, collate: Collate) -> Tensor:
    x, y = collate([sample])
    odd = next((leaf for leaf in (*tree_leaves(x), *tree_leaves(y)) if not isinstance(leaf, Tensor)), None)
    if odd is not None or not isinstance(y, Tensor) or not y.ndim:
        raise DataError(
            f"collate made {describe(odd if odd is not None else y)} of a sample of the {part} part; it should return "
            "(x, y) or a dict, all tensors that begin with the number of samples"
        )
    return y[0]


def _known_targets(dataset: Any, first: Tensor, collate: Collate) -> Tensor | None:
    """Return the targets that the dataset itself lists, provided they are those its samples carry."""
    listed = _listed(dataset, collate.columns.target)
    if listed is None or len(listed) != len(dataset) or listed.dtype != first.dtype:
        return None
    some = np.unique(np.linspace(0, len(dataset) - 1, _MOST_COMPARED, dtype=np.int64)).tolist()

    def agrees(i: int) -> bool:
        carried = _target_of(dataset[i], collate)
        return np.array_equal(listed[i].reshape(-1).numpy(), carried.reshape(-1).numpy(), equal_nan=True)

    return listed if all(agrees(i) for i in some) else None


def _target_of(sample: Any, collate: Collate) -> Tensor:
    if collate.function is not None:
        return as_target(collate([sample])[1][0])
    return as_target(torch.as_tensor(as_arrays(split_sample(sample, collate.columns, "a sample")[1])))


def _listed(dataset: Any, column: str | None = None) -> Tensor | None:
    if isinstance(dataset, Subset):
        whole = _listed(dataset.dataset, column)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        several = [_listed(one, column) for one in dataset.datasets]
        return None if any(one is None for one in several) else torch.cat([one for one in several if one is not None])
    if column is not None and column in (getattr(dataset, "column_names", None) or ()):
        values = dataset[column]  # Hugging Face's data sets are asked for whole columns by name
    else:
        values = getattr(dataset, "targets", None)
        values = getattr(dataset, "labels", None) if values is None else values
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        return None
    return as_target(torch.as_tensor(array)) if array.dtype.kind in "fiub" and array.ndim else None


def _read_targets(
    dataset: Any, part: str, collate: Collate, shape: torch.Size, *, keep: Callable[[Tensor], Tensor] = lambda y: y
) -> Tensor:
    """Read the labels of all samples, and return what `keep` makes of each, stacked."""
    if len(dataset) > _MOST_READ_FOR_LABELS:
        raise DataError(
            f"the labels of the {part} part's {len(dataset)} samples are unknown and too many to read one by one; "
            f"give the Dataset an attribute 'targets' that lists them"
        )
    kept = []
    for start in range(0, len(dataset), _READ_AT_ONCE):
        with quiet_randomness():  # other threads wait for it: not for all samples at once
            for i in range(start, min(start + _READ_AT_ONCE, len(dataset))):
                label = _read_target(dataset[i], i, part, collate, single=not shape)
                if label.shape != shape:
                    raise DataError(
                        f"the labels of samples 0 and {i} of the {part} part have the shapes {tuple(shape)} and "
                        f"{tuple(label.shape)}; they should be the same, with {NO_LABEL} for positions without a label"
                    )
                kept.append(keep(label))
    return torch.stack(kept)


def _range_of(labels: Tensor) -> Tensor:
    """Return the lowest and the highest label of a sample; positions without a label do not count."""
    known = labels[labels != NO_LABEL]
    return torch.stack([known.min(), known.max()]) if len(known) else labels.new_full((2,), NO_LABEL)


def _check_labels(targets: Tensor, part: str) -> None:
    """Refuse labels in a list of one, and lists of integers 0 and 1: several labels, or one for each position?"""
    if targets.is_floating_point() or targets.dim() != 2:
        return
    if targets.shape[1] == 1:
        raise DataError(f"the label of a sample of the {part} part has the shape (1,); it should be a single number")
    if bool(((targets == 0) | (targets == 1)).all()):
        raise DataError(
            f"the label of a sample of the {part} part is {targets.shape[1]} integers 0 and 1; give floats 0.0 and 1.0 "
            'for several labels per sample (loss = "bce")'
        )


def _read_target(sample: Any, number: int, part: str, collate: Collate, *, single: bool) -> Tensor:
    try:
        target = _target_of(sample, collate)
        return target.reshape(()) if single else target
    except (RuntimeError, TypeError, ValueError) as error:
        if user_frames(error):
            raise
        raise DataError(
            f"the label of sample {number} of the {part} part should be a whole number, but: {error}"
        ) from None
