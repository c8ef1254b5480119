"""Dividing a data set into train, validation and test: seeded, disjoint, complete, stratified."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tenfold.data.base import Part, Splits
from tenfold.data.mapped import pool
from tenfold.errors import DataError

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
) -> Splits:
    """Divide a data set as asked.

    Without `test_fraction` its own test part is used, or 0.2 of an undivided set; with it, train and test are pooled
    and divided again. `validation_fraction` is then taken out of train (pooled with an own validation part, if there
    is one). `limit` finally keeps at most so many samples of each part.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    stratify = stratify and splits.classes is not None
    train, validation, test = splits.train, splits.validation, splits.test
    if test_fraction is not None or test is None:
        fraction = TEST_FRACTION if test_fraction is None else test_fraction
        whole = pool(train, test) if test is not None else train
        train, test = _take_out(whole, fraction, "test", stratify, generator)
    if validation_fraction:
        whole = pool(train, validation) if validation is not None else train
        train, validation = _take_out(whole, validation_fraction, "validation", stratify, generator)
    if limit is not None:
        if limit < 1:
            raise DataError(f"the limit on samples is {limit}; it should be at least 1")
        train = _keep(train, limit, stratify, generator)
        validation = validation and _keep(validation, limit, stratify, generator)
        test = _keep(test, limit, stratify, generator)
    return replace(splits, train=train, validation=validation, test=test)


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
    whole: Part, fraction: float, name: str, stratify: bool, generator: np.random.Generator
) -> tuple[Part, Part]:
    """Return what remains, and the fraction taken out."""
    if not 0 < fraction < 1:
        raise DataError(f"the {name} fraction is {fraction:g}; it should lie between 0 and 1")
    count = round(fraction * len(whole))
    if not 0 < count < len(whole):
        empty = name if count == 0 else "train"
        raise DataError(
            f"a {name} fraction of {fraction:g} of {len(whole)} samples leaves the {empty} part empty; "
            f"choose another fraction or give more data"
        )
    taken, rest = draw(len(whole), count, whole.targets if stratify else None, generator)
    return whole.subset(rest), whole.subset(taken)


def _keep(part: Part, limit: int, stratify: bool, generator: np.random.Generator) -> Part:
    if len(part) <= limit:
        return part
    # What is kept is the rest of a draw, for the rest is where small classes survive.
    _, kept = draw(len(part), len(part) - limit, part.targets if stratify else None, generator)
    return part.subset(kept)
