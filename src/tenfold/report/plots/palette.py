"""Colours that are legible on white and near-black, and distinguishable with any colour vision.

Each has a contrast of at least 3:1 on both backgrounds of the report, and any two are at least 20 apart in CIELAB, also
as seen without red, green or blue cones (Machado, Oliveira & Fernandes 2009). Runs also get a marker each.
"""

BLUE, ORANGE, GREEN, MAGENTA = "#2d69d2", "#e17800", "#4ba55a", "#b42d87"
LAVENDER, OLIVE, RED, PINK = "#a587d2", "#5a694b", "#c31e0f", "#d27896"

SERIES = (BLUE, ORANGE, GREEN, MAGENTA, LAVENDER, OLIVE, RED, PINK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

KIND_COLOURS = {
    "data": GREEN,
    "copy": MAGENTA,
    "compute": BLUE,
    "wait": RED,
    "communicate": ORANGE,
    "evaluate": LAVENDER,
    "save": PINK,
    "start": OLIVE,
}


def series(at: int) -> tuple[str, str]:
    """Return the colour and the marker of the run at this position; they repeat after a while."""
    return SERIES[at % len(SERIES)], MARKERS[(at + at // len(SERIES)) % len(MARKERS)]
