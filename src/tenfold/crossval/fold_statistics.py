"""Mean, standard deviation and confidence interval over the folds."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return Student's confidence interval of the mean, mean +- t s / sqrt(k); None for fewer than two values.

    s is the standard deviation of the k values (with k - 1), t the quantile (1 + level) / 2 of Student's distribution
    with k - 1 degrees of freedom. The folds' training parts overlap, so their results are not independent and the
    interval is somewhat too narrow (Bengio & Grandvalet 2004, "No unbiased estimator of the variance of k-fold
    cross-validation").
    """
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    mean = fmean(values)
    reach = float(stdtrit(len(values) - 1, (1 + level) / 2)) * stdev(values) / math.sqrt(len(values))
    return mean - reach, mean + reach


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Return mean, std (with k - 1), and the ends of the 95% interval as low and high; None where too few
    values are given."""
    low, high = interval(values) or (None, None)
    return {
        "mean": fmean(values) if values else None,
        "std": stdev(values) if len(values) > 1 else None,
        "low": low,
        "high": high,
    }


def summarize_folds(folds: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the summary of every metric on every part, over the finished folds."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for part in ("train", "validation", "test"):
        rows = [fold["metrics"].get(part, {}) for fold in folds if fold["status"] == "finished"]
        names = dict.fromkeys(name for row in rows for name in row)
        found[part] = {name: summary([row[name] for row in rows if name in row]) for name in names}
    return found
