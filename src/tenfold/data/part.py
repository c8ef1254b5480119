"""A part of a data set (train, validation or test), held as tensors or trees of tensors."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from tenfold.common import PARTS
from tenfold.errors import DataError, ModelError

MAIN_OUTPUTS = ("logits", "output", "outputs", "prediction", "predictions")
"""Names of the main output of a network with several outputs, in order of preference."""


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to every leaf; lists become tuples, mappings become dicts, named tuples keep their type.

    A packed sequence (`torch.nn.utils.rnn.PackedSequence`) is a leaf, although it is a tuple.
    """
    if isinstance(tree, (Tensor, PackedSequence)):
        return function(tree)
    if isinstance(tree, Mapping):
        return {key: tree_map(function, item) for key, item in tree.items()}
    if isinstance(tree, (tuple, list)):
        return _tuple_like(tree, [tree_map(function, item) for item in tree])
    return function(tree)


def _tuple_like(tree: Sequence[Any], items: list[Any]) -> Any:
    """Return items as a named tuple of the same type if the tree is one, else as a tuple."""
    return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)


def tree_leaves(tree: Any) -> list[Any]:
    """Return all leaves, in order."""
    if isinstance(tree, PackedSequence):
        return [tree]
    if isinstance(tree, Mapping):
        return [leaf for item in tree.values() for leaf in tree_leaves(item)]
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in tree_leaves(item)]
    return [tree]


def tree_combine(function: Callable[[list[Any]], Any], trees: Sequence[Any]) -> Any:
    """Apply a function to corresponding leaves of several trees with the same structure."""
    first = trees[0]
    if isinstance(first, Mapping):
        return {key: tree_combine(function, [tree[key] for tree in trees]) for key in first}
    if isinstance(first, (tuple, list)):
        return _tuple_like(first, [tree_combine(function, list(items)) for items in zip(*trees, strict=True)])
    return function(list(trees))


def tree_concatenate(trees: Sequence[Any]) -> Any:
    """Join trees of tensors along the samples."""
    return tree_combine(torch.cat, trees)


def select_rows(tree: Any, rows: Tensor) -> Any:
    """Return these rows of every tensor."""
    if any(isinstance(leaf, PackedSequence) for leaf in tree_leaves(tree)):
        raise DataError("a packed sequence cannot be divided into micro-batches; set accumulate = 1")
    return tree_map(lambda tensor: tensor.index_select(0, rows), tree)


def shape_of(tree: Any) -> Any:
    """Return the shape of a tensor, or the shapes of a tuple or dict of tensors with the same structure."""
    if isinstance(tree, (tuple, list)) and not isinstance(tree, PackedSequence):
        return tuple(map(shape_of, tree))
    if isinstance(tree, Mapping):
        return {key: shape_of(item) for key, item in tree.items()}
    return tuple(tree.data.shape if isinstance(tree, PackedSequence) else tree.shape)


def shape_from_record(recorded: Any) -> Any:
    """Return the shape or shapes stored as JSON, converting lists to tuples."""
    if isinstance(recorded, dict):
        return {key: shape_from_record(shape) for key, shape in recorded.items()}
    return tuple(shape_from_record(item) if isinstance(item, list) else item for item in recorded)


def describe_shape(shape: Any) -> str:
    """Return a shape as text, "1x28x28", or several: "a 3, b 5x2"."""
    if isinstance(shape, dict):
        return ", ".join(f"{key} {describe_shape(item)}" for key, item in shape.items())
    if has_several(shape):
        return ", ".join(map(describe_shape, shape))
    return "x".join(map(str, shape)) or "1"


def has_several(shape: Any) -> bool:
    """Return whether these are the shapes of several tensors."""
    return isinstance(shape, dict) or any(not isinstance(length, int) for length in shape)


def find_main_output(outputs: Any) -> Tensor | None:
    """Return the output tensor that is compared with the targets, or None if there is none."""
    if isinstance(outputs, Tensor):
        return outputs
    for key in MAIN_OUTPUTS if isinstance(outputs, dict) else ():
        if isinstance(outputs.get(key), Tensor):
            return outputs[key]  # type: ignore[no-any-return]
    others = {key: item for key, item in outputs.items() if key != "loss"} if isinstance(outputs, dict) else outputs
    tensors = [leaf for leaf in tree_leaves(others) if leaf.ndim]
    return tensors[0] if len(tensors) == 1 else None


def change_main_output(function: Callable[[Tensor], Tensor], outputs: Any) -> Any:
    """Apply a function to the main output of a network, and return all outputs."""
    if isinstance(outputs, Tensor):
        return function(outputs)
    leaves = tree_leaves(outputs) if isinstance(outputs, (tuple, list, dict)) else [outputs]
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise ModelError(
            f"the network returns a {type(outputs).__name__}; with standardized targets it should return a tensor, "
            "or a tuple or dict of tensors; set standardize = false"
        )
    main = find_main_output(outputs)
    return outputs if main is None else tree_map(lambda one: function(main) if one is main else one, outputs)


def main_output(outputs: Any, name: str) -> Tensor:
    """Return the main output for a built-in loss or metric; `name` names it in errors."""
    output = find_main_output(outputs)
    if output is not None:
        return output
    kind = f"a dict ({', '.join(outputs)})" if isinstance(outputs, dict) else f"a tuple of {len(outputs)}"
    raise ModelError(
        f"the network returns {kind}, and {name} needs one tensor; return one, call it 'logits' in a dict, or give a "
        "function: f(outputs, targets)"
    )


CPU = torch.device("cpu")
MOST_PENDING = 2048
"""With more unread copies than this, the older half is read, which the device has finished by then."""


class CopyTimer:
    """Adds up the seconds that a device spends on copies; on a CPU, it does nothing.

    `mark` records an event in the stream of the device and returns it; by default that of a GPU.
    """

    def __init__(self, device: torch.device, mark: Callable[[], Any] | None = None) -> None:
        self._device = device
        self._mark = mark or (self._cuda_event if device.type == "cuda" else None)
        self._pending: list[tuple[Any, Any]] = []
        self._seconds = 0.0

    @contextmanager
    def timing(self) -> Iterator[None]:
        if self._mark is None:
            yield
            return
        begin = self._mark()
        yield
        self._pending.append((begin, self._mark()))
        if len(self._pending) > MOST_PENDING:
            self._read(MOST_PENDING // 2)

    def take(self) -> float:
        """Wait for the last copy, and return the seconds of copies since the last call."""
        self._read(len(self._pending))
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _read(self, count: int) -> None:
        read, self._pending = self._pending[:count], self._pending[count:]
        if read:
            read[-1][1].synchronize()
        self._seconds += sum(begin.elapsed_time(end) for begin, end in read) / 1e3

    def __reduce__(self) -> tuple[Any, ...]:
        return CopyTimer, (self._device,)

    def _cuda_event(self) -> torch.cuda.Event:
        """Record an event in the stream of this GPU, whichever GPU is the current one of this process."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


Indices = Tensor | NDArray[np.int64] | Sequence[int]
NO_LABEL = -100
"""The label of positions without a label, as in torch; cross-entropy and accuracy ignore them."""
_FINGERPRINT_ELEMENTS = 2**20


class Part(ABC):
    """One part (train, validation or test) of a data set."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def targets(self) -> Tensor | None:
        """The targets, one row per sample (a 1-D int64 tensor for labels), or None if unknown."""

    def read_targets(self) -> Tensor | None:
        """Return the targets, reading the samples if necessary; None if there are none."""
        return self.targets

    @abstractmethod
    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Any]]:
        """Yield (x, y) for each item of `indices`, which contains the sample indices of one batch."""

    @abstractmethod
    def subset(self, indices: Indices) -> "Part":
        """Return a part with only these samples, in this order."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short hex digest that changes when the data change."""

    @abstractmethod
    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Part":
        """Return a part whose batches are on `device`, with floats converted to `dtype` if given."""

    def take_copy_seconds(self) -> float:
        """Return the seconds that copies of batches to a GPU have taken since the last call; 0 if none are needed."""
        return 0.0


class Tensors(Part):
    """A part in memory; batches are selected by index, without a per-sample loader."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x = x
        """The inputs: a tensor, or a tuple or dict of tensors."""
        self.y = y

    def __len__(self) -> int:
        return self.y.shape[0]

    @property
    def device(self) -> torch.device:
        return self.y.device

    @property
    def targets(self) -> Tensor:
        return self.y

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Tensor]]:
        x, y = self.x, self.y
        for batch in indices:
            rows = as_indices(batch, y.device)
            yield select_rows(x, rows), y.index_select(0, rows)

    def subset(self, indices: Indices) -> "Tensors":
        rows = as_indices(indices, self.device)
        return Tensors(select_rows(self.x, rows), self.y.index_select(0, rows))

    def fingerprint(self) -> str:
        """Return a digest of shapes, dtypes and content; beyond 2^20 numbers, only every k-th number is used."""
        return digest(*tree_leaves(self.x), self.y)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Tensors":
        return Tensors(*(tree_map(partial(move, device=device, dtype=dtype), item) for item in (self.x, self.y)))


class SubsetPart(Part):
    """Selected samples of another part, in this order, without copying the data."""

    def __init__(self, part: Part, indices: Indices) -> None:
        self.part = part
        self.indices = as_indices(indices)

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def targets(self) -> Tensor | None:
        return self._of_these(self.part.targets)

    def read_targets(self) -> Tensor | None:
        return self._of_these(self.part.read_targets())

    def _of_these(self, whole: Tensor | None) -> Tensor | None:
        return None if whole is None else whole.index_select(0, self.indices.to(whole.device))

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Any]]:
        return self.part.batches(
            self.indices.index_select(0, as_indices(batch, self.indices.device)) for batch in indices
        )

    def subset(self, indices: Indices) -> "SubsetPart":
        return SubsetPart(self.part, self.indices.index_select(0, as_indices(indices, self.indices.device)))

    def fingerprint(self) -> str:
        return digest(self.part.fingerprint(), self.indices)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "SubsetPart":
        return SubsetPart(self.part.to(device, dtype), self.indices)

    def take_copy_seconds(self) -> float:
        return self.part.take_copy_seconds()


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The parts of a data set, with the metadata that a model needs."""

    name: str
    train: Part
    validation: Part | None = None
    test: Part | None = None
    shape: Any
    """The shape of one sample; a tuple or dict of shapes if a sample has several inputs."""
    classes: int | None
    """Number of classes, or None for regression."""
    outputs: int
    """Numbers a model predicts per sample: the classes, or the width of the target."""
    multi_label: bool = False
    """Whether the targets are 0 and 1 in several columns: several labels per sample."""
    labels_per_sample: float = 1.0
    """The mean number of class labels per training sample: one, or one for each of its positions."""
    groups: NDArray[Any] | None = None
    """The group of each training sample, if samples belong to groups."""
    fit: "Callable[[Splits], Splits] | None" = None
    """Creates the inputs of all parts, fitted to the training part; called once, after the split."""
    notes: tuple[str, ...] = ()
    """Inferences from the data, in sentences for the user."""
    features: tuple[str, ...] = ()
    """The names of the inputs from a table, such as "age" or "city=Rome"."""
    class_names: tuple[str, ...] = ()
    """The names of the classes of a table or of folders of images."""
    has_missing: bool = False
    """Whether inputs are missing (NaN); `scaling` fills them in."""
    scaling: dict[str, Tensor] | None = None
    """The `mean` and `deviation` of the training inputs, with which networks standardize their inputs, and the
    `target_mean` and `target_deviation`, with which they convert their outputs. Each is present only if it is used."""
    loss_unit: Tensor | None = None
    """The deviation of the training targets, by which the loss divides outputs and targets; the same for all folds."""
    copy_seconds: float = 0.0
    """Seconds spent copying the data to a GPU; data from a loader are copied batch by batch instead."""
    numbers: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """The index of each sample in the original data, by part; absent for a part in its original order.

    Pooled parts are numbered as one, train first."""

    @property
    def parts(self) -> dict[str, Part]:
        return {name: part for name in PARTS if (part := getattr(self, name)) is not None}

    def with_each(self, change: Callable[[Part], Part]) -> "Splits":
        changed: dict[str, Any] = {name: change(part) for name, part in self.parts.items()}
        return replace(self, **changed)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "Splits":
        """Return the splits with all parts on `device`, and record the time of copying them to a GPU.

        Floats are converted to `dtype` if given.
        """
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(device)  # the first GPU call is always slow
        began = perf_counter()
        moved = self.with_each(lambda part: part.to(device, dtype))
        if not on_gpu:
            return moved
        torch.cuda.synchronize(device)
        return replace(moved, copy_seconds=perf_counter() - began)

    def fingerprint(self) -> str:
        return digest(*(part.fingerprint() for part in self.parts.values()))


def as_indices(indices: Indices, device: torch.device | None = None) -> Tensor:
    """Return sample indices as an int64 tensor for indexing."""
    return torch.as_tensor(indices, dtype=torch.int64, device=device)


def move(tensor: Tensor, device: torch.device | str, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor on a device, with floats converted to `dtype` if given."""
    return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)


def as_inputs(x: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Convert inputs for models; with several inputs, booleans are masks and stay unchanged."""
    if isinstance(x, Tensor):
        return as_input(x, dtype)

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return PackedSequence(as_input(leaf.data, dtype), *leaf[1:])
        return leaf if not isinstance(leaf, Tensor) or leaf.dtype == torch.bool else as_input(leaf, dtype)

    return tree_map(convert, x)


def as_input(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert x for models: floats to the dtype of the weights, uint8 divided by 255, tokens to int64."""
    if x.dtype == torch.uint8:
        return x.to(dtype).div_(255)
    return x.to(dtype) if x.is_floating_point() else x.long()


def as_target(y: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert y for losses: floats to the dtype of the weights, integers and booleans to int64."""
    return y.to(dtype) if y.is_floating_point() else y.long()


def labels_in(targets_or_n: Tensor | int) -> NDArray[Any] | None:
    """Return the targets if they are class labels; None for other targets, or if only their number is known."""
    if not isinstance(targets_or_n, Tensor) or targets_or_n.dim() != 1 or targets_or_n.is_floating_point():
        return None
    return np.asarray(targets_or_n.cpu().numpy())


def digest(*metadata: Any) -> str:
    """Hash values and tensors into 16 hex digits, large tensors by an evenly spaced sample."""
    result = hashlib.blake2b(digest_size=8)
    for item in metadata:
        if isinstance(item, Tensor):
            result.update(f"{tuple(item.shape)} {item.dtype} ".encode())
            # Rows tend to have an even length; an odd step avoids sampling the same few columns repeatedly.
            step = item.numel() // _FINGERPRINT_ELEMENTS | 1
            sample = item.detach().reshape(-1)[::step].cpu().contiguous()
            result.update(sample.view(torch.uint8).numpy().tobytes())
        else:
            result.update(f"{item!r} ".encode())
    return result.hexdigest()
