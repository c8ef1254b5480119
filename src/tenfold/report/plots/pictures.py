"""Matplotlib figures as picture files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common.files import check_output
from tenfold.errors import StoreError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 9.6
"""Of a figure, in inches."""
LEGEND_LETTERS = 166
"""How many letters of size 8 fit side by side; the sample of a line takes as much as six."""
LINE_HEIGHT = 0.19
INK = "#010203"
"""The colour of text and axes."""

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


def check_picture(path: Path) -> None:
    """Raise a StoreError if a picture cannot be written to a file of this name."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if path.suffix[1:].lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise StoreError(f"{path} is not the name of a picture; it should end with .svg, .png or .pdf")
    check_output(path, "a plot", in_place=True)


def save_figure(path: Path, size: tuple[float, float], paint: Callable[["Figure"], None]) -> None:
    """Write a figure of this size in inches, drawn by `paint`, to a file of the kind that its name says."""
    import matplotlib
    from matplotlib.figure import Figure

    check_picture(path)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=160)
        except OSError as error:
            raise StoreError(f"the plot cannot be written to {path}: {error.strerror or error}") from None


def legend_below(figure: "Figure", entries: Mapping[str, Any]) -> None:
    """Put a legend below the plot, in as many columns as fit, and make the figure taller by its height."""
    columns = min(max(1, LEGEND_LETTERS // (max(map(len, entries)) + 6)), 4, len(entries))
    figure.set_figheight(figure.get_figheight() + LINE_HEIGHT * -(-len(entries) // columns))
    # Matplotlib hides names that start with an underscore.
    shown = [f" {name}" if name.startswith("_") else name for name in entries]
    handles = list(entries.values())
    figure.legend(
        handles, shown, loc="outside lower left", ncols=columns, columnspacing=1.0, handlelength=1.7, handletextpad=0.6
    )
