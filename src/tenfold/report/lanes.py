"""What every worker did and when, as columns of numbers, thinned to what a plot can show."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tenfold.report.summary import KINDS

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
        sums = {kind: sum(one[kind] for one in workers) for kind in KINDS}
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
        for one in np.flatnonzero(~whole):
            sums[worker[one], low[one], kind[one]] += low[one] + 1 - begins[one]
            sums[worker[one], low[one] + 1 : high[one], kind[one]] += 1
            sums[worker[one], high[one], kind[one]] += ends[one] - high[one]
        starts = np.arange(columns)[None, :, None] + np.cumsum(sums, axis=2) - sums
        rows, places, kinds = np.nonzero(sums > 1e-3)
        return {
            "worker": rows.tolist(),
            "kind": kinds.tolist(),
            "at": np.rint((first + starts[rows, places, kinds] * width) * MICRO).astype(np.int64).tolist(),
            "length": np.rint(sums[rows, places, kinds] * width * MICRO).astype(np.int64).tolist(),
        }
