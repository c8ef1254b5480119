"""Colours that read on white as on near-black, and that can be told apart with any eyes.

Each has a contrast of at least 3:1 on both backgrounds of the report, and any two are at least 20 apart in CIELAB, also
as seen without red, green or blue cones (Machado, Oliveira & Fernandes 2009). Runs also get a marker each.
"""

LIGHT_BACKGROUND = "#ffffff"
DARK_BACKGROUND = "#15171a"

BLUE, ORANGE, GREEN, MAGENTA = "#2d69d2", "#e17800", "#4ba55a", "#b42d87"
LAVENDER, OLIVE, RED, PINK = "#a587d2", "#5a694b", "#c31e0f", "#d27896"

SERIES = (BLUE, ORANGE, GREEN, MAGENTA, LAVENDER, OLIVE, RED, PINK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")

KINDS = {
    "data": GREEN,
    "compute": BLUE,
    "wait": RED,
    "communicate": ORANGE,
    "evaluate": LAVENDER,
    "save": PINK,
    "start": OLIVE,
}


def series(at: int) -> tuple[str, str]:
    """Return the colour and the marker of the run at this place; after a while they come again."""
    return SERIES[at % len(SERIES)], MARKERS[(at + at // len(SERIES)) % len(MARKERS)]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21: (L1 + 0.05) / (L2 + 0.05), L the relative luminance (WCAG 2)."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
