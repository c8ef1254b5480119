"""Which settings are worth looking at more closely, where there are too many to show them all."""

import math
from collections.abc import Sequence
from itertools import zip_longest

from tenfold.report.rows import Row


def worth(row: Row) -> float:
    """Return how good the trained model is: its accuracy, else the loss taken negative; the more the better."""
    if row.accuracy.mean is not None:
        return row.accuracy.mean
    return -row.loss.mean if row.loss.mean is not None else -math.inf


def seconds(row: Row) -> float:
    """Return the mean training time; without one, no end."""
    return row.seconds.mean if row.seconds.mean is not None else math.inf


def idle(row: Row) -> float:
    """Return the share of the time that goes into waiting and communication."""
    return row.shares.get("wait", 0.0) + row.shares.get("communicate", 0.0)


def best(rows: Sequence[Row]) -> list[Row]:
    """Return the settings that no other beats in training time and in accuracy alike (Pareto), the fastest first."""
    kept: list[Row] = []
    for row in sorted(rows, key=lambda row: (seconds(row), -worth(row))):
        if math.isfinite(seconds(row)) and worth(row) > (worth(kept[-1]) if kept else -math.inf):
            kept.append(row)
    return kept


def drawn(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most so many: the first of one worker, then the fastest and the most accurate in turns."""
    if len(rows) <= most:
        return list(rows)
    fastest, finest = sorted(rows, key=seconds), sorted(rows, key=lambda row: (-worth(row), seconds(row)))
    turns = [row for pair in zip_longest(fastest, finest) for row in pair if row is not None]
    alone = [row for row in rows if row.workers == 1][:1]
    kept = {id(row) for row in list({id(row): row for row in (*alone, *turns)}.values())[:most]}
    return [row for row in rows if id(row) in kept]


def telling(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return the settings whose first steps tell most, each with why: the fastest, the slowest, the most waiting."""
    timed = [row for row in rows if row.seconds.values]
    if not timed:
        return []

    found = [("the fastest", min(timed, key=seconds)), ("the slowest", max(timed, key=seconds))]
    most = max(timed, key=idle)
    if idle(most):
        found.append(("the least of its time computing", most))
    reasons: dict[int, list[str]] = {}
    for why, row in found:
        reasons.setdefault(id(row), []).append(why)
    unique = {id(row): row for _, row in found}
    return [(" and ".join(reasons[key]), row) for key, row in unique.items()]
