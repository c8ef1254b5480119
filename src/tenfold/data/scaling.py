"""The means and deviations of a training part's inputs, and whether inputs look as if they should be standardized."""

from dataclasses import replace

import torch
from torch import Tensor

from tenfold.common.user_code import warn_user
from tenfold.data.part import Part, Splits, SubsetPart, Tensors
from tenfold.errors import DataError

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
