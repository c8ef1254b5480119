"""Metrics as sums: each worker adds up its share of a part, the sums merge without rounding, and the value follows.

A sum of floats is kept exactly, as an integer multiple of 2**-1130, so that a metric has the same bits however the
samples were divided among workers and batches.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tenfold.data.part import NO_LABEL
from tenfold.errors import ModelError

Sums = dict[str, Any]
"""Sums over samples, by name: tensors of counts, `ExactSum` and `PairCounts`; all of them are merged by adding."""
UNIT_BITS = 1130
"""Sums are counted in units of 2**-1130, of which every finite float is a multiple."""
MANTISSA_BITS, LOW_BITS = 53, 27
MOST_AT_ONCE = 1 << 25
"""Sums of this many halves of mantissas are still exact in float64."""


@dataclass(frozen=True)
class ExactSum:
    """The sums of the columns of a matrix of floats, without rounding: they do not depend on the order of the rows."""

    units: tuple[int, ...]
    """The sum of the finite numbers in each column, in units of 2**-1130."""
    odd: tuple[float, ...]
    """The sum of the others: 0, NaN or infinity."""

    @classmethod
    def of(cls, values: Tensor | NDArray[np.float64]) -> "ExactSum":
        numbers = values.detach().double().cpu().numpy() if isinstance(values, Tensor) else values
        numbers = numbers[:, None] if numbers.ndim == 1 else numbers
        if numbers.size > MOST_AT_ONCE and len(numbers) > 1:
            half = len(numbers) // 2
            return cls.of(numbers[:half]) + cls.of(numbers[half:])
        columns = numbers.shape[1]
        if not numbers.size:
            return cls((0,) * columns, (0.0,) * columns)
        finite = np.isfinite(numbers)
        with np.errstate(invalid="ignore"):
            odd = np.where(finite, 0.0, numbers).sum(0)
        mantissas, exponents = np.frexp(np.where(finite, numbers, 0.0))
        integers = np.ldexp(mantissas, MANTISSA_BITS).astype(np.int64)
        lowest, levels = int(exponents.min()), int(exponents.max() - exponents.min()) + 1
        places = ((exponents.astype(np.int64) - lowest) * columns + np.arange(columns)).ravel()

        def level_sums(halves: NDArray[np.int64]) -> Any:
            summed = np.bincount(places, halves.ravel().astype(np.float64), levels * columns)
            return summed.astype(np.int64).astype(object).reshape(levels, columns)

        high, low = level_sums(integers >> LOW_BITS), level_sums(integers & ((1 << LOW_BITS) - 1))
        scales = [1 << (lowest + level - MANTISSA_BITS + UNIT_BITS) for level in range(levels)]
        units = (((high << LOW_BITS) + low) * np.array(scales, dtype=object)[:, None]).sum(0)
        return cls(tuple(units.tolist()), tuple(odd.tolist()))

    def __add__(self, other: "ExactSum") -> "ExactSum":
        return ExactSum(
            tuple(item + two for item, two in zip(self.units, other.units, strict=True)),
            tuple(item + two for item, two in zip(self.odd, other.odd, strict=True)),
        )

    @property
    def is_finite(self) -> bool:
        return not any(self.odd)

    @property
    def fractions(self) -> list[Fraction]:
        """The sum of each column's finite numbers."""
        return [Fraction(unit, 1 << UNIT_BITS) for unit in self.units]

    def divided_by(self, divisor: "Tensor | ExactSum | int") -> float:
        """Return the sum of the first column divided by a count or by another such sum; NaN for a division by 0."""
        if isinstance(divisor, ExactSum):
            if not divisor.is_finite or not divisor.units[0]:
                return math.nan
            below = divisor.fractions[0]
        else:
            below = Fraction(int(divisor))
        if not below:
            return math.nan
        if not self.is_finite:
            return self.odd[0]
        return as_float(self.fractions[0] / below)


def as_float(number: Fraction) -> float:
    """Return the nearest float; infinity beyond the largest."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


@dataclass(frozen=True)
class PairCounts:
    """How many samples have each pair of a true and a predicted class: a confusion matrix of the pairs that occur."""

    classes: int
    keys: Tensor
    """[pairs] int64, in ascending order: true class * classes + predicted class."""
    counts: Tensor
    """[pairs] int64."""

    @classmethod
    def of(cls, true: Tensor, predicted: Tensor, classes: int) -> "PairCounts":
        keys, counts = torch.unique(true * classes + predicted, return_counts=True)
        return cls(classes, keys, counts)

    def __add__(self, other: "PairCounts") -> "PairCounts":
        keys, places = torch.unique(torch.cat([self.keys, other.keys]), return_inverse=True)
        counts = torch.zeros_like(keys).index_add_(0, places, torch.cat([self.counts, other.counts]))
        return PairCounts(self.classes, keys, counts)

    @property
    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The true class, the predicted class and the number of samples of each pair."""
        keys = self.keys.cpu().numpy()
        return keys // self.classes, keys % self.classes, self.counts.cpu().numpy()


class SumMetric:
    """A metric, or a loss, that follows from sums over samples, so that the shares of a part can be measured apart."""

    def __init__(self, sums: Callable[[Any, Any], Sums], value: Callable[[Sums], float]) -> None:
        self.sums = sums
        """Returns the sums of some outputs and targets."""
        self.value = value
        """Returns the metric, given the sums of all."""

    def __call__(self, outputs: Any, targets: Any) -> float:
        return self.value(self.sums(outputs, targets))


def add_sums(first: Sums, second: Sums) -> Sums:
    return {name: first[name] + second[name] for name in first} if first and second else first or second


def ratio(above: str, below: str) -> Callable[[Sums], float]:
    """Return the function that divides one sum by another; NaN for a division by 0."""

    def value(sums: Sums) -> float:
        sum_, count = sums[above], sums[below]
        if isinstance(sum_, ExactSum):
            return sum_.divided_by(count)
        return int(sum_) / int(count) if int(count) else math.nan

    return value


def by_sample(elements: Tensor) -> NDArray[np.float64]:
    """Return the sum over each sample's elements, which does not depend on the other samples."""
    numbers: NDArray[np.float64] = elements.detach().double().cpu().numpy()
    rows = np.ascontiguousarray(numbers.reshape(len(numbers), math.prod(numbers.shape[1:])))
    return np.asarray(rows.sum(axis=1))


def counted(numbers: Tensor | int) -> Tensor:
    """Return a count as a tensor."""
    return numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.int64)


def mean_of(values: Callable[[Tensor, Tensor], Tensor]) -> SumMetric:
    """Return the metric that is the mean over all elements of what a function returns for outputs and targets."""

    def sums(outputs: Tensor, targets: Tensor) -> Sums:
        elements = values(outputs, targets)
        return {
            "sum": ExactSum.of(by_sample(elements)),
            "count": counted(elements.numel()),
            "samples": counted(len(elements)),
        }

    return SumMetric(sums, ratio("sum", "count"))


def align(outputs: Any, targets: Any, name: str) -> Any:
    """Return outputs of shape (n, 1) as (n,) where the targets are, and the reverse; other outputs as they are."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.shape == targets.shape:
        return outputs
    if not outputs.ndim or not targets.ndim or len(outputs) != len(targets):
        raise ModelError(
            f"{name} cannot compare outputs of shape {tuple(outputs.shape)} with targets of shape "
            f"{tuple(targets.shape)}; both should begin with the number of samples"
        )
    if _without_ones(outputs) == _without_ones(targets):
        return outputs.reshape(targets.shape)
    return outputs


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs in the shape of the targets; raise a ModelError unless there is one output for each target."""
    outputs = align(outputs, targets, "this loss or metric")
    if outputs.shape != targets.shape:
        raise ModelError(
            f"outputs have shape {tuple(outputs.shape)} but targets {tuple(targets.shape)}; this loss or metric needs "
            "one output for each target, or integers as targets for classes"
        )
    return outputs


def _without_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape[1:] if size != 1)


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each label whether the largest output, or the sign of the only one, names it.

    Where a sample has a label for each of its positions, those without one are left out.
    """
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        right = outputs.argmax(1) == targets
        return right if targets.ndim == 1 and not bool((targets < 0).any()) else right[targets >= 0]
    if not targets.is_floating_point() and bool((targets > 1).any()):
        raise ModelError(
            f"accuracy needs an output for each class, but the network has one output for labels from 0 to "
            f"{int(targets.max())}; use rmse, mae or r2 for numbers"
        )
    if targets.is_floating_point() and not bool(((targets == 0) | (targets == 1)).all()):
        raise ModelError(
            "accuracy needs classes, but the targets are numbers other than 0 and 1; use rmse, mae or r2, or give "
            "classes as integers"
        )
    right = (aligned(outputs, targets) > 0) == (targets > 0.5)
    return right if targets.ndim == 1 else right[targets != NO_LABEL]


def _count_correct(outputs: Tensor, targets: Tensor) -> Sums:
    right = correct(outputs, targets)
    return {"correct": right.sum(), "labeled": counted(right.numel())}


accuracy = SumMetric(_count_correct, ratio("correct", "labeled"))
"""The share of labels that the network gets right."""


def residuals(outputs: Tensor, targets: Tensor) -> Tensor:
    return aligned(outputs, targets).double() - targets.double()


mean_absolute_error = mean_of(lambda outputs, targets: residuals(outputs, targets).abs())
"""The mean of |output - target|."""
_mean_square = mean_of(lambda outputs, targets: residuals(outputs, targets).square())
root_mean_square_error = SumMetric(_mean_square.sums, lambda sums: math.sqrt(_mean_square.value(sums)))
"""The root of the mean of (output - target)^2."""


def elements_of_classes(loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss of classes for each label; positions count as samples, which is faster than classes in between."""
    if outputs.ndim < 3:
        return loss(outputs, targets)
    shares = targets.is_floating_point()  # of classes, in place of labels
    flat = targets.movedim(1, -1).flatten(0, -2) if shares else targets.flatten()
    return loss(outputs.movedim(1, -1).flatten(0, -2), flat).reshape(len(outputs), -1)


def _sum_surprise(outputs: Tensor, targets: Tensor) -> Sums:
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1 or outputs.shape[1] < 2:
        raise ModelError(
            f"perplexity needs an output for each class and integers as targets, not outputs of shape "
            f"{tuple(outputs.shape)} and targets of shape {tuple(targets.shape)}"
        )
    elements = elements_of_classes(partial(functional.cross_entropy, reduction="none"), outputs, targets)
    return {"sum": ExactSum.of(by_sample(elements)), "count": (targets != NO_LABEL).sum()}


def _exponential_of_mean(sums: Sums) -> float:
    mean = ratio("sum", "count")(sums)
    try:
        return math.exp(mean)
    except OverflowError:
        return math.inf


perplexity = SumMetric(_sum_surprise, _exponential_of_mean)
"""exp of the mean cross-entropy over all labels, -log p(label): of a language model, over all positions."""
