"""scikit-learn's scorers ("f1_macro", "roc_auc_ovr", "r2", ...) as functions of (outputs, targets)."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from tenfold.data.part import NO_LABEL
from tenfold.errors import ModelError

OF_NUMBERS = (
    *("r2", "explained_variance", "max_error", "d2_absolute_error"),
    *("neg_max_error", "neg_mean_", "neg_median_", "neg_root_mean_"),
)
"""How the names of scorers begin that compare numbers, not classes."""


def scorer(name: str) -> Callable[[Tensor, Tensor], float]:
    """Return the scorer of this name.

    Scorers ask an estimator about samples. Here the samples are the network's outputs, and the estimator only reads
    them: as probabilities and labels where the targets are classes (0 and 1 as floats are classes, too), else as the
    predicted numbers. A scorer of numbers gets these whatever the targets are, if there is one for each.
    """
    from sklearn.metrics import get_scorer

    judge = get_scorer(name)
    read_classes, read_numbers = _estimators()

    def measure(outputs: Tensor, targets: Tensor) -> float:
        if outputs.ndim == targets.ndim + 1 > 2 and not targets.is_floating_point():  # a label for each position
            labelled = targets != NO_LABEL
            outputs, targets = outputs.movedim(1, -1)[labelled], targets[labelled]
        right = targets.detach().cpu().numpy()
        said = outputs.detach().cpu().numpy()
        numbers = targets.is_floating_point() and not np.isin(right, (0, 1)).all()
        if numbers or (name.startswith(OF_NUMBERS) and said.size == right.size):
            return float(judge(read_numbers(right.shape), said, right))
        if right.ndim > 1 and right.shape[1] > 1 and right.shape == said.shape:
            return _judge_labels(judge, said, right.astype(np.int64))
        count = max(2, said[0].size)
        try:
            return float(judge(read_classes(count), said, right.astype(np.int64).reshape(len(right))))
        except ValueError as error:
            if "average='binary'" not in str(error):
                raise
            known = f"{name}_macro, {name}_micro or {name}_weighted"
            raise ModelError(f"the metric {name} is for two classes, but there are {count}; use {known}") from None

    return measure


@cache
def _estimators() -> tuple[Callable[[int], Any], Callable[[tuple[int, ...]], Any]]:
    """Return the makers of two estimators that read a network's outputs: as logits of classes, and as numbers."""
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

    class Classes(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self, count: int = 2) -> None:
            self.count = count
            self.classes_ = np.arange(count)

        def predict(self, outputs: Any) -> Any:
            return self.predict_proba(outputs).argmax(1)

        def predict_proba(self, outputs: Any) -> Any:
            logits = outputs.reshape(len(outputs), -1).astype(np.float64)
            if logits.shape[1] == 1:
                logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            return shares / shares.sum(axis=1, keepdims=True)

    class Numbers(RegressorMixin, BaseEstimator):  # type: ignore[misc]
        def __init__(self, shape: tuple[int, ...] = (-1,)) -> None:
            self.shape = shape
            self.fitted_ = True

        def predict(self, outputs: Any) -> Any:
            return outputs.reshape(self.shape)

    return Classes, Numbers


def _judge_labels(judge: Any, logits: Any, labels: Any) -> float:
    """Return a scorer's value for samples with several labels each; those with a logit above 0 are predicted."""
    predicted = (logits > 0).astype(np.int64) if judge._response_method == "predict" else logits
    return float(judge._sign * judge._score_func(labels, predicted, **judge._kwargs))
