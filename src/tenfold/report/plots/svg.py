"""Matplotlib figures as inline SVG: text stays text and takes the page's colour and font."""

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tenfold.errors import StoreError
from tenfold.report.differences import LABEL_LENGTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARROW, WIDE = 4.6, 9.6
"""Widths in inches of a plot on half of the page, and on all of it."""
LEGEND_LETTERS = 80
"""How many letters of size 8 fit side by side into a narrow figure; the sample of a line takes as much as six."""
LINE_HEIGHT = 0.19
INK = "#010203"
"""Stands for the page's text colour while drawing; in the SVG it becomes currentColor."""
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
GROUPS = (f"{{{SVG}}}g", f"{{{SVG}}}defs")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

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


def draw_svg(name: str, about: str, size: tuple[float, float], paint: Callable[["Figure"], None]) -> str:
    """Return a figure of this size in inches, drawn by `paint`, as an inline SVG element.

    `name` makes its ids unique on the page; `about` describes it to screen readers.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    text = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing glyphs: the page's fonts draw the text
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None})
    return _inline(text.getvalue(), name, about)


def save_figure(path: Path, size: tuple[float, float], paint: Callable[["Figure"], None]) -> None:
    """Write a figure of this size in inches, drawn by `paint`, to a file of the kind that its name says."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        kinds = FigureCanvasAgg(figure).get_supported_filetypes()
        if path.suffix[1:].lower() not in kinds:
            raise StoreError(f"{path} is not the name of a picture; it should end with .svg, .png or .pdf")
        paint(figure)
        try:
            figure.savefig(path, dpi=160)
        except OSError as error:
            raise StoreError(f"the plot cannot be written to {path}: {error.strerror or error}") from None


def legend_below(figure: "Figure", entries: Sequence[tuple[Any, str]]) -> None:
    """Put a legend below the plot, in as many columns as fit, and make the figure taller by its height."""
    if not entries:
        return
    handles, names = zip(*entries, strict=True)
    letters = LEGEND_LETTERS * figure.get_figwidth() / NARROW
    columns = int(min(max(1, letters // (max(map(len, names)) + 6)), 4, len(names)))
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * -(-len(names) // columns))
    shown = [
        f" {name}" if name.startswith("_") else name for name in names
    ]  # matplotlib hides names that start with an underscore
    figure.legend(
        handles, shown, loc="outside lower left", ncols=columns, columnspacing=1.0, handlelength=1.7, handletextpad=0.6
    )


def _inline(drawn: str, name: str, about: str) -> str:
    """Return matplotlib's SVG document as an element for a page, with the page's font and text colour."""
    root = ElementTree.fromstring(drawn)
    referenced = {found for element in root.iter() for found in _references(element)}
    _remove_unused(root)
    for element in root.iter():
        _adapt(element, name, referenced)
    for attribute in ("width", "height"):
        root.attrib.pop(attribute, None)
    root.attrib |= {
        "class": "plot",
        "role": "img",
        "aria-label": about,
        "font-family": FONT,
        "stroke-linejoin": "round",
    }
    ElementTree.register_namespace("", SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _remove_unused(parent: ElementTree.Element) -> None:
    """Remove metadata, style sheets, empty groups, and white space between elements."""
    for child in list(parent):
        _remove_unused(child)
        if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style") or (child.tag in GROUPS and not len(child)):
            parent.remove(child)
        child.tail = None
    if parent.text and not parent.text.strip():
        parent.text = None


def _adapt(element: ElementTree.Element, name: str, referenced: set[str]) -> None:
    """Keep only the ids that are referred to, make them unique on the page, and use the page's colour and font."""
    own = element.attrib.pop("id", None)
    if own in referenced:
        element.set("id", f"{name}-{own}")
    address = element.attrib.pop(f"{{{XLINK}}}href", None)
    if address is not None:
        element.set("href", f"#{name}-{address.removeprefix('#')}")
    if "clip-path" in element.attrib:
        element.set("clip-path", element.attrib["clip-path"].replace("url(#", f"url(#{name}-"))
    if "style" in element.attrib:
        element.set("style", "; ".join(f"{key}: {value}" for key, value in _page_style(element.attrib["style"])))


def _page_style(style: str) -> Iterator[tuple[str, str]]:
    for declaration in filter(None, (one.strip() for one in style.split(";"))):
        key, value = (part.strip() for part in declaration.split(":", 1))
        if key == "font":
            key, value = "font-size", next(word for word in value.split() if word.endswith("px"))
        if key != "font-family":
            yield key, "currentColor" if value == INK else value


def _references(element: ElementTree.Element) -> Iterator[str]:
    if (address := element.get(f"{{{XLINK}}}href", "")).startswith("#"):
        yield address[1:]
    if (clip := element.get("clip-path", "")).startswith("url(#"):
        yield clip.removeprefix("url(#").rstrip(")")


def shorten(label: str) -> str:
    """Return a label, cut where it is too long for a plot."""
    return label if len(label) <= LABEL_LENGTH else f"{label[: LABEL_LENGTH - 1]}…"
