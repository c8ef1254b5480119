"""Rank 0 reads the data and sends every other rank what it learns from and evaluates, and nothing else."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenfold.common.part_names import PARTS
from tenfold.data import Part, Splits, Tensors
from tenfold.data.part import Indices, as_indices, digest
from tenfold.data.tree import select_rows, tree_leaves, tree_map
from tenfold.errors import DataError
from tenfold.transport.network.abstract_network import Network
from tenfold.transport.network.codec import describe_tensor, empty_tensors
from tenfold.workers.task import Task


class Scattered(Part):
    """A part of which only some samples are here, counted as in the whole; the targets of all are known."""

    def __init__(self, rows: Tensor, x: Any, y: Tensor) -> None:
        """Take the samples with the numbers `rows`; `y` has the targets of all samples."""
        self.rows = rows
        self.x = x
        self.y = y
        self._place = torch.full((len(y),), -1, dtype=torch.int64, device=y.device)
        self._place[rows] = torch.arange(len(rows), device=y.device)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def targets(self) -> Tensor:
        """The y of all samples."""
        return self.y

    def batches(self, indices: Iterable[Indices]) -> Iterator[tuple[Any, Tensor]]:
        """Yield samples that are here."""
        for batch in indices:
            rows = as_indices(batch, self.y.device)
            places = self._place.index_select(0, rows)
            if places.numel() and int(places.min()) < 0:
                raise DataError('a sample was asked for that is on another rank; set data.distribute = "each"')
            yield select_rows(self.x, places), self.y.index_select(0, rows)

    def subset(self, indices: Indices) -> Tensors:
        """Copy samples that are here into a part of their own."""
        x, y = next(self.batches([indices]))
        return Tensors(x, y)

    def fingerprint(self) -> str:
        """Digest of what is here."""
        return digest(self.rows, *tree_leaves(self.x), self.y)

    def to(self, device: torch.device | str) -> "Scattered":
        """Move everything to `device`."""
        x = tree_map(lambda tensor: tensor.to(device), self.x)
        return Scattered(self.rows.to(device), x, self.y.to(device))


def scatter(network: Network, task: Task | None) -> Splits:
    """Send every rank its share of rank 0's data, and return this rank's; the other ranks have no task yet."""
    if task is None:
        return _receive(network, network.broadcast())
    network.broadcast(_described(task, network.size))
    parts: dict[str, Any] = dict(task.splits.parts)
    for rank in range(1, network.size):  # one after the other: only one share at a time is copied
        for name, part in parts.items():
            rows = _rows(task, name, rank)
            tensors = (rows, *tree_leaves(select_rows(part.x, rows.to(part.device))), part.y)
            network.exchange([(rank, tensor.cpu().contiguous()) for tensor in tensors], [])
    return task.splits


def _receive(network: Network, announced: dict[str, Any]) -> Splits:
    parts: dict[str, Any] = {}
    for name, (x, y, counts) in announced["parts"].items():
        count = counts[network.rank]
        rows, targets = empty_tensors([["int64", [count]], y])
        samples = _empty_inputs(x, count)
        network.exchange([], [(0, tensor) for tensor in (rows, *tree_leaves(samples), targets)])
        parts[name] = Scattered(rows, samples, targets)
    about = announced["about"]
    if about["groups"] is not None:
        about["groups"] = np.array(about["groups"])
    return Splits(**about, **parts)


def _empty_inputs(described: Any, count: int) -> Any:
    """Return empty tensors for `count` samples, in the described form: a tensor, or a tuple or dict of tensors."""
    if isinstance(described, dict):
        return {key: _empty_inputs(one, count) for key, one in described.items()}
    if isinstance(described, tuple):
        return tuple(_empty_inputs(one, count) for one in described)
    return empty_tensors([[described[0], [count, *described[1]]]])[0]


def _described(task: Task, size: int) -> dict[str, Any]:
    """Return what the ranks must know to receive: types, shapes, and counts."""
    parts: dict[str, Any] = {}
    for name, part in task.splits.parts.items():
        if not isinstance(part, Tensors):
            raise DataError(
                f'data.distribute = "scatter" sends tensors, but the {name} part of {task.splits.name} is read sample '
                'by sample; set data.distribute = "each"'
            )
        counts = [len(_rows(task, name, rank)) for rank in range(size)]
        samples = tree_map(lambda tensor: describe_tensor(tensor[0]), part.x)
        parts[name] = (samples, describe_tensor(part.y), counts)
    about = {one.name: getattr(task.splits, one.name) for one in fields(task.splits) if one.name not in PARTS}
    if task.splits.groups is not None:
        about["groups"] = task.splits.groups.tolist()
    about["numbers"] = {}  # rank 0 records for all
    return {"parts": parts, "about": about}


def _rows(task: Task, name: str, rank: int) -> Tensor:
    """Return the numbers of the samples that a rank learns from, or evaluates."""
    if name == "train":
        return torch.as_tensor(task.shards[rank], dtype=torch.int64)
    return task.share(getattr(task.splits, name), rank)
