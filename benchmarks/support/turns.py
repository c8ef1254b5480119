"""Measurements that take turns, and their spread."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Found = TypeVar("Found")


def take_turns(ways: Mapping[str, Callable[[], Found]], repeats: int) -> dict[str, list[Found]]:
    """Call every way once in each turn, so that a machine that slows down slows them all; return what each returned."""
    found: dict[str, list[Found]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            found[name].append(way())
    return found


def quartiles(values: Sequence[float]) -> list[float]:
    """Return the first quartile, the median and the third quartile."""
    return statistics.quantiles(values if len(values) > 1 else [*values, *values], n=4, method="inclusive")


def spread(values: Sequence[float], form: str, unit: str = "") -> str:
    """Return the median with the quartiles, each in a format such as ".2f"."""
    low, middle, high = quartiles(values)
    return f"{middle:{form}}{unit} [{low:{form}}-{high:{form}}]"
