"""Dividing a data set into train, validation and test: seeded, disjoint, complete, stratified."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tenfold.common.part_names import PARTS
from tenfold.data.dataset_part import join_parts
from tenfold.data.part import Part, Splits
from tenfold.errors import DataError

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

    Without `test_fraction` its own test part is used, or 0.2 of an undivided set; with it, train and test are pooled
    and divided again. `validation_fraction` is then taken out of train (pooled with an own validation part, if there
    is one). `limit` is the most samples of each part that are kept. With `groups`, one for each sample of the
    training part, no group is in two parts.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    stratify = stratify and splits.classes is not None
    parts = {name: Numbered(part) for name, part in splits.parts.items()}
    groups = _checked_groups(groups, splits, test_fraction, validation_fraction)
    parts["train"] = replace(parts["train"], groups=groups)
    fractions = {"test": test_fraction, "validation": validation_fraction}
    if test_fraction is None and splits.test is None:
        fractions["test"] = TEST_FRACTION
    for name, fraction in fractions.items():
        if fraction:
            whole = parts["train"].joined(parts.get(name))
            parts["train"], parts[name] = _take_out(whole, fraction, name, stratify, generator)
    if limit is not None:
        parts = {name: _keep(parts[name], limit, stratify, generator) for name in PARTS if name in parts}
    return replace(
        splits,
        **{name: one.part for name, one in parts.items()},  # type: ignore[arg-type]
        groups=parts["train"].groups,
        numbers={name: one.numbers for name, one in parts.items() if one.numbers is not None},
    )


@dataclass(frozen=True)
class Numbered:
    """A part, and which of the given samples it holds."""

    part: Part
    numbers: NDArray[np.int64] | None = None
    """None: the part is as it was given."""
    groups: Groups = None

    def joined(self, other: "Numbered | None") -> "Numbered":
        """Return this part followed by another, if there is one."""
        if other is None:
            return self
        own = np.arange(len(self.part)) if self.numbers is None else self.numbers
        first = int(own.max(initial=-1)) + 1
        return Numbered(join_parts(self.part, other.part), np.concatenate([own, first + np.arange(len(other.part))]))

    def subset(self, chosen: NDArray[np.int64]) -> "Numbered":
        """Return the chosen samples."""
        numbers = chosen if self.numbers is None else self.numbers[chosen]
        return Numbered(self.part.subset(chosen), numbers, None if self.groups is None else self.groups[chosen])


def draw(
    samples: int, count: int, targets: Tensor | None, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw `count` of `samples` at random; return the numbers of the drawn and of the rest, each in ascending order.

    With `targets` of one class per sample, every class gives its share, rounded by largest remainders, and keeps at
    least one sample in the rest, so that a class with a single sample is never drawn. Where `count` leaves no room for
    that, shares alone decide.
    """
    if targets is None or targets.dim() != 1:
        drawn = generator.permutation(samples)[:count]
    else:
        labels = targets.cpu().numpy()
        _, sizes = np.unique(labels, return_counts=True)
        members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
        room = sizes - 1 if count <= samples - len(sizes) else sizes
        quotas = _apportion(count, sizes, room)
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
    """Return what remains, and the fraction taken out."""
    size = len(whole.part)
    count = round(fraction * size)
    if not 0 < count < size:
        empty = name if count == 0 else "train"
        raise DataError(
            f"a {name} fraction of {fraction:g} of {size} samples leaves the {empty} part empty; "
            f"choose another fraction or give more data"
        )
    if whole.groups is not None:
        taken, rest = draw_groups(whole.groups, count, generator)
    else:
        taken, rest = draw(size, count, whole.part.targets if stratify else None, generator)
    return whole.subset(rest), whole.subset(taken)


def _keep(one: Numbered, limit: int, stratify: bool, generator: np.random.Generator) -> Numbered:
    if len(one.part) <= limit:
        return one
    # What is kept is the rest of a draw, because every class keeps a sample in the rest.
    _, kept = draw(len(one.part), len(one.part) - limit, one.part.targets if stratify else None, generator)
    return one.subset(kept)


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
