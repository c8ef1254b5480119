"""Tensors and arrays from the user, checked and turned into a part."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenfold.common.user_code import warn_user
from tenfold.data.part import NO_LABEL, Tensors, as_inputs, as_target
from tenfold.errors import DataError


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
