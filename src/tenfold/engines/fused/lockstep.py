"""Replicas on one device that go through an epoch in the same steps, whatever the sizes of their shards."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

import torch
from torch import Tensor

from tenfold.data import batch_sizes
from tenfold.training.fused.fused_replicas import Fused, Shape


class Lockstep:
    """Steps k fused replicas through an epoch.

    Neighbouring rows whose batches have the same size step at once, so that a step costs the same Python code for any
    k. At the end of an epoch, where sizes differ, a step may take a few turns; rows without samples left are skipped.
    """

    def __init__(self, fused: Fused, lengths: Sequence[int], batch_size: int) -> None:
        self.fused = fused
        self.batch_size = batch_size
        self.sizes = list(zip_longest(*(batch_sizes(length, batch_size) for length in lengths), fillvalue=0))
        """For each step, how many samples each replica has."""
        self.turns = [list(_equal_runs(sizes)) for sizes in self.sizes]
        self._weights = torch.tensor(self.sizes, dtype=torch.float64)
        self._losses = torch.zeros(len(self.sizes), fused.k, device=fused.device)
        self._logged = 0

    def shapes(self, epochs: int) -> Counter[Shape]:
        """Return how often each shape of a step occurs in this number of epochs."""
        one = Counter((rows.start, rows.stop, size) for turn in self.turns for rows, size in turn)
        return Counter({shape: count * epochs for shape, count in one.items()})

    def epoch(self, orders: Sequence[Tensor]) -> Iterator[int]:
        """Train on the samples in these orders, one for each replica, and yield the number of each step, from 1."""
        table = torch.nn.utils.rnn.pad_sequence(list(orders), batch_first=True).to(self.fused.device)
        self._logged = 0
        self._losses.zero_()
        for step, turn in enumerate(self.turns):
            start = step * self.batch_size
            self.fused.advance()
            for rows, size in turn:
                self._losses[step, rows] = self.fused.learn(table[rows, start : start + size], rows)
            yield step + 1

    def window(self, step: int) -> tuple[list[float], list[float]]:
        """Return each replica's sum of losses over its samples, and their number, since the last call in this epoch."""
        steps = slice(self._logged, step)
        self._logged = step
        weights = self._weights[steps]
        sums = torch.where(weights > 0, self._losses[steps].cpu().double() * weights, 0.0).sum(0)
        return sums.tolist(), weights.sum(0).tolist()

    def starts_finite(self, row: int) -> bool:
        """Return whether a replica's loss was finite in the first step of this epoch."""
        return math.isfinite(float(self._losses[0, row]))


def find_diverged(sums: Sequence[float]) -> int | None:
    """Return the first replica whose loss is not finite."""
    return next((row for row, total in enumerate(sums) if not math.isfinite(total)), None)


def _equal_runs(sizes: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield the rows that lie side by side and have batches of one size, with that size."""
    start = 0
    for size, members in groupby(sizes):
        stop = start + len(list(members))
        if size:
            yield slice(start, stop), size
        start = stop
