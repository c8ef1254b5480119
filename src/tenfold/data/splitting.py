"""Dividing a data set into train, validation and test: seeded, disjoint, complete, stratified."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tenfold.common import PARTS
from tenfold.data.dataset_part import join_parts
from tenfold.data.part import Part, Splits, labels_in
from tenfold.data.streams import StreamPart, check_stream_is_not_cut
from tenfold.errors import DataError, ExperimentError

Groups = NDArray[Any] | None
TEST_FRACTION = 0.2
"""The test fraction of a data set that comes without a test part."""


def split(
    splits: Splits,
    *,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    stratify: bool = True,
    seed: int = 0,
    limit: int | None = None,
    groups: Any = None,
) -> Splits:
    """Divide a data set into train, validation and test.

    Without `test_fraction`, the existing test part is used, or 0.2 of an undivided set; with it, train and test are
    pooled and divided again. `validation_fraction` is then taken out of train (pooled with the existing validation
    part, if there is one). `limit` is the maximum number of samples in each part. With `groups`, one for each sample
    of the training part, no group is in two parts. A training part that is a stream is not divided.
    """
    if isinstance(splits.train, StreamPart):
        check_stream_is_not_cut(
            splits,
            test_fraction=test_fraction,
            validation_fraction=validation_fraction,
            groups=splits.groups if groups is None else groups,
        )
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    stratify = stratify and splits.classes is not None
    parts = {name: Numbered(part) for name, part in splits.parts.items()}
    groups = _checked_groups(groups, splits, test_fraction, validation_fraction)
    parts["train"] = replace(parts["train"], groups=groups)
    fractions = {"test": test_fraction, "validation": validation_fraction}
    if test_fraction is None and splits.test is None and not isinstance(splits.train, StreamPart):
        fractions["test"] = TEST_FRACTION
    for name, fraction in fractions.items():
        if fraction:
            whole = parts["train"].joined(parts.get(name))
            parts["train"], parts[name] = _take_out(whole, fraction, name, stratify, generator)
    if limit is not None:  # streams apply the limit themselves
        parts = {
            name: parts[name]
            if isinstance(parts[name].part, StreamPart)
            else _keep(parts[name], limit, stratify, generator)
            for name in PARTS
            if name in parts
        }
    return replace(
        splits,
        **{name: item.part for name, item in parts.items()},  # type: ignore[arg-type]
        groups=parts["train"].groups,
        numbers={name: item.numbers for name, item in parts.items() if item.numbers is not None},
    )


@dataclass(frozen=True)
class Numbered:
    """A part, and the numbers of its samples in the original part."""

    part: Part
    numbers: NDArray[np.int64] | None = None
    """None if the part is unchanged."""
    groups: Groups = None

    def joined(self, other: "Numbered | None") -> "Numbered":
        if other is None:
            return self
        own = np.arange(len(self.part)) if self.numbers is None else self.numbers
        first = int(own.max(initial=-1)) + 1
        return Numbered(join_parts(self.part, other.part), np.concatenate([own, first + np.arange(len(other.part))]))

    def subset(self, chosen: NDArray[np.int64]) -> "Numbered":
        numbers = chosen if self.numbers is None else self.numbers[chosen]
        return Numbered(self.part.subset(chosen), numbers, None if self.groups is None else self.groups[chosen])


def draw(
    samples: int, count: int, targets: Tensor | None, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw `count` of `samples` at random; return the numbers of the drawn and of the rest, each in ascending order.

    With `targets` of one class per sample, every class gives its share, rounded by largest remainders, and keeps at
    least one sample in the rest, so that a class with a single sample is never drawn. If `count` is too large
    for that, only the shares count.
    """
    if targets is None or targets.dim() != 1:
        drawn = generator.permutation(samples)[:count]
    else:
        labels = targets.cpu().numpy()
        _, sizes = np.unique(labels, return_counts=True)
        members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
        most_drawn = sizes - 1 if count <= samples - len(sizes) else sizes
        quotas = _apportion(count, sizes, most_drawn)
        drawn = np.concatenate([generator.permutation(some)[:q] for some, q in zip(members, quotas, strict=True)])
    chosen = np.zeros(samples, dtype=bool)
    chosen[drawn] = True
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def draw_groups(
    groups: NDArray[Any], count: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw whole groups at random until they hold `count` samples or more; return the drawn and the rest."""
    names, member = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise DataError("data.groups names a single group, which cannot be in two parts; there must be two or more")
    shuffled = generator.permutation(len(names))
    held = np.cumsum(np.bincount(member)[shuffled])
    drawn = shuffled[: min(int(np.searchsorted(held, count)) + 1, len(names) - 1)]
    chosen = np.isin(member, drawn)
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def _apportion(count: int, sizes: NDArray[np.int64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divide `count` in proportion to `sizes`, none above its `room`, by largest remainders."""
    exact = count * sizes / sizes.sum()
    quotas: NDArray[np.int64] = np.minimum(np.floor(exact).astype(np.int64), room)
    while (missing := count - int(quotas.sum())) > 0:
        open_to_more = np.flatnonzero(quotas < room)
        neediest = open_to_more[np.argsort(quotas[open_to_more] - exact[open_to_more], kind="stable")]
        quotas[neediest[:missing]] += 1
    return quotas


def _take_out(
    whole: Numbered, fraction: float, name: str, stratify: bool, generator: np.random.Generator
) -> tuple[Numbered, Numbered]:
    """Return the remaining samples, and those taken out."""
    size = len(whole.part)
    count = round(fraction * size)
    if not 0 < count < size:
        empty = name if count == 0 else "train"
        raise DataError(
            f"a {name} fraction of {fraction:g} of {size} samples leaves the {empty} part empty; "
            f"choose another fraction or add data"
        )
    if whole.groups is not None:
        chosen, rest = draw_groups(whole.groups, count, generator)
    else:
        chosen, rest = draw(size, count, whole.part.read_targets() if stratify else None, generator)
    return whole.subset(rest), whole.subset(chosen)


def _keep(whole: Numbered, limit: int, stratify: bool, generator: np.random.Generator) -> Numbered:
    if len(whole.part) <= limit:
        return whole
    # What is kept is the rest of a draw, because every class keeps a sample in the rest.
    _, kept = draw(len(whole.part), len(whole.part) - limit, whole.part.read_targets() if stratify else None, generator)
    return whole.subset(kept)


def _checked_groups(groups: Any, splits: Splits, test_fraction: float | None, validation_fraction: float) -> Groups:
    groups = splits.groups if groups is None else groups
    if groups is None:
        return None
    named = np.asarray(groups)
    pooled = (test_fraction is not None and splits.test is not None) or (
        validation_fraction > 0 and splits.validation is not None
    )
    if pooled:
        raise DataError(
            "data.groups belong to the training part, which then cannot be pooled with another part; leave "
            "test_fraction and validation_fraction unset, or give the data as one part"
        )
    if named.ndim != 1 or len(named) != len(splits.train):
        raise DataError(
            f"data.groups has the shape {named.shape}; it should name one group for each of the {len(splits.train)} "
            "samples of the training part"
        )
    return named


@dataclass(frozen=True)
class Fold:
    """The training and validation samples of one of k models, as sample numbers in ascending order."""

    fold: int
    """From 1 in each repeat."""
    repeat: int
    """From 1."""
    train: NDArray[np.int64]
    validation: NDArray[np.int64]


def make_folds(
    targets_or_n: Tensor | int,
    k: int,
    kind: str = "auto",
    *,
    repeats: int = 1,
    seed: int = 0,
    groups: ArrayLike | None = None,
) -> list[Fold]:
    """Divide samples into k folds, `repeats` times: in each repeat every sample is in exactly one validation part.

    `targets_or_n` is the targets of the part, or its length where they are unknown. "plain" makes parts whose sizes
    differ by at most one, "stratified" keeps the proportions of the classes in each, and "group" keeps samples of one
    group together; "auto" is "group" if there are groups, else "stratified" if the targets are labels, else "plain".
    The folds equal those of scikit-learn's splitter with shuffle=True and random_state=seed, or of its Repeated
    variant.
    """
    from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold

    labels = labels_in(targets_or_n)
    samples = len(targets_or_n) if isinstance(targets_or_n, Tensor) else targets_or_n
    named = None if groups is None else np.asarray(groups)
    if kind == "auto":
        kind = "group" if named is not None else "plain" if labels is None else "stratified"
    if kind == "stratified" and labels is None:
        raise ExperimentError('parallel.fold_kind = "stratified" needs class labels; use "plain"')
    if kind == "group" and named is None:
        raise ExperimentError('parallel.fold_kind = "group" needs data.groups, which names the group of each sample')
    by_group = GroupKFold if labels is None else StratifiedGroupKFold
    splitter = {"plain": KFold, "stratified": StratifiedKFold, "group": by_group}[kind]
    random = np.random.RandomState(seed % 2**32)  # the largest seed of this generator
    folds = []
    try:
        for repeat in range(1, repeats + 1):
            cut = splitter(k, shuffle=True, random_state=random).split(
                np.zeros(samples), None if kind == "plain" else labels, named if kind == "group" else None
            )
            for number, (train, validation) in enumerate(cut, 1):
                if not len(train) or not len(validation):
                    raise ValueError("a fold would be empty")
                folds.append(
                    Fold(number, repeat, np.sort(train).astype(np.int64), np.sort(validation).astype(np.int64))
                )
    except ValueError as error:
        raise ExperimentError(
            f"parallel.folds = {k}: {samples} training samples cannot be divided into {k} {kind} folds ({error})"
        ) from None
    return folds


# How a training part is divided among replicas, and the order in which a replica visits its shard.
#
# Both are pure functions of their seeds, so every worker computes them itself.

Shard = NDArray[np.int64]
SHARD_KINDS = ("iid", "contiguous", "label-skew", "fractions")


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

    `targets_or_n` is the labels of the part, or its length where labels are unknown. "iid" shuffles and cuts into
    shards whose sizes differ by at most one, "contiguous" cuts the samples in their original order, and "fractions"
    makes shards of the sizes in `fractions`. "label-skew" divides each class by shares p_c ~ Dir(alpha, ..., alpha):
    a small alpha gives each replica few classes, a large one tends to "iid". (Hsu, Qi & Brown 2019, "Measuring the
    effects of non-identical data distribution for federated visual classification".)
    """
    samples = len(targets_or_n) if isinstance(targets_or_n, Tensor) else targets_or_n
    if not 1 <= n <= samples:
        raise ExperimentError(
            f"{samples} training samples cannot be divided among {n} replicas; use 1 to {samples} replicas"
        )
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    if kind == "contiguous":
        return list(np.array_split(np.arange(samples), n))
    if kind == "label-skew":
        return _leave_none_empty(_skewed(labels_in(targets_or_n), n, generator, alpha))
    shuffled = generator.permutation(samples)
    if kind == "fractions":
        return _leave_none_empty(_cut(shuffled, np.asarray(fractions)))
    return _leave_none_empty(np.array_split(shuffled, n))


def _skewed(labels: NDArray[Any] | None, n: int, generator: np.random.Generator, alpha: float) -> list[Shard]:
    if labels is None:
        raise ExperimentError("shards of kind 'label-skew' need class labels; use 'iid', 'contiguous' or 'fractions'")
    pieces: list[list[Shard]] = [[] for _ in range(n)]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        for piece, some in zip(pieces, _cut(members, generator.dirichlet(np.full(n, alpha))), strict=True):
            piece.append(some)
    return [np.concatenate(piece) for piece in pieces]


def order(shard: Shard, seed: int, epoch: int, replica: int) -> Tensor:
    """Return the shard's sample numbers in the order of this epoch, a function of (seed, epoch, replica) alone."""
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch, replica))
    shuffled = np.random.Generator(np.random.Philox(sequence)).permutation(shard)
    return torch.from_numpy(shuffled.astype(np.int64, copy=False))


def batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Cut an order into batches of the sizes that `batch_sizes` returns."""
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
    """Cut at the cumulative sums of the shares, which prevents rounding errors from adding up."""
    ends = np.rint(np.cumsum(shares)[:-1] / shares.sum() * len(members)).astype(np.int64)
    return np.array_split(members, ends)


def _leave_none_empty(parts: list[Shard]) -> list[Shard]:
    """Move one sample from the largest shard to each empty shard."""
    for i, part in enumerate(parts):
        if not len(part):
            richest = max(range(len(parts)), key=lambda j: len(parts[j]))
            parts[i], parts[richest] = parts[richest][-1:], parts[richest][:-1]
    return [np.sort(part) for part in parts]
