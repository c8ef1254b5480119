"""Loading an experiment's data: a built-in data set or the user's own, divided into train, validation and test."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tenfold.common.imports import warn_user
from tenfold.data.dataset_part import NOT_NAMED, Columns, with_loader
from tenfold.data.part import Part, Splits, SubsetPart, Tensors
from tenfold.data.sources import SOURCES
from tenfold.data.splitting import split
from tenfold.data.streams import StreamPart, with_lengths
from tenfold.data.user_data import as_splits
from tenfold.data.user_datasets import PLAIN_VALUES, ValueRules
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
    epoch_samples: int | None = None,
    groups: Any = None,
    loader_workers: int = 0,
    loader: Literal["auto", "dataloader"] = "auto",
    columns: Columns = NOT_NAMED,
    collate: Callable[..., Any] | None = None,
    standardize: bool | None = None,
    standardize_targets: bool = True,
    rules: ValueRules = PLAIN_VALUES,
) -> Splits:
    """Load a data set and divide it into train, validation and test.

    `name_or_object` is the name of a built-in data set, "package.module:callable", or any object that `as_splits`
    accepts; `options` are passed to a callable. See `split` for how the parts are cut and what `groups` means.
    With `loader_workers` above 0 or `loader="dataloader"`, samples are read through a DataLoader; else tensors are
    indexed in place, which is faster. `standardize` (default: for tables) is for inputs and, unless
    `standardize_targets` is false, for the targets of a regression. `epoch_samples` is the length of an epoch
    of a stream.
    """
    whole = as_splits(name_or_object, options, columns=columns, collate=collate, rules=rules)
    whole = whole.to("cpu", rules.dtype)
    if rules.classes not in (None, whole.classes):
        kind_of_targets = "numbers as targets" if whole.classes is None else f"{whole.classes} classes"
        raise DataError(f"data.classes = {rules.classes}, but the data have {kind_of_targets}")
    if loader_workers and any(isinstance(part, StreamPart) for part in whole.parts.values()):
        raise DataError(
            f"data.loader_workers = {loader_workers}: a stream (iterable-style Dataset) is read where the training "
            "runs; set it to 0"
        )
    parts = split(
        with_lengths(whole, epoch_samples, limit),
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
        stratify=stratify,
        seed=split_seed,
        limit=limit,
        groups=groups,
    )
    if parts.fit is not None:
        parts = replace(parts.fit(parts), fit=None).to("cpu", rules.dtype)
    if standardize is None:
        standardize = bool(parts.features)
    targets = standardize and standardize_targets and has_numbers_to_scale(parts)
    if standardize or parts.has_missing:
        parts = with_scaling(parts, inputs=standardize, targets=targets)
    if not (isinstance(name_or_object, str) and name_or_object in SOURCES):
        warn_if_unscaled(parts)
    if not loader_workers and loader == "auto":
        return parts
    return parts.with_each(lambda part: with_loader(part, loader_workers))


LARGE = 20.0
"""Inputs whose root mean square is above this train badly with usual learning rates."""
LARGE_TARGET = 100.0
"""Targets of a regression whose root mean square is above this are learned badly: outputs begin near 0."""
MOST_SAMPLES = 10_000
"""Samples that are looked at to tell whether inputs are scaled."""


def with_scaling(splits: Splits, *, inputs: bool = False, targets: bool = False) -> Splits:
    """Return the splits with means and deviations of their training part, by which a network converts.

    `inputs` and `targets` say what is standardized. Both numbers are of each channel of images, else of each number of
    a sample. Missing inputs (NaN) do not count and are replaced by the mean; where that is all, the deviation is empty.
    """
    scaling: dict[str, Tensor] = {}
    if inputs or splits.has_missing:
        mean, deviation = _moments(_inputs(splits.train))
        scaling |= {"mean": mean, "deviation": deviation if inputs else torch.empty(0)}
    if targets and (numbers := splits.train.targets) is not None:
        scaling["target_mean"], scaling["target_deviation"] = _moments(numbers)
    unit = scaling.get("target_deviation") if splits.loss_unit is None else splits.loss_unit
    return replace(splits, scaling=scaling or None, loss_unit=unit)


def with_same_scaling(splits: Splits) -> Splits:
    """Return splits with another training part with its own means and deviations, of what had some before."""
    if splits.scaling is None:
        return splits
    inputs = "deviation" in splits.scaling and splits.scaling["deviation"].numel() > 0
    return with_scaling(splits, inputs=inputs, targets="target_mean" in splits.scaling)


def has_numbers_to_scale(splits: Splits) -> bool:
    """Return whether the targets are those of a regression, in memory."""
    targets = splits.train.targets
    return targets is not None and targets.is_floating_point() and splits.classes is None and not splits.multi_label


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the deviation over all samples, without missing values; 1 for a deviation of 0."""
    samples = (0, 2, 3) if values.ndim == 4 else (0,)
    is_number = ~torch.isnan(values)
    count = is_number.sum(samples, keepdim=True).clamp(min=1)
    mean = torch.where(is_number, values, 0).double().sum(samples, keepdim=True) / count
    square = torch.where(is_number, (values - mean).square(), 0).sum(samples, keepdim=True) / count
    deviation = torch.where(square > 0, square.sqrt(), 1.0)
    return mean[0].to(values.dtype).cpu(), deviation[0].to(values.dtype).cpu()


def warn_if_unscaled(splits: Splits) -> None:
    """Warn where the inputs or the targets of the training part are so large that scaling them would help."""
    part = splits.train
    if not isinstance(part, Tensors):
        return
    scaling = splits.scaling or {}
    standardized = scaling.get("deviation", torch.empty(0)).numel() > 0
    if not standardized and isinstance(part.x, Tensor) and part.x.is_floating_point():
        some = part.x[:MOST_SAMPLES].reshape(min(len(part), MOST_SAMPLES), -1)
        sizes = some.square().nanmean(0).sqrt()
        if bool((sizes > LARGE).any()):
            _warn("inputs", f"up to {float(sizes.max()):.2g}", "set standardize = true")
    if "target_mean" in scaling or not part.y.is_floating_point():
        return
    if (size := float(part.y[:MOST_SAMPLES].square().mean().sqrt())) > LARGE_TARGET:
        _warn("targets", f"{size:.2g}", "set standardize = true, or for a loss of your own divide them by a constant")


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
