"""All metrics by name: where they are computed, which direction is better, and how workers' shares are combined.

Training, targets, the best fold, comparisons and reports all read this table. A user's own metric is not in it: its
direction is inferred from its name, or given by `training.lower_is_better`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tenfold.registry import Registry

LOSS = "loss"


@dataclass(frozen=True, kw_only=True)
class MetricTraits:
    """The properties of one metric."""

    path: str = ""
    """Where it is defined; "" for a scorer of scikit-learn, which `training/metrics.py` wraps."""
    lower_is_better: bool = False
    of_numbers: bool = False
    """Whether it compares numbers, not classes."""
    is_share: bool = False
    """Whether it lies between 0 and 1, so that people also give it in percent."""
    combines: Literal["counts", "sums", "outputs"] = "outputs"
    """A worker's share of a part is reduced to these: numbers of samples, sums without rounding, or all outputs, which
    one process then has to hold at once."""


_BUILT_IN: Mapping[str, MetricTraits] = {
    "accuracy": MetricTraits(path="tenfold.training.metrics:accuracy", is_share=True, combines="counts"),
    "mae": MetricTraits(
        path="tenfold.training.metrics:mean_absolute_error", lower_is_better=True, of_numbers=True, combines="sums"
    ),
    "rmse": MetricTraits(
        path="tenfold.training.metrics:root_mean_square_error", lower_is_better=True, of_numbers=True, combines="sums"
    ),
    "perplexity": MetricTraits(path="tenfold.training.metrics:perplexity", lower_is_better=True, combines="sums"),
}
_MEANS = ("", "_macro", "_micro", "_weighted", "_samples")
_OF_SUMS = MetricTraits(combines="sums")
_SCORERS: Mapping[str, MetricTraits] = {
    **{
        f"{kind}{mean}": MetricTraits(is_share=True, combines="sums" if mean == "_samples" else "counts")
        for kind in ("f1", "precision", "recall", "jaccard")
        for mean in _MEANS
    },
    "balanced_accuracy": MetricTraits(is_share=True, combines="counts"),
    "matthews_corrcoef": MetricTraits(combines="counts"),
    "top_k_accuracy": MetricTraits(is_share=True, combines="counts"),
    "neg_log_loss": _OF_SUMS,
    "r2": _OF_SUMS,
    "explained_variance": _OF_SUMS,
    "neg_mean_absolute_error": _OF_SUMS,
    "neg_mean_squared_error": _OF_SUMS,
    "neg_root_mean_squared_error": _OF_SUMS,
    "neg_mean_absolute_percentage_error": _OF_SUMS,
    **{
        name: MetricTraits(is_share=True)
        for name in (
            *("average_precision", "roc_auc", "roc_auc_ovr", "roc_auc_ovo"),
            *("roc_auc_ovr_weighted", "roc_auc_ovo_weighted"),
        )
    },
}
"""scikit-learn's scorers. All are better the larger they are: those of errors are negated. One that has no line here
sees all outputs."""
_RANKING = MetricTraits(is_share=True, combines="sums")
RANKING_METRIC = re.compile(r"(precision|recall|map|ndcg)_at_([1-9]\d{0,5})")
"""Metrics of the labels that are ranked highest, such as precision_at_10; any number may follow."""

METRICS: Registry[Any] = Registry("metric", {name: traits.path for name, traits in _BUILT_IN.items()}, group="metrics")
"""The built-in metrics, and those that installed packages add: functions f(outputs, targets), or a `SumMetric`."""

LOWER_WORDS = (
    *("loss", "error", "mae", "mse", "rmse", "mape", "perplexity", "distance", "divergence", "deviance"),
    *("wer", "cer", "nll", "brier", "regret"),
)
HIGHER_WORDS = (
    *("accuracy", "acc", "precision", "recall", "f1", "auc", "r2", "d2", "iou", "dice", "jaccard"),
    *("bleu", "rouge", "ndcg", "mrr", "correlation", "likelihood", "similarity", "reward"),
)
"""Words in the names of metrics of the user's own that tell which direction is better."""


def metric_traits(name: str) -> MetricTraits | None:
    """Return the traits of the loss or a metric; None for a metric of the user's own."""
    if name == LOSS:
        return MetricTraits(lower_is_better=True, combines="sums")
    traits = _BUILT_IN.get(name) or _SCORERS.get(name)
    return traits or (_RANKING if RANKING_METRIC.fullmatch(name) else None)


def lower_is_better(name: str, stated: bool | None = None) -> bool | None:
    """Return whether lower values of a metric mean a better model; None where that is not known.

    `stated` is the user's own statement, which counts for a metric of the user's.
    """
    if (traits := metric_traits(name)) is not None:
        return traits.lower_is_better
    if stated is not None:
        return stated
    words = name.lower().replace("-", "_").split("_")
    negated = sum(word in ("neg", "negative") for word in words)
    lower, higher = _matches(words, LOWER_WORDS), _matches(words, HIGHER_WORDS)
    if lower and higher:  # the last word is the noun: a dice_loss is a loss, a d2_absolute_error_score a score
        lower, higher = _matches(words[-1:], LOWER_WORDS), _matches(words[-1:], (*HIGHER_WORDS, "score"))
    if not lower and not higher:
        return False if words[0] == "neg" or words[-1].endswith("score") else None  # "neg": as scikit-learn names them
    return None if lower and higher else lower != bool(negated % 2)


def _matches(words: Sequence[str], direction_words: Sequence[str]) -> bool:
    """Return whether a name has one of these words, or ends with a longer one, such as MyLoss."""
    name = "_".join(words)
    return any(word in words or (len(word) > 3 and name.endswith(word)) for word in direction_words)


def describe_direction(lower: bool | None) -> str:
    """Return "higher is better" or "lower is better"; "" where that is not known."""
    return "" if lower is None else "lower is better" if lower else "higher is better"


def main_metric(names: Iterable[str]) -> str | None:
    """Return the metric that models are judged by: the first one other than the loss, else the loss, else None."""
    candidates = list(names)
    return next((name for name in candidates if name != LOSS), candidates[0] if candidates else None)


def loss_last(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics in their order, with the loss after them."""
    return {name: metrics[name] for name in sorted(metrics, key=lambda name: name == LOSS)}


def beyond_share(name: str, value: float) -> str:
    """Return the problem with a value for a metric that is a share; "" where it is possible."""
    traits = metric_traits(name)
    if 0 <= value <= 1 or traits is None or not traits.is_share:
        return ""
    meant = f"; did you mean {value / 100:g}?" if 1 < value <= 100 else ""
    return f"{name} is between 0 and 1{meant}"
