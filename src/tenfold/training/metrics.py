"""Metrics, computed from sums where possible: workers sum over their shares of a part, and merge without rounding.

A sum of floats is exact, an integer multiple of 2**-1130, so a metric has the same bits for every division of the
samples among workers and batches.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tenfold.common.metric_traits import RANKING_METRIC, metric_traits
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
    """The exact sums of the columns of a matrix of floats; they do not depend on the order of the rows."""

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
        """The sum of the finite numbers of each column."""
        return [Fraction(unit, 1 << UNIT_BITS) for unit in self.units]

    def divided_by(self, divisor: "Tensor | ExactSum | int") -> float:
        """Return the sum of the first column divided by a count or another sum; NaN for a division by 0."""
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
    """Return the nearest float, or infinity."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


@dataclass(frozen=True)
class PairCounts:
    """A sparse confusion matrix: the number of samples for each occurring pair of a true and a predicted class."""

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
    """A metric or loss computed from sums over samples, so the shares of a part can be measured separately."""

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
    """Return the sum over each sample's elements; its bits do not depend on the other samples."""
    numbers: NDArray[np.float64] = elements.detach().double().cpu().numpy()
    rows = np.ascontiguousarray(numbers.reshape(len(numbers), math.prod(numbers.shape[1:])))
    return np.asarray(rows.sum(axis=1))


def counted(numbers: Tensor | int) -> Tensor:
    """Return a count as a tensor."""
    return numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=torch.int64)


def mean_of(values: Callable[[Tensor, Tensor], Tensor]) -> SumMetric:
    """Return the metric that averages a function of outputs and targets over all elements."""

    def sums(outputs: Tensor, targets: Tensor) -> Sums:
        elements = values(outputs, targets)
        return {
            "sum": ExactSum.of(by_sample(elements)),
            "count": counted(elements.numel()),
            "samples": counted(len(elements)),
        }

    return SumMetric(sums, ratio("sum", "count"))


def align(outputs: Any, targets: Any, name: str) -> Any:
    """Reshape outputs from (n, 1) to (n,) or the reverse, like the targets; return other outputs unchanged."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.shape == targets.shape:
        return outputs
    if not outputs.ndim or not targets.ndim or len(outputs) != len(targets):
        raise ModelError(
            f"{name} cannot compare outputs of shape {tuple(outputs.shape)} with targets of shape "
            f"{tuple(targets.shape)}; the first dimension of both should be the samples"
        )
    if _without_ones(outputs) == _without_ones(targets):
        return outputs.reshape(targets.shape)
    return outputs


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs in the shape of the targets; raise ModelError unless there is one output per target."""
    outputs = align(outputs, targets, "this loss or metric")
    if outputs.shape != targets.shape:
        raise ModelError(
            f"outputs have shape {tuple(outputs.shape)} but targets {tuple(targets.shape)}; this loss or metric needs "
            "one output per target, or integer targets for classes"
        )
    return outputs


def _without_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape[1:] if size != 1)


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each label whether it is predicted, by the largest output or the sign of a single one.

    If samples have a label per position, positions without a label are left out.
    """
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        right = outputs.argmax(1) == targets
        return right if targets.ndim == 1 and not bool((targets < 0).any()) else right[targets >= 0]
    if not targets.is_floating_point() and bool((targets > 1).any()):
        raise ModelError(
            f"accuracy needs one output per class, but the network has one output for labels from 0 to "
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
    """Return a class loss for each label; positions become samples, which is faster than classes in dimension 1."""
    if outputs.ndim < 3:
        return loss(outputs, targets)
    shares = targets.is_floating_point()  # of classes, in place of labels
    flat = targets.movedim(1, -1).flatten(0, -2) if shares else targets.flatten()
    return loss(outputs.movedim(1, -1).flatten(0, -2), flat).reshape(len(outputs), -1)


def _sum_surprise(outputs: Tensor, targets: Tensor) -> Sums:
    if targets.is_floating_point() or outputs.ndim != targets.ndim + 1 or outputs.shape[1] < 2:
        raise ModelError(
            f"perplexity needs one output per class and integer targets, not outputs of shape "
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


# Metrics that rank many labels.
#
# Let rel_k = 1 if the label at rank k is relevant, and R the number of relevant labels. The last three leave out
# samples without relevant labels:
#
#     precision at M    sum_{k<=M} rel_k / M
#     recall at M       sum_{k<=M} rel_k / R
#     map at M          sum_{k<=M} rel_k precision(k) / min(M, R)
#     ndcg at M         sum_{k<=M} rel_k / log2(k + 1), divided by the largest value that it can have


def ranking_metric(name: str) -> SumMetric | None:
    """Return the metric for a name such as "precision_at_10"; None for other names."""
    match = RANKING_METRIC.fullmatch(name)
    if match is None:
        return None
    kind, m = match[1], int(match[2])

    def values(outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.shape != targets.shape or outputs.ndim != 2:
            raise ModelError(
                f"{name} ranks the labels of each sample: outputs {tuple(outputs.shape)} and targets "
                f"{tuple(targets.shape)} should both be (samples, labels)"
            )
        return _KINDS[kind](_relevant(outputs, targets, m), (targets > 0.5).sum(1).double())

    return mean_of(values)


def _relevant(outputs: Tensor, targets: Tensor, m: int) -> Tensor:
    """Return for each sample which of its m highest-ranked labels are relevant."""
    top = outputs.topk(min(m, outputs.shape[1]), dim=1).indices
    return (targets.gather(1, top) > 0.5).double()


def _precision(relevant: Tensor, _right: Tensor) -> Tensor:
    return relevant


def _recall(relevant: Tensor, right: Tensor) -> Tensor:
    some = right > 0
    return relevant[some].sum(1) / right[some]


def _average_precision(relevant: Tensor, right: Tensor) -> Tensor:
    some, m = right > 0, relevant.shape[1]
    precision = relevant.cumsum(1) / torch.arange(1, m + 1, device=relevant.device)
    return (relevant * precision).sum(1)[some] / right[some].clamp(max=m)


def _discounted_gain(relevant: Tensor, right: Tensor) -> Tensor:
    some, m = right > 0, relevant.shape[1]
    discounts = 1 / torch.log2(torch.arange(2, m + 2, device=relevant.device, dtype=torch.float64))
    best = discounts.cumsum(0)[right[some].clamp(max=m).long() - 1]
    return (relevant * discounts).sum(1)[some] / best


_KINDS = {"precision": _precision, "recall": _recall, "map": _average_precision, "ndcg": _discounted_gain}
"""The terms of a mean: over samples, and for the precision over ranks as well."""


# scikit-learn's scorers ("f1_macro", "roc_auc_ovr", "r2", ...) as functions of (outputs, targets).
#
# Scorers that depend only on counts or sums are computed from these; if scikit-learn's function takes weights, it is
# called with one sample of weight n for each pair of a true and a predicted class that occurs n times.

OF_NUMBERS = (
    *("r2", "explained_variance", "max_error", "d2_absolute_error"),
    *("neg_max_error", "neg_mean_", "neg_median_", "neg_root_mean_"),
)
"""How the names of scorers begin that compare numbers, not classes."""


def scorer(name: str) -> SumMetric | Callable[[Tensor, Tensor], float]:
    """Return the scorer of this name, as a plain function if it needs all outputs together.

    Scorers call an estimator with samples. Here the samples are the network's outputs, and the estimator interprets
    them: as probabilities and labels if the targets are classes (also 0 and 1 as floats), otherwise as predicted
    numbers. A scorer of numbers always receives the numbers, if there is one per target.
    """
    from sklearn.metrics import get_scorer

    judge, traits = get_scorer(name), metric_traits(name)
    if traits is None or traits.combines == "outputs":
        return lambda outputs, targets: _judge(name, judge, outputs, targets)
    of_classes = _PROBABILITY_SCORERS.get(name, _count_pairs)

    def sums(outputs: Tensor, targets: Tensor) -> Sums:
        outputs, targets = _labeled(outputs, targets)
        if _compares_numbers(name, outputs, targets):
            return _sum_numbers(outputs, targets)
        if targets.is_floating_point() and not bool(((targets == 0) | (targets == 1)).all()):
            _judge(name, judge, outputs, targets)  # it raises the error with the reason
        if _has_several_labels(outputs, targets):
            return _count_labels(name, judge, outputs, targets)
        logits = outputs.reshape(len(outputs), -1)
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        return of_classes(logits, targets.long().reshape(len(targets)))

    return SumMetric(sums, lambda sums: _value(name, judge, sums))


def _labeled(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and targets of all positions with a label, if samples have positions."""
    if outputs.ndim == targets.ndim + 1 > 2 and not targets.is_floating_point():
        labeled = targets != NO_LABEL
        return outputs.movedim(1, -1)[labeled], targets[labeled]
    return outputs, targets


def _compares_numbers(name: str, outputs: Tensor, targets: Tensor) -> bool:
    return name.startswith(OF_NUMBERS) and outputs.numel() == targets.numel()


def _has_several_labels(outputs: Tensor, targets: Tensor) -> bool:
    return targets.ndim > 1 and targets.shape[1] > 1 and targets.shape == outputs.shape


def _value(name: str, judge: Any, sums: Sums) -> float:
    """Return a scorer's value from its sums."""
    if "residual" in sums:
        return _value_of_numbers(name, sums)
    if "mean" in sums:
        return float(judge._sign * sums["mean"].divided_by(sums["samples"]))
    score = judge._score_func
    if "pairs" in sums:
        true, predicted, counts = sums["pairs"].columns
        try:
            return float(judge._sign * score(true, predicted, sample_weight=counts, **judge._kwargs))
        except ValueError as error:
            raise _for_two_classes(name, sums["pairs"].classes, error) from None
    from scipy.sparse import csr_array, eye_array, vstack

    hit, missed, added = (sums[kind].cpu().numpy() for kind in ("hit", "missed", "added"))
    ones, none = eye_array(len(hit), dtype=np.int64), csr_array((len(hit), len(hit)), dtype=np.int64)
    true, predicted = vstack([ones, ones, none]).tocsr(), vstack([ones, none, ones]).tocsr()
    return float(score(true, predicted, sample_weight=np.concatenate([hit, missed, added]), **judge._kwargs))


def _for_two_classes(name: str, classes: int, error: ValueError) -> Exception:
    """Replace the error of a two-class scorer by one that names the multi-class variants; return others unchanged."""
    if "average='binary'" not in str(error):
        return error
    variants = f"{name}_macro, {name}_micro or {name}_weighted"
    return ModelError(f"the metric {name} is for two classes, but there are {classes}; use {variants}")


def _count_pairs(logits: Tensor, labels: Tensor) -> Sums:
    return {"pairs": PairCounts.of(labels, logits.argmax(1), logits.shape[1])}


def _sum_log_loss(logits: Tensor, labels: Tensor) -> Sums:
    """Sum -log p of the true class, with p clipped as in scikit-learn."""
    smallest = float(np.finfo(np.float64).eps)
    chosen = _probabilities(logits).gather(1, labels[:, None])[:, 0].clamp(smallest, 1 - smallest)
    return {"mean": ExactSum.of(-chosen.log()), "samples": counted(len(labels))}


def _count_top_2(logits: Tensor, labels: Tensor) -> Sums:
    """Count the samples whose true class is among the two most probable classes; the last ones in case of ties."""
    order = np.argsort(_probabilities(logits).cpu().numpy(), axis=1, kind="mergesort")[:, ::-1][:, :2]
    hits = (order == labels.cpu().numpy()[:, None]).any(1)
    return {"mean": ExactSum.of(hits.astype(np.float64)), "samples": counted(len(labels))}


_PROBABILITY_SCORERS: dict[str, Callable[[Tensor, Tensor], Sums]] = {
    "neg_log_loss": _sum_log_loss,
    "top_k_accuracy": _count_top_2,
}
"""Scorers that are means over samples of a function of the probabilities."""


def _probabilities(logits: Tensor) -> Tensor:
    logits = logits.double()
    shares = (logits - logits.max(1, keepdim=True).values).exp()
    return shares / shares.sum(1, keepdim=True)


def _count_labels(name: str, judge: Any, outputs: Tensor, targets: Tensor) -> Sums:
    """Count, for samples with several labels each, how often each label was predicted and was right."""
    labels, predicted, average = targets > 0.5, outputs > 0, judge._kwargs.get("average")
    if average == "samples":
        true, said = labels.T.long().cpu().numpy(), predicted.T.long().cpu().numpy()  # samples take the place of labels
        values = judge._score_func(true, said, **judge._kwargs | {"average": None, "zero_division": 0.0})
        return {"mean": ExactSum.of(np.asarray(values, dtype=np.float64)), "samples": counted(len(labels))}
    if average not in ("macro", "micro", "weighted"):
        raise ModelError(
            f"the metric {name} is for one label per sample, but the targets have {targets.shape[1]}; use a metric "
            "whose name ends with _macro, _micro, _weighted or _samples, such as f1_macro"
        )
    return {
        "hit": (labels & predicted).sum(0),
        "missed": (labels & ~predicted).sum(0),
        "added": (~labels & predicted).sum(0),
    }


def _sum_numbers(outputs: Tensor, targets: Tensor) -> Sums:
    """Sum the terms of regression scores for each column."""
    true = targets.double().reshape(len(targets), -1)
    residual = true - outputs.double().reshape(true.shape)
    relative = residual.abs() / true.abs().clamp(min=float(np.finfo(np.float64).eps))
    columns = {
        "true": true,
        "true_squared": true.square(),
        "residual": residual,
        "residual_squared": residual.square(),
        "residual_absolute": residual.abs(),
        "residual_relative": relative,
    }
    return {name: ExactSum.of(column) for name, column in columns.items()} | {"samples": counted(len(true))}


def _value_of_numbers(name: str, sums: Sums) -> float:
    """Return a regression score: the mean over the columns."""
    if not all(item.is_finite for item in sums.values() if isinstance(item, ExactSum)):
        return math.nan
    samples = int(sums["samples"])

    def means(of: str) -> list[Fraction]:
        return [fraction / samples for fraction in sums[of].fractions]

    def variances(of: str, squared: str) -> list[Fraction]:
        return [square - mean * mean for square, mean in zip(means(squared), means(of), strict=True)]

    if name in ("r2", "explained_variance"):
        if name == "r2" and samples < 2:
            return math.nan
        spread = variances("true", "true_squared")
        left = means("residual_squared") if name == "r2" else variances("residual", "residual_squared")
        return _mean([_explained(*item) for item in zip(left, spread, strict=True)])
    if name == "neg_root_mean_squared_error":
        return -_mean([math.sqrt(as_float(mean)) for mean in means("residual_squared")])
    of = {"squared": "residual_squared", "percentage": "residual_relative"}
    kind = next((sum_ for word, sum_ in of.items() if word in name), "residual_absolute")
    return -_mean([as_float(mean) for mean in means(kind)])


def _explained(left: Fraction, spread: Fraction) -> float:
    """Return 1 - left / spread; if spread is 0, 1 if left is 0, otherwise 0."""
    return as_float(1 - left / spread) if spread else float(not left)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def _judge(name: str, judge: Any, outputs: Tensor, targets: Tensor) -> float:
    outputs, targets = _labeled(outputs, targets)
    read_classes, read_numbers = _estimators()
    right = targets.detach().cpu().numpy()
    said = outputs.detach().cpu().numpy()
    numbers = targets.is_floating_point() and not np.isin(right, (0, 1)).all()
    if numbers or _compares_numbers(name, outputs, targets):
        return float(judge(read_numbers(right.shape), said, right))
    if _has_several_labels(outputs, targets):
        return _judge_labels(judge, said, right.astype(np.int64))
    count = max(2, said[0].size)
    try:
        return float(judge(read_classes(count), said, right.astype(np.int64).reshape(len(right))))
    except ValueError as error:
        raise _for_two_classes(name, count, error) from None


@cache
def _estimators() -> tuple[Callable[[int], Any], Callable[[tuple[int, ...]], Any]]:
    """Return two estimator factories that interpret a network's outputs as class logits and as numbers."""
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Classes(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self, count: int = 2) -> None:
            self.count = count
            self.classes_ = np.arange(count)

        def predict(self, outputs: Any) -> Any:
            return self.predict_proba(outputs).argmax(1)

        def predict_proba(self, outputs: Any) -> Any:
            logits = torch.from_numpy(outputs.reshape(len(outputs), -1).astype(np.float64))
            if logits.shape[1] == 1:
                logits = torch.cat([torch.zeros_like(logits), logits], 1)
            return _probabilities(logits).numpy()

    class Numbers(RegressorMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self, shape: tuple[int, ...] = (-1,)) -> None:
            self.shape = shape
            self.fitted_ = True

        def predict(self, outputs: Any) -> Any:
            return outputs.reshape(self.shape)

    return Classes, Numbers


def _judge_labels(judge: Any, logits: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Return a scorer's value for samples with several labels; labels with a logit above 0 are predicted."""
    predicted = (logits > 0).astype(np.int64) if judge._response_method == "predict" else logits
    return float(judge._sign * judge._score_func(labels, predicted, **judge._kwargs))
