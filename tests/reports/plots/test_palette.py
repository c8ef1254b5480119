import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from looped import looped

from tenfold.reports import charts as palette

# What is left of red, green and blue light for eyes without one kind of cone (Machado et al. 2009, severity 1).
EYES = {
    "usual": np.eye(3),
    "protanopic": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopic": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopic": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = TO_XYZ.sum(axis=1)
LIGHT_BACKGROUND, DARK_BACKGROUND = "#ffffff", "#15171a"


def light(color):
    """Return how much red, green and blue light a color is, 0 to 1."""
    shares = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)


def contrast(one, other):
    """Return the contrast of two colors, 1 to 21: (L1 + 0.05) / (L2 + 0.05), L the relative luminance (WCAG 2)."""
    darker, lighter = sorted((TO_XYZ @ light(color))[1] for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def lab(color, eyes):
    x, y, z = TO_XYZ @ np.clip(np.array(EYES[eyes]) @ light(color), 0, 1) / WHITE
    x, y, z = (np.cbrt(item) if item > 0.008856 else 7.787 * item + 16 / 116 for item in (x, y, z))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@looped("eyes", EYES)
def test_any_two_colors_can_be_told_apart(eyes):
    distances = [np.linalg.norm(lab(item, eyes) - lab(other, eyes)) for item, other in combinations(palette.SERIES, 2)]
    assert min(distances) >= 20


def test_kinds_of_time_have_a_color_each():
    assert len(set(palette.KIND_COLORS.values())) == len(palette.KIND_COLORS)
    assert set(palette.KIND_COLORS.values()) <= set(palette.SERIES)


@looped("color", sorted({*palette.SERIES, *palette.KIND_COLORS.values()}))
@looped("background", [LIGHT_BACKGROUND, DARK_BACKGROUND])
def test_colors_read_on_both_backgrounds(color, background):
    assert contrast(color, background) >= 3


def test_contrast_of_black_and_white_is_21():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


def test_the_page_has_these_backgrounds():
    css = (Path(palette.__file__).parent / "pages/templates/report.css").read_text()
    assert set(re.findall("--page: (.+?);", css)) == {LIGHT_BACKGROUND, DARK_BACKGROUND}


def test_neighboring_runs_never_look_alike():
    styles = [palette.series(at) for at in range(40)]
    assert len(set(styles)) == 40
