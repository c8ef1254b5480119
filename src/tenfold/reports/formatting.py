"""Numbers and fields as text: with units, and no more digits than are significant."""

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
NOTHING = "–"
"""Shown in a table where there is no value."""
LONGEST_TITLE = 120


def count(value: float | None) -> str:
    """Return a whole number with thousands separators: 61,706."""
    return NOTHING if value is None else f"{value:,.0f}"


def metric_value(name: str, value: float | None) -> str:
    """Return the value of a metric: an accuracy in percent, anything else as a number."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if name.endswith("accuracy"):
        return f"{value:.2%}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def metric_scale(name: str) -> tuple[int, str]:
    """Return the factor and the unit of a metric's values in plots and tables: accuracies are in percent."""
    return (100, "%") if name.endswith("accuracy") else (1, "")


def duration(seconds: float | None) -> str:
    """Return a time in a suitable unit: 420 µs, 38.1 ms, 4.20 s, 12 min 05 s, 2 h 03 min."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    if seconds < 1e-9:
        return "0 s"
    for scale, unit, limit in ((1e6, "µs", 999.5), (1e3, "ms", 999.5), (1, "s", 99.95)):
        if seconds * scale < limit:
            return f"{f'{seconds * scale:#.3g}'.rstrip('.')} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def interval(low: float, high: float, middle: float) -> str:
    """Return the bounds of a time, without a unit if it is the same as for the middle: [1.18-1.31]."""
    unit = duration(middle).rpartition(" ")[2]
    bounds = [duration(bound) for bound in (low, high)]
    alike = all(text.count(" ") == 1 and text.endswith(f" {unit}") for text in bounds)
    return f"[{'-'.join(text.partition(' ')[0] for text in bounds)}]" if alike else f"[{bounds[0]} - {bounds[1]}]"


def ratio(times: float | None) -> str:
    """Return a factor with three significant digits: 8.00, 20.9, 209."""
    if times is None:
        return NOTHING
    return f"{times:.{significant_decimals(times)}f}"


def significant_decimals(value: float) -> int:
    return min(max(2 - math.floor(math.log10(abs(value))), 0), 3) if value else 0


def byte_size(size: float) -> str:
    """Return a number of bytes in a suitable unit: 15.6 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def ago(then: float, now: float | None = None) -> str:
    """Return the time since then: just now, 3 min ago, 2 days ago; after a month, the date."""
    passed = max(0.0, (time.time() if now is None else now) - then)
    if passed < 10:
        return "just now"
    for size, unit, until in ((1, "s", 60), (60, "min", 3600), (3600, "h", 86400)):
        if passed < until:
            return f"{int(passed // size)} {unit} ago"
    days = int(passed // 86400)
    if days <= 30:
        return f"{days} day{'s' if days > 1 else ''} ago"
    return time.strftime("%Y-%m-%d", time.localtime(then))


def date_time(then: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(then))


CROSSVAL_TIME = "cross-validation: training time of the busiest core"
"""The meaning of the training time of a cross-validation."""


def plural(number: float, thing: str) -> str:
    """Return "1 epoch", "3 epochs"."""
    return f"{count(number)} {thing}{'' if number == 1 else 's'}"


def field_value(value: Any) -> str:
    """Return the value of a field as in an experiment file; "unset" for None."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {field_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(field_value(item) for item in value) + "]"
    return one_line(str(value))


def joined(*parts: str) -> str:
    """Return the nonempty parts, separated by commas."""
    return ", ".join(part for part in parts if part)


def name_some(names: Sequence[str], most: int) -> str:
    """Return the first `most` names, and the number of the remaining ones."""
    more = f", and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Group the second values of pairs by the first, such as failed settings by their reason."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def short_title(title: str) -> str:
    """Return a title on one line, cut off if it is very long."""
    text = one_line(title)
    return text if len(text) <= LONGEST_TITLE else f"{text[: LONGEST_TITLE - 1]}…"


def one_line(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
