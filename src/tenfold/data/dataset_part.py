"""A part that is read from a map-style Dataset: its samples, input columns and batches."""

import gc
import hashlib
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset, default_collate

from tenfold.common import RANDOM_LOCK
from tenfold.common.imports import user_frames
from tenfold.data.part import (
    CPU,
    CopyTimer,
    Indices,
    Part,
    Tensors,
    as_indices,
    as_input,
    as_inputs,
    as_target,
    digest,
    tree_concatenate,
    tree_leaves,
    tree_map,
)
from tenfold.errors import DataError, TenfoldError
from tenfold.registry import suggest

TARGET_NAMES = ("labels", "label", "targets", "target", "y", "class")
"""Common names of the target, which are recognized if no name is given."""


@dataclass(frozen=True)
class Columns:
    """The names of the inputs and the target, if given."""

    inputs: tuple[str, ...] | None = None
    target: str | None = None

    def choose(self, names: Iterable[str]) -> "Columns":
        """Return the inputs and the target among these names: by default, all except the target are inputs."""
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
                raise DataError(f'{several} the target; set target_column = "{(targets or present)[-1]}"')
            target = targets[0]
        inputs = self.inputs or tuple(name for name in present if name != target)
        if not inputs:
            raise DataError(f"the data have no column besides the target '{target}'; they need at least one input")
        return Columns(inputs, target)

    def pick(self, values: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return inputs and target: a single input unchanged, several as a dict."""
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
    """Return a short description of a value for error messages."""
    size = f" of {len(value)}" if isinstance(value, (tuple, list, dict)) else ""
    return f"a {type(value).__name__}{size}"


HOW_TO_COLLATE = (
    "give collate = f(samples), which returns a batch (x, y), for example with torch.nn.utils.rnn.pad_sequence"
)


@dataclass(frozen=True)
class Collate:
    """The collate function of a DataLoader: it is called with the samples of a batch."""

    columns: Columns = NOT_NAMED
    function: Callable[[list[Any]], Any] | None = None
    """The user's collate function, which takes unchanged samples and returns a batch as (x, y) or a dict."""

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
"""Stacks samples that are pairs."""


def as_arrays(value: Any) -> Any:
    """Return a sample with lists of numbers converted to tensors; Hugging Face data sets store tokens as lists."""
    if isinstance(value, Mapping):
        return {key: as_arrays(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], (int, float, bool, list, np.generic)):
        try:
            return torch.as_tensor(np.asarray(value))
        except (ValueError, TypeError):
            return value
    if hasattr(value, "_fields"):
        return type(value)(*map(as_arrays, value))
    if isinstance(value, (tuple, list)):
        return tuple(map(as_arrays, value))
    return value


def different_shapes(error: Exception) -> DataError | None:
    """Return a DataError if torch failed because the samples cannot be stacked; otherwise None."""
    _, where, sizes = str(error).partition("stack expects each tensor to be equal size, but got ")
    if not where:
        return None
    return DataError(f"samples differ in shape ({sizes.splitlines()[0]}), so they cannot be stacked; {HOW_TO_COLLATE}")


def is_plain_pair(sample: Any) -> bool:
    """Return whether a sample is (tensor or array, target), which torch's default collate function handles best."""
    return isinstance(sample, (tuple, list)) and len(sample) == 2 and isinstance(sample[0], (Tensor, np.ndarray))


CheckLabels = Callable[[Tensor], None]
"""Raises a DataError if a batch has labels outside the classes."""
_FINGERPRINT_SAMPLES = 16


@dataclass(eq=False, repr=False)
class DatasetPart(Part):
    """A map-style Dataset, read by `loader_workers` processes (0: by this one) that stay alive between epochs.

    With loader processes there can be one pass at a time; continuing an older one is an error. Random numbers that a
    dataset draws in this process come from the global generators; the loader itself does not touch them. In loader
    processes they are seeded for each batch from its samples and the state of torch's generator in this process, which
    checkpoints include.
    """

    dataset: Dataset[Any]
    loader_workers: int = 0
    _: KW_ONLY
    known_targets: Tensor | None = None
    """The labels of all samples, if they are known without reading the samples."""
    label_range: Tensor | None = None
    """The lowest and the highest label of each sample, if there are too many labels to keep."""
    read_labels: Callable[[Any], Tensor] | None = None
    """Reads a dataset and returns the labels of all samples; None if they are known, or if there are no labels."""
    check_labels: CheckLabels | None = None
    """Checks the labels of a batch; None if all labels are known."""
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    """The dtype of floats in a batch."""
    collate: Collate | None = None
    """The collate function; None for torch's default, which handles pairs."""

    def __post_init__(self) -> None:
        self._wanted = _Batches()
        self._loader: DataLoader[Any] | None = None
        self._passes = 0
        self._copies = CopyTimer(self.device)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    @property
    def targets(self) -> Tensor | None:
        return self.known_targets

    def read_targets(self) -> Tensor | None:
        if self.known_targets is None and self.read_labels is not None:
            self.known_targets = self.read_labels(self.dataset)
        return self.known_targets

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Any]]:
        if self._loader is None:
            self._loader = self._make_loader()
        self._wanted.batches = indices
        self._wanted.state = torch.get_rng_state().numpy().tobytes() if self.loader_workers else None
        self._passes = this_pass = self._passes + 1
        for x, y in self._loaded(self._loader):
            if self.check_labels is not None and isinstance(y, Tensor):
                self.check_labels(y)
            with self._copies.timing():
                moved = as_batch(x, y, self.device, self.dtype)
            yield moved
            if self.loader_workers and self._passes != this_pass:
                raise RuntimeError("a newer iteration over this part has started; its loader supports one at a time")

    def subset(self, indices: Indices) -> "DatasetPart":
        rows = as_indices(indices)
        targets = None if self.known_targets is None else self.known_targets.index_select(0, rows)
        ranges = None if self.label_range is None else self.label_range.index_select(0, rows)
        return replace(self, dataset=Subset(self.dataset, rows.tolist()), known_targets=targets, label_range=ranges)

    def fingerprint(self) -> str:
        """Digest of the length, the known targets and a few samples spread over the dataset."""
        count = len(self)
        with quiet_randomness():
            samples = {i: self.dataset[i] for i in range(0, count, max(1, count // _FINGERPRINT_SAMPLES))}
        for i, sample in samples.items():
            if any(isinstance(item, Tensor) and item.layout != torch.strided for item in leaves_of(sample)):
                raise DataError(f"sample {i} of the dataset has a sparse tensor; convert it to a dense one")
        return digest(count, self.known_targets, *leaves_of(list(samples.values())))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> "DatasetPart":
        return replace(self, device=torch.device(device), dtype=dtype or self.dtype)

    def take_copy_seconds(self) -> float:
        return self._copies.take()

    def with_workers(self, loader_workers: int) -> "DatasetPart":
        return replace(self, loader_workers=loader_workers)

    def _loaded(self, loader: DataLoader[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield all requested batches; a dataset that returns fewer raises an error instead of shortening the epoch."""
        with _without_garbage_collection():
            loaded = iter(loader)
        sizes = self._wanted.sizes
        while True:
            try:
                x, y = next(loaded)
            except StopIteration as error:
                if sizes:  # the loader has no end of its own here: the exception comes from the dataset
                    raise RuntimeError(
                        f"the dataset ({type(self.dataset).__name__}) raised StopIteration while samples were read"
                    ) from error
                return
            except RuntimeError as error:
                raise different_shapes(error) or error from None
            except (TypeError, ValueError, AttributeError, KeyError) as error:
                if user_frames(error) or isinstance(error, TenfoldError):
                    raise
                raise DataError(
                    f"samples of the dataset ({type(self.dataset).__name__}) cannot be put into a batch: {error}"
                ) from error
            size = sizes.popleft()
            if isinstance(y, Tensor) and y.ndim and len(y) != size:
                raise DataError(
                    f"the dataset ({type(self.dataset).__name__}) returned {len(y)} samples instead of {size}"
                )
            yield x, y

    def _make_loader(self) -> DataLoader[Any]:
        return DataLoader(
            _Seeded(self.dataset) if self.loader_workers else self.dataset,
            batch_sampler=self._wanted,
            collate_fn=self.collate,
            num_workers=self.loader_workers,
            persistent_workers=self.loader_workers > 0,
            # A process that was not forked itself would pickle the dataset, which a class of a script does not survive.
            multiprocessing_context="fork" if self.loader_workers and sys.platform == "linux" else None,
            worker_init_fn=_keep_inherited_objects,
            pin_memory=self.device.type == "cuda",
            # Without a generator of its own the loader would draw from torch's global one and change the training.
            generator=torch.Generator().manual_seed(0),
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_loader": None, "_wanted": _Batches()}


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Collect no garbage while loader processes are forked, nor in them before they begin."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _keep_inherited_objects(_worker: int) -> None:
    """Keep inherited objects alive in a loader process, because freeing GPU events there would crash it."""
    gc.freeze()
    gc.enable()


class _Batches:
    """A batch sampler whose contents are swapped for each pass; it keeps the sizes of pending batches."""

    def __init__(self) -> None:
        self.batches: Iterable[Indices] = ()
        self.state: bytes | None = None
        """The state of the generator at the start of the pass, if other processes read the samples."""
        self.sizes: deque[int] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self.sizes = deque()
        return self._rows(self.batches, self.sizes, self.state)

    @staticmethod
    def _rows(batches: Iterable[Indices], sizes: deque[int], state: bytes | None) -> Iterator[Any]:
        for batch in batches:
            indices = as_indices(batch)
            rows = indices.tolist()
            sizes.append(len(rows))
            if state is None:
                yield rows
            else:
                seed = hashlib.blake2b(state + indices.cpu().numpy().tobytes(), digest_size=7).digest()
                yield int.from_bytes(seed, "big"), rows


class _Seeded(Dataset[Any]):
    """A dataset in a loader process, whose generators are seeded for each batch, independently of earlier reads."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitems__(self, batch: tuple[int, list[int]]) -> list[Any]:
        seed, rows = batch
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        together = getattr(self._dataset, "__getitems__", None)
        return list(together(rows)) if callable(together) else [self._dataset[row] for row in rows]


def with_loader(part: Part, workers: int) -> Part:
    """Return a part that is read by `workers` loader processes; 0 reads it in this process."""
    return _read_by_sample(part).with_workers(workers) if isinstance(part, DatasetPart | Tensors) else part


def join_parts(first: Part, second: Part) -> Part:
    """Join two parts into one, the second after the first."""
    if isinstance(first, Tensors) and isinstance(second, Tensors):
        return Tensors(tree_concatenate([first.x, second.x]), torch.cat([first.y, second.y]))
    all_targets = [targets for part in (first, second) if (targets := part.targets) is not None]
    first_read, other = _read_by_sample(first), _read_by_sample(second)
    both: ConcatDataset[Any] = ConcatDataset([first_read.dataset, other.dataset])
    return DatasetPart(
        both,
        first_read.loader_workers,
        known_targets=torch.cat(all_targets) if len(all_targets) == 2 else None,
        read_labels=first_read.read_labels or other.read_labels,
        check_labels=first_read.check_labels or other.check_labels,
        device=first_read.device,
        dtype=first_read.dtype,
        collate=first_read.collate or other.collate,
    )


def _read_by_sample(part: Part) -> DatasetPart:
    if isinstance(part, DatasetPart):
        return part
    assert isinstance(part, Tensors)
    x, y = part.x, part.y
    if isinstance(x, Tensor):
        dataset: Dataset[Any] = TensorDataset(x, y)
    else:
        dataset = StackDataset(StackDataset(**x) if isinstance(x, dict) else StackDataset(*x), y)  # type: ignore[arg-type]
    floats = [leaf.dtype for leaf in (*tree_leaves(x), y) if leaf.is_floating_point()]
    return DatasetPart(dataset, known_targets=y, device=part.device, dtype=floats[0] if floats else torch.float32)


@contextmanager
def quiet_randomness() -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, and restore their states at the end."""
    with RANDOM_LOCK, torch.random.fork_rng(devices=[]):
        states = random.getstate(), np.random.get_state()
        torch.default_generator.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def as_batch(x: Any, y: Any, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return a batch on a device, in the types that networks and losses expect: floats in the dtype of the weights."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return leaf.to(device=device)  # type: ignore[call-arg]
        return leaf.to(device, non_blocking=True) if isinstance(leaf, Tensor) else leaf

    moved_x, moved_y = tree_map(move, x), tree_map(move, y)
    targets = tree_map(lambda leaf: as_target(leaf, dtype) if isinstance(leaf, Tensor) else leaf, moved_y)
    return as_inputs(moved_x, dtype), targets


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield all values in lists, tuples and dicts, arrays as tensors."""
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves_of(item)
    else:
        yield torch.as_tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value
