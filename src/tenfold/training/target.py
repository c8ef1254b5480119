"""The quality at which training may stop."""

from collections.abc import Iterable

LOWER_IS_BETTER = ("loss", "mae", "rmse")
"""Metrics that improve as they fall. All others are better the larger they are."""


def target_metric(metrics: Iterable[str]) -> str:
    """Return the metric that a target is about: the first of the experiment's, or the loss where it has none."""
    return next(iter(metrics), "loss")


def is_reached(metric: str, value: float, target: float) -> bool:
    """Return whether a metric is at least as good as the target."""
    return value <= target if metric in LOWER_IS_BETTER else value >= target
