"""Loading an experiment's data: a built-in data set or the user's own, divided into train, validation and test."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from tenfold.common.files import names_data_file
from tenfold.data.dataset_part import with_loader
from tenfold.data.files.known_data import KnownData
from tenfold.data.part import Splits
from tenfold.data.scaling import warn_if_unscaled, with_scaling
from tenfold.data.sources.fetch import FetchProgress
from tenfold.data.sources.locate import contents
from tenfold.data.sources.source import SOURCES
from tenfold.data.splitting import split
from tenfold.data.table_columns import NOT_NAMED, Columns
from tenfold.data.user_data import as_splits
from tenfold.errors import DataError


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
    loader: Literal["auto", "dataloader"] = "auto",
    columns: Columns = NOT_NAMED,
    collate: Callable[..., Any] | None = None,
    standardize: bool = False,
    progress: FetchProgress | None = None,
) -> Splits:
    """Load a data set and divide it into train, validation and test.

    `name_or_object` is the name of a built-in data set, "package.module:callable", or any object that `as_splits`
    accepts; `options` are passed to a callable. See `split` for how the parts are cut and what `groups` means.
    With `loader_workers` above 0 or `loader="dataloader"`, samples are read through a DataLoader; else tensors are
    indexed in place, which is faster.
    """
    parts = split(
        read(name_or_object, options, progress, columns=columns, collate=collate),
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        stratify=stratify,
        seed=split_seed,
        limit=limit,
        groups=groups,
    )
    if parts.fit is not None:
        parts = replace(parts.fit(parts), fit=None)
    if standardize or parts.has_missing:
        parts = with_scaling(parts, standardize=standardize)
    if not (isinstance(name_or_object, str) and name_or_object in SOURCES):
        warn_if_unscaled(parts, standardize=standardize)
    if not loader_workers and loader == "auto":
        return parts
    return parts.with_each(lambda part: with_loader(part, loader_workers))


def read(
    name_or_object: Any,
    options: Mapping[str, Any] | None = None,
    progress: FetchProgress | None = None,
    *,
    columns: Columns = NOT_NAMED,
    collate: Callable[..., Any] | None = None,
    known: KnownData | None = None,
) -> Splits:
    """Read a data set in the parts that it comes in; a table like the `known` one, where that is given."""
    named = isinstance(name_or_object, str) and ":" not in name_or_object
    if named and (name_or_object in SOURCES or not names_data_file(name_or_object)):
        if columns != NOT_NAMED or collate is not None:
            raise DataError(f"data '{name_or_object}' is built in: it takes no target_column, input_columns or collate")
        return _built_in(name_or_object, options, progress)
    return as_splits(name_or_object, options, columns=columns, collate=collate, known=known)


def _built_in(name: str, options: Mapping[str, Any] | None, progress: FetchProgress | None) -> Splits:
    source = SOURCES[name]
    if source.make is not None:
        return source.make(options or {})
    assert source.load is not None
    if options:
        raise DataError(f"data '{name}' takes no options, but was given {', '.join(options)}")
    train, test = source.load(contents(source, progress)[1] if source.files else {})
    classes = int(train.targets.max()) + 1
    return Splits(name=name, train=train, test=test, shape=tuple(train.x.shape[1:]), classes=classes, outputs=classes)
