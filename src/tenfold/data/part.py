"""Parts of a data set, and the splits that hold them: how all other code sees data."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenfold.common.part_names import PARTS
from tenfold.data.tree import select_rows, tree_leaves, tree_map

Indices = Tensor | NDArray[np.int64] | Sequence[int]
NO_LABEL = -100
"""The label of a position that has none, as in torch: cross-entropy and accuracy leave it out."""
_FINGERPRINT_ELEMENTS = 2**20


class Part(ABC):
    """One part (train, validation or test) of a data set."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def targets(self) -> Tensor | None:
        """What is to be predicted, one row per sample (a 1-D int64 tensor for labels), or None where unknown."""

    @abstractmethod
    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Any]]:
        """Yield one (x, y) for each item of `indices`, an item being the sample numbers of one batch."""

    @abstractmethod
    def subset(self, indices: Indices) -> "Part":
        """Return a part that holds only these samples, in this order."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short hex digest that changes when the data change."""

    @abstractmethod
    def to(self, device: torch.device | str) -> "Part":
        """Return a part whose batches live on `device`."""

    def take_copy_seconds(self) -> float:
        """Return the seconds that copies of batches to a GPU have taken since the last call; 0 if none are needed."""
        return 0.0


class Tensors(Part):
    """A part that is in memory; a batch is picked by index, without a per-sample loader."""

    def __init__(self, x: Any, y: Tensor) -> None:
        self.x = x
        """The inputs: a tensor, or a tuple or dict of tensors."""
        self.y = y

    def __len__(self) -> int:
        return self.y.shape[0]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.y.device

    @property
    def targets(self) -> Tensor:
        """The y of all samples."""
        return self.y

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Tensor]]:
        """Yield the rows of x and y that each item of `indices` names."""
        x, y = self.x, self.y
        for batch in indices:
            rows = as_indices(batch, y.device)
            yield select_rows(x, rows), y.index_select(0, rows)

    def subset(self, indices: Indices) -> "Tensors":
        """Copy these rows into a part of their own."""
        rows = as_indices(indices, self.device)
        return Tensors(select_rows(self.x, rows), self.y.index_select(0, rows))

    def fingerprint(self) -> str:
        """Digest of shapes, dtypes and content; beyond 2^20 numbers every k-th of them stands for the content."""
        return digest(*tree_leaves(self.x), self.y)

    def to(self, device: torch.device | str) -> "Tensors":
        """Move all tensors to `device`."""
        return Tensors(tree_map(lambda tensor: tensor.to(device), self.x), self.y.to(device))


class SubsetPart(Part):
    """These samples of another part, in this order. The data are not copied, however many subsets share them."""

    def __init__(self, part: Part, indices: Indices) -> None:
        self.part = part
        self.indices = as_indices(indices)

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def targets(self) -> Tensor | None:
        """The targets of these samples."""
        whole = self.part.targets
        return None if whole is None else whole.index_select(0, self.indices.to(whole.device))

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Any]]:
        """Yield batches of these samples, numbered in the order of this part."""
        return self.part.batches(
            self.indices.index_select(0, as_indices(batch, self.indices.device)) for batch in indices
        )

    def subset(self, indices: Indices) -> "SubsetPart":
        """Return some of these samples."""
        return SubsetPart(self.part, self.indices.index_select(0, as_indices(indices, self.indices.device)))

    def fingerprint(self) -> str:
        """Digest of the other part and of the sample numbers."""
        return digest(self.part.fingerprint(), self.indices)

    def to(self, device: torch.device | str) -> "SubsetPart":
        """Return the same samples of the other part on `device`."""
        return SubsetPart(self.part.to(device), self.indices)

    def take_copy_seconds(self) -> float:
        """Return the seconds that copies of the other part's batches to a GPU have taken since the last call."""
        return self.part.take_copy_seconds()


@dataclass(frozen=True, kw_only=True)
class Splits:
    """A data set in its parts, and what a model must know to fit it."""

    name: str
    train: Part
    validation: Part | None = None
    test: Part | None = None
    shape: Any
    """Of one sample; a tuple or dict of shapes where a sample has several inputs."""
    classes: int | None
    """Number of classes, or None for regression."""
    outputs: int
    """Numbers a model predicts per sample: the classes, or the width of the target."""
    multi_label: bool = False
    """Whether the targets are 0 and 1 in several columns: several labels per sample."""
    groups: NDArray[Any] | None = None
    """The group of each training sample, where samples belong together."""
    fit: "Callable[[Splits], Splits] | None" = None
    """Makes the inputs of all parts out of what the training part shows; called once, when the parts are known."""
    notes: tuple[str, ...] = ()
    """What was inferred from the data, in sentences for the user."""
    features: tuple[str, ...] = ()
    """The names of the inputs that a table gives: "age", "city=Rome"."""
    class_names: tuple[str, ...] = ()
    """What the classes of a table or of folders of images are called."""
    has_missing: bool = False
    """Whether inputs are missing (NaN); `scaling` fills them in."""
    scaling: dict[str, Tensor] | None = None
    """The `mean` and `deviation` of the training inputs, by which networks standardize theirs."""
    copy_seconds: float = 0.0
    """How long it took to copy them to a GPU; data that a loader reads are copied batch by batch instead."""
    numbers: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    """By part, the number of each sample in the data as they were given; absent: the part is as it was given.

    Parts that were pooled are numbered as one, train first."""

    @property
    def parts(self) -> dict[str, Part]:
        """The parts that there are, by name."""
        return {name: part for name in PARTS if (part := getattr(self, name)) is not None}

    def with_each(self, change: Callable[[Part], Part]) -> "Splits":
        """Return the splits with each of their parts changed."""
        changed: dict[str, Any] = {name: change(part) for name, part in self.parts.items()}
        return replace(self, **changed)

    def to(self, device: torch.device | str) -> "Splits":
        """Return the splits with all parts on `device`, and how long copying them to a GPU took."""
        on_gpu = torch.device(device).type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(device)  # the first call to a GPU takes long, whatever it does
        began = perf_counter()
        moved = self.with_each(lambda part: part.to(device))
        if not on_gpu:
            return moved
        torch.cuda.synchronize(device)
        return replace(moved, copy_seconds=perf_counter() - began)

    def fingerprint(self) -> str:
        """Return a short hex digest that changes when any part does."""
        return digest(*(part.fingerprint() for part in self.parts.values()))


def as_indices(indices: Indices, device: torch.device | None = None) -> Tensor:
    """Return sample numbers as the int64 tensor that indexing wants."""
    return torch.as_tensor(indices, dtype=torch.int64, device=device)


def as_inputs(x: Any) -> Any:
    """Return inputs as models take them; among several, booleans stay what they are: they are masks."""
    if isinstance(x, Tensor):
        return as_input(x)
    return tree_map(lambda one: one if not isinstance(one, Tensor) or one.dtype == torch.bool else as_input(one), x)


def as_input(x: Tensor) -> Tensor:
    """Return x as models take it: floats as float32, uint8 as float32 divided by 255, integers (tokens) as int64."""
    if x.dtype == torch.uint8:
        return x.float().div_(255)
    return x.float() if x.is_floating_point() else x.long()


def as_target(y: Tensor) -> Tensor:
    """Return y as losses take it: floats as float32, integers and booleans as int64."""
    return y.float() if y.is_floating_point() else y.long()


def labels_in(targets_or_n: Tensor | int) -> NDArray[Any] | None:
    """Return the class labels among targets; None where these are something else, or only their number is known."""
    if not isinstance(targets_or_n, Tensor) or targets_or_n.dim() != 1 or targets_or_n.is_floating_point():
        return None
    return np.asarray(targets_or_n.cpu().numpy())


def digest(*facts: Any) -> str:
    """Hash values and tensors into 16 hex digits, large tensors by an evenly spaced sample."""
    result = hashlib.blake2b(digest_size=8)
    for fact in facts:
        if isinstance(fact, Tensor):
            result.update(f"{tuple(fact.shape)} {fact.dtype} ".encode())
            # Rows tend to have an even length; an odd step does not meet the same few columns again and again.
            step = fact.numel() // _FINGERPRINT_ELEMENTS | 1
            sample = fact.detach().reshape(-1)[::step].cpu().contiguous()
            result.update(sample.view(torch.uint8).numpy().tobytes())
        else:
            result.update(f"{fact!r} ".encode())
    return result.hexdigest()
