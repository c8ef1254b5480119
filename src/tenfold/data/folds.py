"""The folds of a cross-validation: exactly the sample numbers that scikit-learn's splitters give for the same seed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tenfold.common.catalog import FOLD_KINDS
from tenfold.data.part import labels_in
from tenfold.errors import ExperimentError


@dataclass(frozen=True)
class Fold:
    """What one of k models learns from and what it is validated on, as sample numbers in ascending order."""

    fold: int
    """From 1 in each repeat."""
    repeat: int
    """From 1."""
    train: NDArray[np.int64]
    validation: NDArray[np.int64]


@dataclass(frozen=True)
class _Whole:
    samples: int
    labels: NDArray[Any] | None
    groups: NDArray[Any] | None


def plain(whole: _Whole, k: int, random: np.random.RandomState) -> Iterator[tuple[Any, Any]]:
    """Shuffle, then cut into k parts whose sizes differ by at most one: `KFold`."""
    from sklearn.model_selection import KFold

    return iter(KFold(k, shuffle=True, random_state=random).split(np.zeros(whole.samples)))


def stratified(whole: _Whole, k: int, random: np.random.RandomState) -> Iterator[tuple[Any, Any]]:
    """Keep the proportions of the classes in every part: `StratifiedKFold`."""
    from sklearn.model_selection import StratifiedKFold

    if whole.labels is None:
        raise ExperimentError('division.fold_kind = "stratified" needs class labels; use "plain"')
    splitter = StratifiedKFold(k, shuffle=True, random_state=random)
    return iter(splitter.split(np.zeros(whole.samples), whole.labels))


def group(whole: _Whole, k: int, random: np.random.RandomState) -> Iterator[tuple[Any, Any]]:
    """Keep samples of one group together: `StratifiedGroupKFold` where there are classes, else `GroupKFold`."""
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold

    if whole.groups is None:
        raise ExperimentError('division.fold_kind = "group" needs data.groups, which names the group of each sample')
    kind = GroupKFold if whole.labels is None else StratifiedGroupKFold
    splitter = kind(k, shuffle=True, random_state=random)
    return iter(splitter.split(np.zeros(whole.samples), whole.labels, whole.groups))


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

    `targets_or_n` is the targets of the part, or its length where they are unknown. "auto" is "group" where there are
    groups, else "stratified" where the targets are labels, else "plain". The numbers are those of scikit-learn's
    splitter with shuffle=True and random_state=seed, or of its Repeated form.
    """
    labels = labels_in(targets_or_n)
    samples = len(targets_or_n) if isinstance(targets_or_n, Tensor) else targets_or_n
    named = None if groups is None else np.asarray(groups)
    if kind == "auto":
        kind = "group" if named is not None else "plain" if labels is None else "stratified"
    random = np.random.RandomState(seed % 2**32)  # the most that this generator takes
    whole = _Whole(samples, labels, named)
    try:
        cuts = [(repeat, _checked(FOLD_KINDS[kind](whole, k, random))) for repeat in range(1, repeats + 1)]
    except ValueError as error:
        raise ExperimentError(
            f"division.folds = {k}: {samples} training samples cannot be cut into {k} {kind} folds ({error})"
        ) from None
    return [
        Fold(number, repeat, np.sort(train).astype(np.int64), np.sort(validation).astype(np.int64))
        for repeat, cut in cuts
        for number, (train, validation) in enumerate(cut, 1)
    ]


def _checked(cut: Iterator[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
    """Raise an error if a fold has no samples to train on or to validate on."""
    parts = list(cut)
    if not all(len(train) and len(validation) for train, validation in parts):
        raise ValueError("a fold would be empty")
    return parts
