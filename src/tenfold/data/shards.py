"""How a training part is divided among replicas, and the order in which a replica visits its shard.

Both are pure functions of their seeds, so every worker computes them itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenfold.common.catalog import SHARD_KINDS
from tenfold.data.part import labels_in
from tenfold.errors import ExperimentError

Shard = NDArray[np.int64]


@dataclass(frozen=True)
class _Division:
    samples: int
    labels: NDArray[Any] | None
    replicas: int
    generator: np.random.Generator
    alpha: float
    fractions: Sequence[float] | None


def iid(division: _Division) -> list[Shard]:
    """Shuffle, then cut into shards whose sizes differ by at most one."""
    shuffled = division.generator.permutation(division.samples)
    return [np.sort(shard) for shard in np.array_split(shuffled, division.replicas)]


def contiguous(division: _Division) -> list[Shard]:
    """Cut the samples in the order they come, sizes differing by at most one."""
    return list(np.array_split(np.arange(division.samples), division.replicas))


def label_skew(division: _Division) -> list[Shard]:
    """Divide each class by shares drawn from a Dirichlet distribution: p_c ~ Dir(alpha, ..., alpha).

    A small alpha gives each replica few classes, a large one tends to `iid`. (Hsu, Qi & Brown 2019, "Measuring the
    effects of non-identical data distribution for federated visual classification".)
    """
    labels = division.labels
    if labels is None:
        raise ExperimentError("shards of kind 'label-skew' need class labels; use 'iid', 'contiguous' or 'fractions'")
    pieces: list[list[Shard]] = [[] for _ in range(division.replicas)]
    for label in np.unique(labels):
        members = division.generator.permutation(np.flatnonzero(labels == label))
        shares = division.generator.dirichlet(np.full(division.replicas, division.alpha))
        for piece, some in zip(pieces, _cut(members, shares), strict=True):
            piece.append(some)
    return _leave_none_empty([np.concatenate(piece) for piece in pieces])


def fractions(division: _Division) -> list[Shard]:
    """Shuffle, then cut into shards as large as the given fractions say."""
    assert division.fractions is not None, "an experiment has one for each worker"
    shares = np.asarray(division.fractions)
    return _leave_none_empty(_cut(division.generator.permutation(division.samples), shares))


def make_shards(
    targets_or_n: Tensor | int,
    n: int,
    kind: str = "iid",
    *,
    seed: int = 0,
    alpha: float = 0.5,
    fractions: Sequence[float] | None = None,
) -> list[Shard]:
    """Divide samples among `n` replicas: disjoint, complete, none empty.

    `targets_or_n` is the labels of the part, or its length where labels are unknown. `alpha` belongs to 'label-skew',
    `fractions` to 'fractions'.
    """
    samples = len(targets_or_n) if isinstance(targets_or_n, Tensor) else targets_or_n
    if not 1 <= n <= samples:
        raise ExperimentError(
            f"{samples} training samples cannot be divided among {n} replicas; use 1 to {samples} replicas"
        )
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    shards: list[Shard] = SHARD_KINDS[kind](_Division(samples, labels_in(targets_or_n), n, generator, alpha, fractions))
    return shards


def order(shard: Shard, seed: int, epoch: int, replica: int) -> Tensor:
    """Return the shard's sample numbers in the order of this epoch, a function of (seed, epoch, replica) alone."""
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch, replica))
    shuffled = np.random.Generator(np.random.Philox(sequence)).permutation(shard)
    return torch.from_numpy(shuffled.astype(np.int64, copy=False))


def batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Cut an order into batches of the sizes that `batch_sizes` gives."""
    return list(torch.split(order, batch_sizes(len(order), batch_size)))


def batch_sizes(samples: int, batch_size: int) -> list[int]:
    """Return the sizes of the batches that `samples` are divided into; the last may be smaller and is never dropped.

    A single sample left over joins the batch before it: batch normalization cannot learn from one.
    """
    whole, rest = divmod(samples, batch_size)
    sizes = [batch_size] * whole
    if rest == 1 and whole:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


def _cut(members: Shard, shares: NDArray[np.float64]) -> list[Shard]:
    """Cut where the running sum of shares says, so that rounding errors never add up."""
    ends = np.rint(np.cumsum(shares)[:-1] / shares.sum() * len(members)).astype(np.int64)
    return np.array_split(members, ends)


def _leave_none_empty(parts: list[Shard]) -> list[Shard]:
    """Let the largest shard give one sample to each empty one."""
    for i, part in enumerate(parts):
        if not len(part):
            richest = max(range(len(parts)), key=lambda j: len(parts[j]))
            parts[i], parts[richest] = parts[richest][-1:], parts[richest][:-1]
    return [np.sort(part) for part in parts]
