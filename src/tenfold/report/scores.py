"""Which metric says how good a model is, and whether higher values are better."""

from collections.abc import Iterable, Mapping

LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "rmse", "mape", "perplexity", "distance", "divergence")
"""Metrics with one of these words in their name are better when they are smaller, unless it starts with "neg_"."""


def higher_is_better(metric: str) -> bool:
    """Return whether a larger value of this metric means a better model, judging by its name."""
    lower = metric.lower()
    words = lower.replace("-", "_").split("_")
    if words[0] == "neg":  # scikit-learn's negated errors
        return True
    return not any(word in words or lower.endswith(word) for word in LOWER_IS_BETTER)


def direction(metric: str) -> str:
    """Return "higher is better" or "lower is better"."""
    return "higher is better" if higher_is_better(metric) else "lower is better"


def main_metric(names: Iterable[str]) -> str | None:
    """Return the metric to judge models by: the accuracy, else the first other metric, else the loss."""
    return min(names, key=_place, default=None)


def ordered(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics with the accuracy first and the loss last."""
    return {name: metrics[name] for name in sorted(metrics, key=_place)}


def _place(name: str) -> int:
    return 0 if name == "accuracy" else 2 if name == "loss" else 1
