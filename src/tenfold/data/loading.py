"""Loading an experiment's data: a built-in data set or the user's own, divided into train, validation and test."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tenfold.common.files import names_data_file
from tenfold.common.imports import warn_user
from tenfold.data.columns import NOT_NAMED, Columns
from tenfold.data.dataset_part import with_loader
from tenfold.data.files import KnownData
from tenfold.data.part import Part, Splits, SubsetPart, Tensors
from tenfold.data.sources import SOURCES, FetchProgress, contents
from tenfold.data.splitting import split
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


LARGE = 20.0
"""Inputs whose root mean square is above this train badly with usual learning rates."""
LARGE_TARGET = 100.0
"""Targets of a regression whose root mean square is above this are learnt badly: outputs begin near 0."""
MOST_SAMPLES = 10_000
"""Samples that are looked at to tell whether inputs are scaled."""


def with_scaling(splits: Splits, *, standardize: bool) -> Splits:
    """Return the splits with `mean` and `deviation` of their training inputs; means replace missing values.

    Both are of each channel of images, else of each number of a sample, without missing values (NaN). Without
    `standardize` the deviation is empty.
    """
    x = _inputs(splits.train)
    samples = (0, 2, 3) if x.ndim == 4 else (0,)
    known = ~torch.isnan(x)
    count = known.sum(samples, keepdim=True).clamp(min=1)
    mean = torch.where(known, x, 0).double().sum(samples, keepdim=True) / count
    square = torch.where(known, (x - mean).square(), 0).sum(samples, keepdim=True) / count
    deviation = torch.where(square > 0, square.sqrt(), 1.0)
    kept = deviation[0].float().cpu() if standardize else torch.empty(0)
    return replace(splits, scaling={"mean": mean[0].float().cpu(), "deviation": kept})


def warn_if_unscaled(splits: Splits, *, standardize: bool) -> None:
    """Warn where the inputs or the targets of the training part are so large that scaling them would help."""
    part = splits.train
    if not isinstance(part, Tensors):
        return
    if not standardize and isinstance(part.x, Tensor) and part.x.is_floating_point():
        some = part.x[:MOST_SAMPLES].reshape(min(len(part), MOST_SAMPLES), -1)
        sizes = some.square().nanmean(0).sqrt()
        if bool((sizes > LARGE).any()):
            _warn("inputs", f"up to {float(sizes.max()):.2g}", "set standardize = true")
    if part.y.is_floating_point() and (size := float(part.y[:MOST_SAMPLES].square().mean().sqrt())) > LARGE_TARGET:
        _warn("targets", f"{size:.2g}", "divide them by a constant")


def _warn(what: str, size: str, advice: str) -> None:
    text = f"{what} are not scaled: their root mean square is {size}, where about 1 trains best; {advice}"
    warn_user(text)


def _inputs(part: Part) -> Tensor:
    whole, rows = (part.part, part.indices) if isinstance(part, SubsetPart) else (part, None)
    if not isinstance(whole, Tensors) or not isinstance(whole.x, Tensor) or not whole.x.is_floating_point():
        raise DataError(
            "data.standardize needs one tensor or array of floats as input; with several inputs, tokens or a Dataset, "
            "scale the inputs in your model or Dataset"
        )
    return whole.x if rows is None else whole.x.index_select(0, rows.to(whole.device))
