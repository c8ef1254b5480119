"""Replicas on one device that go through an epoch step by step together, whatever the sizes of their shards."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

import torch
from torch import Tensor

from tenfold.data import batch_sizes
from tenfold.training.fused.replicas import Fused, Shape


class Lockstep:
    """Drives k fused replicas; a step costs the same Python whatever k is.

    Replicas whose batches have the same size and which lie side by side learn at once. At the end of an epoch, where
    sizes differ, that may take a few turns; whoever has nothing left sits out.
    """

    def __init__(self, fused: Fused, lengths: Sequence[int], batch_size: int) -> None:
        self.fused = fused
        self.batch_size = batch_size
        self.sizes = list(zip_longest(*(batch_sizes(length, batch_size) for length in lengths), fillvalue=0))
        """For each step, how many samples each replica has."""
        self.turns = [list(_alike(sizes)) for sizes in self.sizes]
        self._weights = torch.tensor(self.sizes, dtype=torch.float64)
        self._losses = torch.zeros(len(self.sizes), fused.k, device=fused.device)
        self._told = 0

    def shapes(self, epochs: int) -> Counter[Shape]:
        """Return how often each shape of a step comes in so many epochs."""
        one = Counter((rows.start, rows.stop, size) for turn in self.turns for rows, size in turn)
        return Counter({shape: count * epochs for shape, count in one.items()})

    def epoch(self, orders: Sequence[Tensor]) -> Iterator[int]:
        """Learn from samples in these orders, one for each replica, and yield after each step its number, from 1."""
        table = torch.nn.utils.rnn.pad_sequence(list(orders), batch_first=True).to(self.fused.device)
        self._told = 0
        self._losses.zero_()
        for step, turn in enumerate(self.turns):
            start = step * self.batch_size
            self.fused.advance()
            for rows, size in turn:
                self._losses[step, rows] = self.fused.learn(table[rows, start : start + size], rows)
            yield step + 1

    def window(self, step: int) -> tuple[list[float], list[float]]:
        """Return each replica's sum of losses over samples, and its samples, since the last call in this epoch."""
        steps = slice(self._told, step)
        self._told = step
        weights = self._weights[steps]
        sums = torch.where(weights > 0, self._losses[steps].cpu().double() * weights, 0.0).sum(0)
        return sums.tolist(), weights.sum(0).tolist()


def first_odd(sums: Sequence[float]) -> int | None:
    """Return the first replica whose losses are no numbers."""
    return next((row for row, total in enumerate(sums) if not math.isfinite(total)), None)


def _alike(sizes: Sequence[int]) -> Iterator[tuple[slice, int]]:
    start = 0
    for size, members in groupby(sizes):
        stop = start + len(list(members))
        if size:
            yield slice(start, stop), size
        start = stop
