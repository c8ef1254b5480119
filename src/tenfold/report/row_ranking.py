"""Which settings to show where there are too many to show them all."""

import math
from collections.abc import Sequence
from itertools import zip_longest

from tenfold.common.metric_table import describe_direction, main_metric
from tenfold.report.formatting import grouped
from tenfold.report.rows import Row


def rows_metric(rows: Sequence[Row]) -> str:
    """Return the metric that says how good the models of these rows are."""
    return main_metric(name for row in rows for name, spread in row.metrics.items() if spread.values) or "loss"


def quality(row: Row, metric: str) -> float:
    """Return how good the trained model is: the metric, negated where lower is better; -inf where that is unknown."""
    mean = row.metrics[metric].mean if metric in row.metrics else None
    lower = row.experiment.training.prefers_lower(metric)
    if mean is None or lower is None:
        return -math.inf
    return -mean if lower else mean


def direction(rows: Sequence[Row], metric: str) -> str:
    """Return "higher is better" or "lower is better"; "" where that is not known, or the rows disagree."""
    found = {row.experiment.training.prefers_lower(metric) for row in rows}
    return describe_direction(found.pop()) if len(found) == 1 else ""


def mean_seconds(row: Row) -> float:
    """Return the mean training time; infinity where there is none."""
    return row.seconds.mean if row.seconds.mean is not None else math.inf


def idle_share(row: Row) -> float:
    """Return the share of the time spent on waiting and communication."""
    return row.shares.get("wait", 0.0) + row.shares.get("communicate", 0.0)


def is_clearly_faster(row: Row, other: Row) -> bool:
    """Return whether one training time is shorter than another by more than their spread can explain.

    Without repeats there is no spread: then a difference below a millisecond, or below 2%, says nothing.
    """
    difference = mean_seconds(other) - mean_seconds(row)
    spreads = [one.seconds.deviation for one in (row, other) if one.seconds.deviation is not None]
    noise = math.hypot(*spreads) if len(spreads) == 2 else max(1e-3, 0.02 * mean_seconds(other))
    return difference > noise


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Return the settings that no other one beats in both training time and quality, the fastest first.

    A setting counts as faster only if the difference is larger than the noise.
    """
    metric = rows_metric(rows)
    timed = sorted(rows, key=lambda row: (mean_seconds(row), -quality(row, metric)))
    timed = [row for row in timed if math.isfinite(mean_seconds(row)) and math.isfinite(quality(row, metric))]
    kept = []
    for at, row in enumerate(timed):
        as_good_and_faster = any(quality(other, metric) >= quality(row, metric) for other in timed[:at])
        better_and_as_fast = any(
            quality(other, metric) > quality(row, metric) and not is_clearly_faster(row, other)
            for other in timed[at + 1 :]
        )
        if not as_good_and_faster and not better_and_as_fast:
            kept.append(row)
    return kept


def choose_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most this many rows: the first with one worker, then alternately the fastest and the best."""
    if len(rows) <= most:
        return list(rows)
    metric = rows_metric(rows)
    fastest = sorted(rows, key=mean_seconds)
    finest = sorted(rows, key=lambda row: (-quality(row, metric), mean_seconds(row)))
    turns = [row for pair in zip_longest(fastest, finest) for row in pair if row is not None]
    alone = [row for row in rows if row.workers == 1][:1]
    kept = {id(row) for row in list({id(row): row for row in (*alone, *turns)}.values())[:most]}
    return [row for row in rows if id(row) in kept]


def notable_rows(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return the fastest, the slowest and the most idle setting, each with the reason why it is shown."""
    timed = [row for row in rows if row.seconds.values]
    if not timed:
        return []
    found = [("the fastest", min(timed, key=mean_seconds)), ("the slowest", max(timed, key=mean_seconds))]
    most = max(timed, key=idle_share)
    if idle_share(most):
        found.append(("computes for the smallest share of its time", most))
    reasons = grouped((id(row), why) for why, row in found)
    unique = {id(row): row for _, row in found}
    return [(" and ".join(reasons[key]), row) for key, row in unique.items()]
