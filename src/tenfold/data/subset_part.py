"""Some samples of a part, shown without copying them."""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tenfold.data.part import Indices, Part, as_indices, digest


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
        return self.part.batches(self.indices.index_select(0, as_indices(batch, self._place)) for batch in indices)

    def subset(self, indices: Indices) -> "SubsetPart":
        """Return some of these samples."""
        return SubsetPart(self.part, self.indices.index_select(0, as_indices(indices, self._place)))

    def fingerprint(self) -> str:
        """Digest of the other part and of the sample numbers."""
        return digest(self.part.fingerprint(), self.indices)

    def to(self, device: torch.device | str) -> "SubsetPart":
        """Return the same samples of the other part on `device`."""
        return SubsetPart(self.part.to(device), self.indices)

    def take_copy_seconds(self) -> float:
        """Return the seconds that copies of the other part's batches to a GPU have taken since the last call."""
        return self.part.take_copy_seconds()

    @property
    def _place(self) -> torch.device:
        return self.indices.device
