"""Matplotlib figures as SVG for a page: text stays text, takes the page's colour and font, and nothing is fetched."""

import io
import re
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARROW, WIDE = 4.6, 9.6
"""Widths in inches, so that letters come out equally large where one takes half the page and the other all of it."""
LEGEND_LETTERS = 80
"""As many letters of size 8 fit side by side into a narrow figure; a line's sample takes as much as six."""
LINE_HEIGHT = 0.19
INK = "#010203"
"""Stands for the page's text colour while drawing; in the SVG it becomes currentColor."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

COMPACT_LEGEND: dict[str, Any] = {"handlelength": 0.9, "handleheight": 0.9, "columnspacing": 1.2, "handletextpad": 0.5}

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tenfold",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def draw(name: str, about: str, size: tuple[float, float], paint: Callable[["Figure"], None]) -> str:
    """Return a figure of this size in inches, painted by `paint`, as an inline SVG element.

    `name` keeps its ids apart from those of other figures on the page, `about` describes it to who cannot see it.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    text = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of missing glyphs, say: the page's fonts draw the text, not matplotlib's
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None})
    return _inline(text.getvalue(), name, about)


def below(figure: "Figure", entries: Sequence[tuple[Any, str]]) -> None:
    """Put a legend below the plot, in as many columns as fit, and make the figure as much higher as that takes."""
    if not entries:
        return
    handles, names = zip(*entries, strict=True)
    columns = min(max(1, LEGEND_LETTERS // (max(map(len, names)) + 6)), 4, len(names))
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * -(-len(names) // columns))
    shown = [f" {name}" if name.startswith("_") else name for name in names]  # it hides those with an underscore
    figure.legend(
        handles, shown, loc="outside lower left", ncols=columns, columnspacing=1.0, handlelength=1.7, handletextpad=0.6
    )


def _inline(drawn: str, name: str, about: str) -> str:
    from markupsafe import escape

    drawn = drawn[drawn.index("<svg") :]
    for unwanted in (
        r"<metadata>.*?</metadata>",
        r"<!--.*?-->",
        r"<style.*?</style>",
        r'<g id="[^"]*"/>',
        r"(?<=\n) +",
    ):
        drawn = re.sub(unwanted, "", drawn, flags=re.DOTALL)
    drawn = re.sub(r'<g id="[^"]*">', "<g>", drawn)
    drawn = re.sub(r'\bid="', f'id="{name}-', drawn)
    drawn = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", drawn)
    drawn = drawn.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    drawn = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", drawn)
    drawn = re.sub(r" ?font-family: [^;\"]*;?", "", drawn)
    drawn = drawn.replace(INK, "currentColor")
    opening = f'<svg class="plot" role="img" aria-label="{escape(about)}" font-family="{FONT}" stroke-linejoin="round"'
    return re.sub(r'^<svg width="[^"]*" height="[^"]*"', opening, drawn).strip()
