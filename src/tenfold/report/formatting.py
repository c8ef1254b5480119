"""Numbers as people read them: with units, and no more digits than they deserve."""

import math
import time
from typing import Any

NOTHING = "–"
"""What stands in a table where nothing was measured."""


def count(value: float | None) -> str:
    """Return a whole number with its thousands apart: 61,706."""
    return NOTHING if value is None else f"{value:,.0f}"


def measure(name: str, value: float | None) -> str:
    """Return a measurement by its name: an accuracy in percent, anything else as a number."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    if name.endswith("accuracy"):
        return f"{value:.2%}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Return a time span in the unit that suits it: 420 µs, 38.1 ms, 4.20 s, 12 min 05 s, 2 h 03 min."""
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


def between(low: float, high: float, middle: float) -> str:
    """Return the bounds around a time span, in its unit where that suits them, too: [1.18-1.31]."""
    unit = duration(middle).rpartition(" ")[2]
    bounds = [duration(bound) for bound in (low, high)]
    alike = all(text.count(" ") == 1 and text.endswith(f" {unit}") for text in bounds)
    return f"[{'-'.join(text.partition(' ')[0] for text in bounds)}]" if alike else f"[{bounds[0]} - {bounds[1]}]"


def rate(per_second: float | None) -> str:
    """Return how many samples a second: 17,950 samples/s."""
    return NOTHING if per_second is None else f"{per_second:,.0f} samples/s"


def multiple(times: float | None) -> str:
    """Return a factor with three digits that count: 8.00, 20.9, 209."""
    if times is None:
        return NOTHING
    return f"{times:.{decimals_of(times)}f}"


def decimals_of(value: float) -> int:
    """Return how many decimals make three digits that count."""
    return min(max(2 - math.floor(math.log10(abs(value))), 0), 3) if value else 0


def storage(size: float) -> str:
    """Return a number of bytes in a unit that suits it: 15.6 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def ago(then: float, now: float | None = None) -> str:
    """Return how long ago that was: just now, 3 min ago, 2 days ago; after a month, the date."""
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


def moment(then: float) -> str:
    """Return a date and time of day, local."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(then))


OF_FOLDS = "of a cross-validation: from the first step to the last fold's end, evaluation and saving between included"
"""What the time of a run that has folds is."""


def several(number: float, thing: str) -> str:
    """Return "1 epoch", "3 epochs"."""
    return f"{count(number)} {thing}{'' if number == 1 else 's'}"


def setting(value: Any) -> str:
    """Return a field's value as an experiment file would write it; one that is None is unset."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {setting(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(setting(one) for one in value) + "]"
    return plain(str(value))


def plain(text: str) -> str:
    """Return the text on one line and without characters that could steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
