"""Data: the built-in sources and a user's own, in parts, and how parts are divided among replicas."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tenfold.data.folds import FOLD_KINDS, Fold, folds
from tenfold.data.given import given
from tenfold.data.mapped import Mapped, pool, with_loader
from tenfold.data.part import Part, Splits, Tensors
from tenfold.data.picked import Picked
from tenfold.data.shards import KINDS, batch_sizes, batches, order, shards
from tenfold.data.sources.fetch import Progress
from tenfold.data.sources.locate import Listed, available, contents, get, where
from tenfold.data.sources.source import SOURCES
from tenfold.data.split import split
from tenfold.errors import DataError

__all__ = [
    "FOLD_KINDS",
    "KINDS",
    "SOURCES",
    "Fold",
    "Listed",
    "Mapped",
    "Part",
    "Picked",
    "Progress",
    "Splits",
    "Tensors",
    "available",
    "batch_sizes",
    "batches",
    "folds",
    "get",
    "given",
    "load",
    "order",
    "pool",
    "shards",
    "split",
    "where",
    "with_loader",
]


def load(
    name_or_object: Any,
    *,
    options: Mapping[str, Any] | None = None,
    test_fraction: float | None = None,
    validation_fraction: float = 0.0,
    stratify: bool = True,
    split_seed: int = 0,
    limit: int | None = None,
    groups: Any = None,
    loader_workers: int = 0,
    progress: Progress | None = None,
) -> Splits:
    """Load a data set and divide it into train, validation and test.

    It is the name of a built-in source, a "package.module:callable", or any object that `given` accepts; `options` are
    passed to a callable. How the parts are cut is told at `split`, where `groups` names the group of each sample.
    With `loader_workers` above 0 they are read through torch's DataLoader; without, tensors are indexed in place,
    which is faster.
    """
    if isinstance(name_or_object, str) and ":" not in name_or_object:
        whole = _built_in(name_or_object, options, progress)
    else:
        whole = given(name_or_object, options)
    parts = split(
        whole,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        stratify=stratify,
        seed=split_seed,
        limit=limit,
        groups=groups,
    )
    return replace(
        parts,
        train=with_loader(parts.train, loader_workers),
        validation=parts.validation and with_loader(parts.validation, loader_workers),
        test=parts.test and with_loader(parts.test, loader_workers),
    )


def _built_in(name: str, options: Mapping[str, Any] | None, progress: Progress | None) -> Splits:
    source = SOURCES[name]
    if options:
        raise DataError(f"data '{name}' takes no options, but was given {', '.join(options)}")
    train, test = source.load(contents(source, progress)[1])
    classes = int(train.targets.max()) + 1
    return Splits(name=name, train=train, test=test, shape=tuple(train.x.shape[1:]), classes=classes, outputs=classes)
