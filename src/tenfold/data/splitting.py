"""Dividing a data set into train, validation and test: seeded, disjoint, complete, stratified."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tenfold.data.dataset_part import pool
from tenfold.data.part import Part, Splits
from tenfold.errors import DataError

Groups = NDArray[Any] | None
TEST_FRACTION = 0.2
"""Of a data set that comes without a test part."""


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
    """Divide a data set as asked.

    Without `test_fraction` its own test part is used, or 0.2 of an undivided set; with it, train and test are pooled
    and divided again. `validation_fraction` is then taken out of train (pooled with an own validation part, if there
    is one). `limit` finally keeps at most so many samples of each part. With `groups`, one for each sample of the
    training part, no group is in two parts.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    stratify = stratify and splits.classes is not None
    train, validation, test = splits.train, splits.validation, splits.test
    named = _checked_groups(groups, splits, test_fraction, validation_fraction)
    if test_fraction is not None or test is None:
        fraction = TEST_FRACTION if test_fraction is None else test_fraction
        whole = pool(train, test) if test is not None else train
        train, test, named = _take_out(whole, fraction, "test", stratify, generator, named)
    if validation_fraction:
        whole = pool(train, validation) if validation is not None else train
        train, validation, named = _take_out(whole, validation_fraction, "validation", stratify, generator, named)
    if limit is not None:
        if limit < 1:
            raise DataError(f"the limit on samples is {limit}; it should be at least 1")
        train, named = _keep(train, limit, stratify, generator, named)
        validation = validation and _keep(validation, limit, stratify, generator)[0]
        test = _keep(test, limit, stratify, generator)[0]
    return replace(splits, train=train, validation=validation, test=test, groups=named)


def draw(
    samples: int, count: int, targets: Tensor | None, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw `count` of `samples` at random; return the numbers of the drawn and of the rest, each in ascending order.

    With `targets` every class gives its share, rounded by largest remainders, and keeps at least one sample in the
    rest, so that a class with a single sample is never drawn. Where `count` leaves no room for that, shares alone
    decide.
    """
    if targets is None:
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
    whole: Part, fraction: float, name: str, stratify: bool, generator: np.random.Generator, groups: Groups = None
) -> tuple[Part, Part, Groups]:
    """Return what remains, the fraction taken out, and the groups of what remains."""
    if not 0 < fraction < 1:
        raise DataError(f"the {name} fraction is {fraction:g}; it should lie between 0 and 1")
    count = round(fraction * len(whole))
    if not 0 < count < len(whole):
        empty = name if count == 0 else "train"
        raise DataError(
            f"a {name} fraction of {fraction:g} of {len(whole)} samples leaves the {empty} part empty; "
            f"choose another fraction or give more data"
        )
    if groups is not None:
        taken, rest = draw_groups(groups, count, generator)
    else:
        taken, rest = draw(len(whole), count, whole.targets if stratify else None, generator)
    return whole.subset(rest), whole.subset(taken), None if groups is None else groups[rest]


def _keep(
    part: Part, limit: int, stratify: bool, generator: np.random.Generator, groups: Groups = None
) -> tuple[Part, Groups]:
    if len(part) <= limit:
        return part, groups
    # What is kept is the rest of a draw, for the rest is where small classes survive.
    _, kept = draw(len(part), len(part) - limit, part.targets if stratify else None, generator)
    return part.subset(kept), None if groups is None else groups[kept]


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
            "data.groups belong to the training part, which cannot be pooled with another part then; leave "
            "test_fraction and validation_fraction unset, or give the data as one part"
        )
    if named.ndim != 1 or len(named) != len(splits.train):
        raise DataError(
            f"data.groups has the shape {named.shape}; it should name one group for each of the {len(splits.train)} "
            "samples of the training part"
        )
    return named
