"""Turns the user's own tensors, arrays and Datasets into parts, after checking them."""

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from tenfold.common.imports import user_frames, warn_user
from tenfold.data.dataset_part import (
    STACKED,
    Collate,
    DatasetPart,
    as_arrays,
    describe,
    is_plain_pair,
    quiet_randomness,
    split_sample,
)
from tenfold.data.part import NO_LABEL, Part, Tensors, as_inputs, as_target, move, tree_leaves, tree_map
from tenfold.data.streams import StreamPart, is_stream
from tenfold.errors import DataError
from tenfold.experiment.experiment import is_loader


@dataclass(frozen=True)
class ValueRules:
    """The values that labels may have, and the dtype to which floats are converted."""

    classes: int | None = None
    """The number of classes, if given; labels must be smaller."""
    any_integer: bool = False
    """Whether labels may be below 0, because the loss is the user's own."""
    dtype: torch.dtype = torch.float32
    """The dtype of the network's weights and of its float inputs."""


PLAIN_VALUES = ValueRules()
"""Labels 0..C-1; the largest label determines the number of classes."""


MOST_ROUNDED = 10_000
"""The number of samples that are checked for a loss of precision in float32."""
SMALLEST_VARIATION = 1e-12
LARGEST_ROUNDING = 0.01
"""The rounding error, as a share of the standard deviation, above which a warning is given."""


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


def part_from_arrays(x: Any, y: Any, part: str, rules: ValueRules = PLAIN_VALUES) -> Tensors:
    """Turn inputs x (one array, or a tuple or dict of them) and targets y into a part; `part` names it in errors."""
    dtype = rules.dtype
    y = _with_labels(as_target(_target(y, part, dtype), dtype))
    if isinstance(x, Mapping):
        inputs: Any = {key: _input(item, y, f"the input '{key}'", part, dtype) for key, item in x.items()}
    elif isinstance(x, (tuple, list)):
        if len(x) == len(y) > 1 and all(len(as_tensor(item, f"x of the {part} part")) != len(y) for item in x[:2]):
            raise DataError(
                f"x of the {part} part is a list of {len(x)} arrays, one for each sample; stack them into one array: "
                "torch.stack(x) or numpy.stack(x)"
            )
        inputs = tuple(_input(item, y, f"input {i + 1}", part, dtype) for i, item in enumerate(x))
    else:
        inputs = _input(x, y, "x", part, dtype)
        if inputs.dim() < 2:
            shape = tuple(inputs.shape)
            raise DataError(f"x of the {part} part has shape {shape}; it should be (samples, features, ...)")
    if not len(y):
        raise DataError(f"the {part} part is empty; it should hold at least one sample")
    check_targets(y, part, rules)
    return Tensors(as_inputs(inputs, dtype), move(y, "cpu", dtype))


def _with_labels(y: Tensor) -> Tensor:
    """Return a column of labels as one dimension, and several labels per sample, 0 or 1 each, as floats."""
    if y.is_floating_point() or y.dim() != 2 or not y.numel():
        return y
    if y.shape[1] == 1:
        return y[:, 0]
    return y.float() if bool(((y == 0) | (y == 1)).all()) else y


def _input(value: Any, y: Tensor, name: str, part: str, dtype: torch.dtype) -> Tensor:
    what = f"{name} of the {part} part"
    x = as_tensor(value, what, dtype)
    if len(x) != len(y):
        raise DataError(f"the {part} part has {len(x)} rows of {name} but {len(y)} of y; they should be equal")
    check_finite(x, what)
    if x.dtype == torch.uint8 and x.numel() and int(x.max()) <= 1:
        warn_of_flags(what)
    return x


def warn_of_flags(what: str) -> None:
    """Warn of uint8 inputs that are all 0 or 1, because `as_input` treats uint8 as pixels."""
    warn_user(
        f"{what} is uint8 and holds only 0 and 1, but uint8 is taken for the pixels of images and divided by 255; give "
        "bool or int64 for a mask, float32 for numbers"
    )


def check_targets(y: Tensor, part: str, rules: ValueRules = PLAIN_VALUES) -> None:
    """Check that targets are finite floats, or labels 0..C-1: one per sample, or one for each of its positions."""
    if y.is_floating_point():
        check_finite(y, f"y of the {part} part")
        return
    labels = y if y.dim() == 1 else y[y != NO_LABEL]
    lowest = int(labels.min()) if labels.numel() else NO_LABEL
    if rules.classes is not None and labels.numel() and int(labels.max()) >= rules.classes:
        raise DataError(
            f"the {part} part has the label {int(labels.max())}; with classes = {rules.classes}, labels should be "
            f"integers from 0 to {rules.classes - 1}"
        )
    if lowest < 0 and not rules.any_integer:
        positions = "" if y.dim() == 1 else f", and {NO_LABEL} for positions without a label"
        raise DataError(
            f"the {part} part has the label {lowest}; labels should be integers from 0 up{positions}, or "
            "use your own loss for such labels"
        )


def check_finite(values: Tensor, what: str) -> None:
    """Raise a DataError for NaN or infinity."""
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values)).reshape(len(values), -1).any(1).nonzero()[0])
        raise DataError(f"{what} holds NaN or infinity, first in sample {row}; remove or fill such values")


def holds_words(y: Any) -> bool:
    """Return whether targets are words: one for each sample."""
    if isinstance(y, Tensor) or is_sparse(y):
        return False
    array = np.asarray(y)
    if array.ndim != 1 and array.shape[1:] != (1,):
        return False
    return array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat))


def _target(y: Any, part: str, dtype: torch.dtype) -> Tensor:
    if not isinstance(y, Tensor) and not is_sparse(y) and np.asarray(y).dtype.kind in "USO":
        raise DataError(
            f"labels of the {part} part are of type {np.asarray(y).dtype}; "
            f"number the classes 0, 1, 2, ... (numpy.unique(y, return_inverse=True)[1] does)"
        )
    return as_tensor(y, f"y of the {part} part", dtype)


def warn_of_rounding(values: NDArray[np.float64], what: str) -> None:
    """Warn if float64 values are so close together that their differences are lost in float32."""
    if not values.ndim or not values.size:
        return
    some = values[:MOST_ROUNDED].reshape(min(len(values), MOST_ROUNDED), -1)
    some = some[np.isfinite(some).all(1)]
    with np.errstate(over="ignore"):
        lost = np.abs(some - some.astype(np.float32)).max(0, initial=0.0)
    deviation, size = some.std(0) if len(some) else lost, np.abs(some).max(0, initial=0.0)
    varies = deviation > SMALLEST_VARIATION * size  # a smaller deviation is rounding error of float64
    if not bool((varies & np.isfinite(lost) & (lost > LARGEST_ROUNDING * deviation)).any()):
        return
    warn_user(
        f"{what} is float64, and float32, which it is converted to, does not tell its values apart: they are large "
        "and close together, such as 1700000001.0 and 1700000002.0; subtract a constant, such as their mean, or "
        'train in float64 with precision = "fp64"'
    )


def refuse_mask(value: Any, what: str) -> None:
    """Raise a DataError if a masked array has masked values."""
    if isinstance(value, np.ma.MaskedArray) and (masked := int(np.ma.getmaskarray(value).sum())):
        raise DataError(
            f"{what} is a masked array with {masked} masked values; fill them, for example with "
            "array.filled(value), or remove these samples"
        )


def as_tensor(value: Any, what: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a tensor or an array as a tensor in main memory, where floats have the dtype or that of the tensor.

    `what` names it in errors.
    """
    if is_sparse(value):
        dense = ".to_dense()" if isinstance(value, Tensor) else ".toarray()"
        raise DataError(f"{what} is sparse, which is not supported; convert it with {dense}")
    if isinstance(value, Tensor):
        result = value.detach().cpu()
    else:
        refuse_mask(value, what)
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{what} is of type {array.dtype}; it should be numbers")
        if array.dtype.kind == "f":
            array = array.astype(np.float64 if dtype == torch.float64 else np.float32, copy=False)
        elif array.dtype.kind != "b" and array.dtype != np.uint8:
            array = array.astype(np.int64, copy=False)
        # torch supports neither negative strides nor read-only memory.
        result = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    if dtype != torch.float64:
        if not isinstance(value, Tensor) and getattr(value, "dtype", None) == np.float64:
            warn_of_rounding(np.asarray(value), what)
        elif result.dtype == torch.float64:
            warn_of_rounding(result.numpy(), what)
    if result.is_complex() or result.is_quantized or result.dim() == 0:
        raise DataError(
            f"{what} is {result.dtype} of shape {tuple(result.shape)}; it should be real, with the "
            "samples in the first dimension"
        )
    return result.contiguous()


_SECONDS_BEFORE_WARNING = 5.0
_MOST_LABELS_KEPT = 2**26
_READ_AT_ONCE = 1000
_MOST_COMPARED = 32
_LABELS: dict[int, tuple[weakref.ref[Any], Collate, Tensor]] = {}
"""Cached labels, by the id of their dataset."""


def is_dataset(value: Any) -> bool:
    """Return whether a value is a Dataset or a stream, or has a length and numbered items."""
    if isinstance(value, Dataset) or is_stream(value):
        return True
    container = isinstance(value, (str, bytes, tuple, list, dict, type)) or is_array(value)
    return not container and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def read_by_loader(data: Any) -> tuple[Any, Callable[..., Any] | None]:
    """Return the Dataset that a DataLoader reads, and its custom collate function; other data are returned unchanged.

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
    if dataset is not None and is_stream(dataset):
        return dataset, None if collate is default_collate else collate
    if dataset is None or batches is None:
        raise DataError("data is a DataLoader without a map-style Dataset or a batch size; give arrays (x, y)")
    sampler = batches.sampler if type(batches) is BatchSampler else batches
    if not visits_all(sampler, len(dataset)):
        raise DataError(
            f"data is a DataLoader whose {type(sampler).__name__} chooses the samples; give those samples as a "
            "Dataset, such as Subset(loader.dataset, indices)"
        )
    return dataset, None if collate is default_collate else collate


def visits_all(sampler: Any, samples: int) -> bool:
    """Return whether a sampler visits each of `samples` samples exactly once."""
    shuffles = isinstance(sampler, RandomSampler) and not sampler.replacement and len(sampler) == samples
    return shuffles or isinstance(sampler, SequentialSampler)


def part_from_dataset(
    dataset: Any, part: str, collate: Collate, rules: ValueRules = PLAIN_VALUES
) -> tuple[DatasetPart, int | None]:
    """Turn a map-style Dataset into a part; `part` names it in errors. Also return the number of classes if known.

    If the dataset does not list its labels, they are read from its samples: immediately if the number of classes is
    unknown otherwise, else when they are needed (`DatasetPart.read_targets`).
    """
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
        targets = _known_targets(dataset, label, collate, rules.dtype)
    plain = collate == STACKED and is_plain_pair(sample)
    make = partial(DatasetPart, dataset, collate=None if plain else collate, dtype=rules.dtype)
    if label.is_floating_point() or targets is not None:
        if targets is not None:
            _check_labels(targets, part)
            check_targets(targets, part, rules)
        return make(known_targets=targets), None
    classes = rules.classes or _count_listed_classes(dataset, collate.columns.target)
    if classes is None and label.numel() * length > _MOST_LABELS_KEPT:
        label_range = _read_targets(dataset, part=part, collate=collate, shape=label.shape, keep=_range_of)
        check_targets(label_range, part, rules)
        return make(label_range=label_range), None
    read = partial(_labels_of, part=part, collate=collate, shape=label.shape, rules=replace(rules, classes=classes))
    if classes is None:
        return make(known_targets=read(dataset)), None
    check = partial(check_targets, part=part, rules=replace(rules, classes=classes))
    return make(read_labels=None if label.ndim else read, check_labels=check), classes


def part_from_stream(dataset: Any, part: str, collate: Collate, rules: ValueRules) -> tuple[StreamPart, int | None]:
    """Turn an iterable-style Dataset into a part, and return it with the number of classes."""
    with quiet_randomness():
        samples = iter(dataset)
        if samples is dataset:
            raise DataError(
                f"the {part} part, a {type(dataset).__name__}, can be read only once: its __iter__ returns itself; "
                "make it start over each time, for example by yielding the samples"
            )
        nothing = object()
        sample = next(samples, nothing)
        if sample is nothing:
            raise DataError(
                f"the {part} part, a {type(dataset).__name__}, is empty; it should hold at least one sample"
            )
        if isinstance(sample, Mapping) and collate.function is None:
            collate = replace(collate, columns=collate.columns.choose(sample))
        label = _first_target(sample, part, collate)
    if label.is_floating_point():
        return StreamPart(dataset, collate, dtype=rules.dtype), None
    classes = rules.classes or _count_listed_classes(dataset, collate.columns.target)
    if classes is None:
        raise DataError(
            f"the {part} part is a stream of labels with an unknown number of classes; set classes = (their number)"
        )
    check = partial(check_targets, part=part, rules=replace(rules, classes=classes))
    return StreamPart(dataset, collate, dtype=rules.dtype, check_labels=check), classes


def first_sample(part: Part) -> tuple[Any, Tensor]:
    """Return x and y of one sample, in the form they have in a batch."""
    with quiet_randomness():
        x, y = next(part.batches([[0]]))
    return tree_map(lambda leaf: leaf.data[0] if isinstance(leaf, PackedSequence) else leaf[0], x), y[0]


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
    for name, item in (named or {"": several}).items():
        what = f"the input '{name}'" if named else "x"
        refuse_mask(item, f"{what} of a sample of the {part} part")
        if is_sparse(item):
            raise DataError(f"{what} of a sample of the {part} part is sparse; convert it to a dense tensor")
        number = bool(named) and isinstance(item, (int, float, np.generic))
        if not (isinstance(item, (Tensor, np.ndarray)) and (item.ndim or named)) and not number:
            fix = "name the inputs with input_columns" if named else "let the Dataset's transform convert it"
            raise DataError(
                f"{what} of a sample of the {part} part is {describe(item)}; it should be a tensor or an array ({fix})"
            )
        if named and not number and item.ndim == 1 and _holds_flags(torch.as_tensor(item)):
            warn_of_flags(f"{what} of a sample of the {part} part")


def _holds_flags(value: Tensor) -> bool:
    return value.dtype == torch.uint8 and value.numel() > 0 and int(value.max()) <= 1


def _first_collated(sample: Any, part: str, collate: Collate) -> Tensor:
    x, y = collate([sample])
    inputs = [leaf for leaf in tree_leaves(x) if not isinstance(leaf, PackedSequence)]
    odd = next((leaf for leaf in (*inputs, *tree_leaves(y)) if not isinstance(leaf, Tensor)), None)
    if odd is not None or not isinstance(y, Tensor) or not y.ndim:
        raise DataError(
            f"collate made {describe(odd if odd is not None else y)} of a sample of the {part} part; it should return "
            "(x, y) or a dict, of tensors whose first dimension is the samples"
        )
    return y[0]


def _known_targets(dataset: Any, first: Tensor, collate: Collate, dtype: torch.dtype) -> Tensor | None:
    """Return the targets that the dataset lists, provided that they match the targets of its samples."""
    listed = _listed(dataset, collate.columns.target, dtype)
    if listed is None or len(listed) != len(dataset) or listed.is_floating_point() != first.is_floating_point():
        return None
    return listed if _agree(listed, dataset, collate) else None


def _agree(listed: Tensor, dataset: Any, collate: Collate) -> bool:
    """Return whether the listed targets match those of a few samples spread over the dataset."""
    some = np.unique(np.linspace(0, len(dataset) - 1, _MOST_COMPARED, dtype=np.int64)).tolist()

    def agrees(i: int) -> bool:
        carried = _target_of(dataset[i], collate)
        same = as_target(listed[i]).reshape(-1).numpy()  # both rounded to float32, because one of them may already be
        return np.array_equal(same, carried.reshape(-1).numpy(), equal_nan=True)

    with quiet_randomness():
        return len(listed) == len(dataset) and all(agrees(i) for i in some)


def _target_of(sample: Any, collate: Collate) -> Tensor:
    if collate.function is not None:
        return as_target(collate([sample])[1][0])
    return as_target(torch.as_tensor(as_arrays(split_sample(sample, collate.columns, "a sample")[1])))


def _listed(dataset: Any, column: str | None, dtype: torch.dtype) -> Tensor | None:
    if isinstance(dataset, Subset):
        whole = _listed(dataset.dataset, column, dtype)
        return None if whole is None else whole[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        several = [_listed(item, column, dtype) for item in dataset.datasets]
        return (
            None if any(item is None for item in several) else torch.cat([item for item in several if item is not None])
        )
    if column is not None and column in (getattr(dataset, "column_names", None) or ()):
        values = dataset[column]  # Hugging Face data sets return whole columns by name
    else:
        values = getattr(dataset, "targets", None)
        values = getattr(dataset, "labels", None) if values is None else values
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        return None
    return as_target(torch.as_tensor(array), dtype) if array.dtype.kind in "fiub" and array.ndim else None


def _count_listed_classes(dataset: Any, column: str | None) -> int | None:
    """Return the number of classes that a dataset reports, such as the length of `classes` in torchvision."""
    if isinstance(dataset, Subset):
        return _count_listed_classes(dataset.dataset, column)
    if isinstance(dataset, ConcatDataset):
        several = {_count_listed_classes(item, column) for item in dataset.datasets}
        return several.pop() if len(several) == 1 else None
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):  # Hugging Face data sets
        number = getattr(features.get(column), "num_classes", None)
        return number if isinstance(number, int) and number > 1 else None
    names = getattr(dataset, "classes", None)
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        return None
    return len(names) if len(names) > 1 else None


def _labels_of(dataset: Any, *, part: str, collate: Collate, shape: torch.Size, rules: ValueRules) -> Tensor:
    """Return the labels of all samples, checked; they are read once for each dataset and then cached."""
    cached = _LABELS.get(id(dataset))
    if cached is not None and cached[0]() is dataset and cached[1] == collate and _agree(cached[2], dataset, collate):
        return cached[2]
    labels = _read_targets(dataset, part=part, collate=collate, shape=shape)
    _check_labels(labels, part)
    check_targets(labels, part, rules)
    with suppress(TypeError):  # not all objects support weak references
        weakref.finalize(dataset, _LABELS.pop, id(dataset), None)
        _LABELS[id(dataset)] = weakref.ref(dataset), collate, labels
    return labels


def _read_targets(
    dataset: Any,
    *,
    part: str,
    collate: Collate,
    shape: torch.Size,
    keep: Callable[[Tensor], Tensor] = lambda y: y,
) -> Tensor:
    """Read the labels of all samples, and return what `keep` makes of each, stacked."""
    kept: list[Tensor] = []
    began: float | None = perf_counter()
    for start in range(0, len(dataset), _READ_AT_ONCE):
        if began is not None and perf_counter() - began > _SECONDS_BEFORE_WARNING:
            began = None  # once
            warn_user(
                f"the labels of the {part} part are read one by one: {start:,} of {len(dataset):,} samples so far; "
                "an attribute 'targets' of the Dataset that lists them, or classes = (their number), avoids that"
            )
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
    present = labels[labels != NO_LABEL]
    return torch.stack([present.min(), present.max()]) if len(present) else labels.new_full((2,), NO_LABEL)


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
