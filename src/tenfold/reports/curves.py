"""Learning curves and speedup curves: thinned to what a plot can show, and where they level off."""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenfold.reports.formatting import count, duration, grouped, plural
from tenfold.reports.rows import Row, baseline_row, idle_share, mean_seconds
from tenfold.reports.summary import KINDS

REPORT_COLUMNS = 2000
"""The number of columns of a curve in a report; the lowest and the highest point of each are kept."""
DIGITS = 6

Columns = dict[str, Any]


@dataclass
class Curve:
    """One metric on one part of the data, as one worker measured it."""

    name: str
    part: str
    worker: int
    number: "array[int]" = field(default_factory=lambda: array("q"))
    """The numbers of the events, which a cursor is compared with."""
    step: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    value: "array[float]" = field(default_factory=lambda: array("d"))

    def columns(self, chosen: "np.ndarray[Any, Any] | slice") -> Columns:
        """Return the chosen points as lists that can be written as JSON."""
        return {
            "name": self.name,
            "part": self.part,
            "worker": self.worker,
            "step": np.array(self.step)[chosen].tolist(),
            "seconds": _rounded(np.array(self.seconds)[chosen]),
            "value": _rounded(np.array(self.value)[chosen]),
        }


class Curves:
    """All curves of a run; points are added as they are measured."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, str, int], Curve] = {}

    def __iter__(self) -> Iterator[Curve]:
        return iter(self._curves.values())

    def add(self, events: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Add the metrics among recorded events, given as their numbers and values; others are ignored."""
        for number, row in events:
            if row.get("type") != "metric":
                continue
            try:
                key = str(row["name"]), str(row["part"]), int(row["worker"])
                point = int(row["step"]), float(row["seconds"]), float(row["value"])
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if not all(map(math.isfinite, point)):
                continue
            curve = self._curves.get(key) or self._curves.setdefault(key, Curve(*key))
            curve.number.append(number)
            curve.step.append(point[0])
            curve.seconds.append(point[1])
            curve.value.append(point[2])

    def since(self, cursor: int, columns: int = REPORT_COLUMNS) -> list[Columns]:
        """Return the points of events after a cursor; of very many, the lowest and highest of each stretch."""
        chosen = []
        for curve in self:
            begin = int(np.searchsorted(np.array(curve.number), cursor, side="right"))
            if begin < len(curve.number):
                chosen.append(curve.columns(begin + _extremes(curve, begin, len(curve.number), columns)))
        return chosen

    def between(self, first: float = -math.inf, last: float = math.inf, columns: int = REPORT_COLUMNS) -> list[Columns]:
        """Return the curves between two steps, and one point more on either side."""
        chosen = []
        for curve in self:
            steps = np.array(curve.step)
            begin = max(0, int(np.searchsorted(steps, first)) - 1)
            end = min(len(steps), int(np.searchsorted(steps, last, side="right")) + 1)
            chosen.append(curve.columns(begin + _extremes(curve, begin, end, columns)))
        return chosen


def _extremes(curve: Curve, begin: int, end: int, columns: int) -> "np.ndarray[Any, Any]":
    """Return the places of the first and the last point, and of the lowest and the highest in each of the columns."""
    count = end - begin
    if count <= 2 * columns:
        return np.arange(count)
    value = np.array(curve.value)[begin:end]
    column = np.arange(count) * columns // count
    order = np.lexsort((value, column))
    edges = np.flatnonzero(np.diff(column[order]))
    lowest, highest = order[np.append(0, edges + 1)], order[np.append(edges, count - 1)]
    return np.unique(np.concatenate(([0, count - 1], lowest, highest)))


def _rounded(values: "np.ndarray[Any, Any]") -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


MOST_SPANS = 4000
"""Up to this many spans are given one by one; of more, the sums in each column of the plot."""
LANE_COLUMNS = 400
MICRO = 1e6


class Lanes:
    """The spans of all workers of a run; they are added as they are recorded."""

    def __init__(self) -> None:
        self.number = array("q")
        self.worker = array("l")
        self.kind = array("b")
        self.at = array("d")
        self.seconds = array("d")
        self._ends: dict[int, float] = {}  # of each worker's last sums, which are recorded together
        self._begins: dict[int, float] = {}
        self._totals: dict[int, dict[str, float]] = defaultdict(lambda: dict.fromkeys(KINDS, 0.0))

    def add(self, events: Iterable[tuple[int, Mapping[str, Any]]]) -> None:
        """Add the spans among recorded events, given as their numbers and values; others are ignored.

        Sums over several steps begin at the same time; they are laid out one after another.
        """
        for number, row in events:
            if row.get("type") != "span" or row.get("kind") not in KINDS:
                continue
            try:
                worker, at, seconds = int(row["worker"]), float(row["at"]), float(row["seconds"])
            except (KeyError, TypeError, ValueError, OverflowError):
                continue
            if not 0 <= worker < 2**31 or not 0 <= seconds < np.inf or not 0 <= at < np.inf:
                continue
            self._totals[worker][row["kind"]] += seconds
            if self._begins.get(worker) == at:
                at = self._ends[worker]
            else:
                self._begins[worker] = at
            self._ends[worker] = at + seconds
            self.number.append(number)
            self.worker.append(worker)
            self.kind.append(KINDS.index(row["kind"]))
            self.at.append(at)
            self.seconds.append(seconds)

    def times(self) -> dict[str, float]:
        """Return the seconds by kind, the mean over the workers."""
        workers = list(self._totals.values())
        sums = {kind: sum(worker[kind] for worker in workers) for kind in KINDS}
        return {kind: seconds / len(workers) for kind, seconds in sums.items() if seconds}

    def since(self, cursor: int) -> dict[str, Any]:
        """Return the spans that were recorded after a cursor."""
        begin = int(np.searchsorted(np.array(self.number), cursor, side="right"))
        return self._given(slice(begin, None))

    def between(self, first: float = -np.inf, last: float = np.inf, columns: int = LANE_COLUMNS) -> dict[str, Any]:
        """Return the spans between two times; of very many, the sums in each column of each worker."""
        at, seconds = np.array(self.at), np.array(self.seconds)
        chosen = np.flatnonzero((at < last) & (at + seconds > first))
        if len(chosen) <= MOST_SPANS:
            return self._given(chosen)
        first, last = max(first, float(at[chosen].min())), min(last, float((at + seconds)[chosen].max()))
        return self._summed(chosen, first, last, columns)

    def _given(self, chosen: "np.ndarray[Any, Any] | slice") -> dict[str, Any]:
        def micro(values: "array[float]") -> list[int]:
            return list(map(int, np.rint(np.array(values)[chosen] * MICRO)))

        worker, kind = np.array(self.worker)[chosen], np.array(self.kind)[chosen]
        return {"worker": worker.tolist(), "kind": kind.tolist(), "at": micro(self.at), "length": micro(self.seconds)}

    def _summed(self, chosen: "np.ndarray[Any, Any]", first: float, last: float, columns: int) -> dict[str, Any]:
        """Return the sums by worker, column and kind, as spans that fill their columns one after another."""
        worker, kind = np.array(self.worker)[chosen], np.array(self.kind)[chosen]
        at, seconds = np.array(self.at)[chosen], np.array(self.seconds)[chosen]
        width = (last - first) / columns
        sums = np.zeros((int(worker.max()) + 1, columns, len(KINDS)))
        begins, ends = (np.clip((time - first) / width, 0, columns) for time in (at, at + seconds))
        low, high = np.minimum(begins.astype(int), columns - 1), np.minimum(ends.astype(int), columns - 1)
        whole = low == high
        np.add.at(sums, (worker[whole], low[whole], kind[whole]), (ends - begins)[whole])
        for item in np.flatnonzero(~whole):
            sums[worker[item], low[item], kind[item]] += low[item] + 1 - begins[item]
            sums[worker[item], low[item] + 1 : high[item], kind[item]] += 1
            sums[worker[item], high[item], kind[item]] += ends[item] - high[item]
        starts = np.arange(columns)[None, :, None] + np.cumsum(sums, axis=2) - sums
        rows, places, kinds = np.nonzero(sums > 1e-3)
        return {
            "worker": rows.tolist(),
            "kind": kinds.tolist(),
            "at": np.rint((first + starts[rows, places, kinds] * width) * MICRO).astype(np.int64).tolist(),
            "length": np.rint(sums[rows, places, kinds] * width * MICRO).astype(np.int64).tolist(),
        }


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
        rows_shown = [row for row in (self.idle, self.peak) if row is not None]
        return min(rows_shown, key=lambda row: row.workers, default=None)


def scaling_families(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return groups of rows that differ only in the workers, sorted by these, each with its name.

    A row of one worker belongs to every group with which it shares the fields other than those of averaging.
    """
    several = sorted((row for row in rows if row.workers > 1), key=lambda row: row.workers)
    families = grouped((row.describe_without("workers"), row) for row in several)
    alone = {name: baseline_row(group[0], rows) for name, group in families.items()}
    return [(name, [*([one] if (one := alone[name]) else []), *group]) for name, group in families.items()]


def rows_with_rounds(rows: Sequence[Row]) -> list[Row]:
    """Return the rows in which at least one round takes place; without any the time saved is not a speedup.

    If no row has a round, as with strategy none, all are returned.
    """
    chosen = [row for row in rows if row.workers == 1 or row.bytes_per_worker]
    return chosen if any(row.workers > 1 for row in chosen) else list(rows)


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
