"""Measurements as columns of numbers, thinned to what a plot can show."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
        found = []
        for curve in self:
            begin = int(np.searchsorted(np.array(curve.number), cursor, side="right"))
            if begin < len(curve.number):
                found.append(curve.columns(begin + _extremes(curve, begin, len(curve.number), columns)))
        return found

    def between(self, first: float = -math.inf, last: float = math.inf, columns: int = REPORT_COLUMNS) -> list[Columns]:
        """Return the curves between two steps, and one point more on either side."""
        found = []
        for curve in self:
            steps = np.array(curve.step)
            begin = max(0, int(np.searchsorted(steps, first)) - 1)
            end = min(len(steps), int(np.searchsorted(steps, last, side="right")) + 1)
            found.append(curve.columns(begin + _extremes(curve, begin, end, columns)))
        return found


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
