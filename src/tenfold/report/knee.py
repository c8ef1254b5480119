"""The number of workers at which a speedup levels off, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from tenfold.report.formatting import count, duration, grouped, plural
from tenfold.report.row_ranking import idle_share, mean_seconds
from tenfold.report.rows import Row, baseline_row

HELPFUL_FACTOR = 1.02
"""More workers help if they make training at least 2% faster; less is within the error of any prediction."""


@dataclass(frozen=True)
class Knee:
    """Where a speedup levels off as workers are added."""

    idle: Row | None
    """The first row that spends more time on communication and waiting than on computing."""
    peak: Row | None
    """The row beyond which more workers do not help; None if even the largest number does."""

    @property
    def first(self) -> Row | None:
        """The one with fewer workers."""
        found = [row for row in (self.idle, self.peak) if row is not None]
        return min(found, key=lambda row: row.workers, default=None)


def scaling_families(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return groups of rows that differ only in the workers, sorted by these, each with its name.

    A row of one worker belongs to every group with which it shares the fields other than those of averaging.
    """
    several = sorted((row for row in rows if row.workers > 1), key=lambda row: row.workers)
    found = grouped((row.describe_without("workers"), row) for row in several)
    alone = {name: baseline_row(group[0], rows) for name, group in found.items()}
    return [(name, [*([one] if (one := alone[name]) else []), *group]) for name, group in found.items()]


def rows_with_rounds(rows: Sequence[Row]) -> list[Row]:
    """Return the rows in which at least one round takes place; without any the time saved is not a speedup.

    If no row has a round, as with strategy none, all are returned.
    """
    found = [row for row in rows if row.workers == 1 or row.bytes_per_worker]
    return found if any(row.workers > 1 for row in found) else list(rows)


def find_knee(group: Sequence[Row]) -> Knee:
    """Return where the speedup of rows that are sorted by workers levels off."""
    group = rows_with_rounds(group)
    waits = next((row for row in group if idle_share(row) > 0.5), None)
    peak = next(
        (
            row
            for at, row in enumerate(group[:-1], 1)
            if mean_seconds(row) <= HELPFUL_FACTOR * min(map(mean_seconds, group[at:]))
        ),
        None,
    )
    return Knee(waits, peak)


def explain_knees(families: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """Return one sentence for each different explanation, with the families that it holds for."""
    names = grouped((_knee_reason(group), name) for name, group in families)
    return [
        f"With {' or with '.join(listed)}, the speedup {reason}" if any(listed) else f"The speedup {reason}"
        for reason, listed in names.items()
    ]


def _knee_reason(group: Sequence[Row]) -> str:
    counted, knee = rows_with_rounds(group), find_knee(group)
    last = counted[-1]
    uncounted = next((row for row in group if row not in counted), None)
    without_rounds = (
        f" With {count(uncounted.workers)} or more, training ends before the first round; these are not counted."
        if uncounted
        else ""
    )
    if knee.first is None:
        return (
            f"keeps growing up to {plural(last.workers, 'worker')}, where computing still takes "
            f"{1 - idle_share(last):.0%} of the time.{without_rounds}"
        )
    reasons = []
    if knee.idle is not None:
        communicating, waiting = (knee.idle.shares.get(kind, 0.0) for kind in ("communicate", "wait"))
        why = f"communication ({communicating:.0%}) and waiting ({waiting:.0%}) take longer than computing"
        reasons.append((knee.idle.workers, f"from {count(knee.idle.workers)} workers on, {why}"))
    if knee.peak is not None:
        fastest, largest = duration(mean_seconds(knee.peak)), duration(mean_seconds(last))
        times = f"{fastest} predicted with {count(knee.peak.workers)}, {largest} with {count(last.workers)}"
        reasons.append((knee.peak.workers, f"beyond {count(knee.peak.workers)}, more workers do not help ({times})"))
    text = "; ".join(reason for _, reason in sorted(reasons, key=lambda one: one[0]))
    return f"levels off at {plural(knee.first.workers, 'worker')}: {text}.{without_rounds}"
