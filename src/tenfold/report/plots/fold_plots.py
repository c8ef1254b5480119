"""Plots of a cross-validation: scores of the folds, and which core trained which fold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenfold.common.parts import PARTS
from tenfold.errors import StoreError
from tenfold.report.formatting import one_line
from tenfold.report.plots import palette
from tenfold.report.plots.svg import INK, NARROW, PHONE, draw_both, draw_svg, identifier, legend_below
from tenfold.report.tables.fold_tables import PART_NAMES, Fold, name_of
from tenfold.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"train": palette.GREEN, "validation": palette.BLUE, "test": palette.ORANGE}
LETTER_WIDTH = 0.105
"""Width of a letter in inches."""
SEAM = 0.003
"""Space between two folds on the same core, as a share of the total time."""


def fold_scores_plot(run: Run, metric: str) -> str:
    """Return one metric of all folds: a strip of points for each part, with the mean and its 95% interval."""
    factor = 100.0 if metric.endswith("accuracy") else 1.0
    points = {part: _values(run, part, metric) for part in PARTS}
    parts = [part for part in PARTS if points[part]]
    if not parts:
        return ""

    def paint(figure: "Figure") -> None:
        axes = figure.subplots()
        for row, part in enumerate(parts):
            spread = run.result.get("spread", {}).get(part, {}).get(metric, {})
            values = [value * factor for value in points[part]]
            axes.plot(values, _spread_out(values, row), "o", color=COLOURS[part], markersize=4.5, alpha=0.75)
            _interval(axes, spread, factor, row + 0.34)
        axes.set_yticks(range(len(parts)), [PART_NAMES.get(part, part) for part in parts])
        axes.set_ylim(len(parts) - 0.45, -0.55)
        axes.margins(x=0.06)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{one_line(metric)} (%)" if factor != 1 else one_line(metric))

    size = (NARROW, 0.8 + 0.62 * len(parts))
    return draw_svg(f"strip-{identifier(metric)}", f"{one_line(metric)} of every fold", size, paint)


def fold_runs(run: Run) -> list[Run]:
    """Return the recorded runs of a cross-validation's folds."""
    found = []
    for fold in run.result.get("folds") or []:
        try:
            other = run.other(fold["run"]) if fold["run"] is not None else None
        except StoreError:
            other = None
        if other is not None and other.facts.get("crossval", {}).get("parent") == run.id:
            found.append(other)
    return found


def fold_timeline(run: Run) -> str:
    """Return which core worked on which fold and when: one lane for each core, one box for each fold."""
    folds: list[Fold] = run.result["folds"]
    cores = sorted({core for fold in folds for core in fold["cores"]})
    begin = min(fold["began"] for fold in folds)
    total = max(fold["ended"] for fold in folds) - begin
    if not cores or not total:
        return ""

    def paint(figure: "Figure", figure_width: float) -> None:
        from matplotlib.patches import Rectangle

        axes = figure.subplots()
        for fold in folds:
            colour = palette.RED if fold["status"] == "failed" else palette.BLUE
            left, width = fold["began"] - begin, max(fold["ended"] - fold["began"] - SEAM * total, 0.0)
            letters = width / total * figure_width / LETTER_WIDTH
            name = next((one for one in (name_of(fold), f"{fold['fold']}") if len(one) < letters), "")
            for first, last in _stretches([cores.index(core) for core in fold["cores"]]):
                options: dict[str, Any] = {"facecolor": colour, "linewidth": 0}
                axes.add_patch(Rectangle((left, first - 0.38), width, last - first + 0.76, **options))
                middle = (left + width / 2, (first + last) / 2)
                axes.text(*middle, name, color="white", fontsize=8, ha="center", va="center")
        axes.set_yticks(range(len(cores)), [f"core {core}" for core in cores])
        axes.set_ylim(len(cores) - 0.4, -0.6)
        axes.set_xlim(0, total)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"time since the first fold began (s, {run.clock})")
        if any(fold["status"] == "failed" for fold in folds):
            options = {"linewidth": 0}
            kinds = (("fold", palette.BLUE), ("failed fold", palette.RED))
            legend_below(
                figure, [(Rectangle((0, 0), 1, 1, facecolor=colour, **options), name) for name, colour in kinds]
            )

    def size(width: float) -> tuple[float, float]:
        return width, 0.85 + 0.3 * len(cores) + 0.2 * (width == PHONE)

    return draw_both("fold-lanes", "folds on cores over time", size, paint)


def _values(run: Run, part: str, metric: str) -> list[float]:
    return [fold["metrics"][part][metric] for fold in run.result["folds"] if metric in fold["metrics"].get(part, {})]


def _spread_out(values: Sequence[float], row: int) -> list[float]:
    """Return heights at which points of nearly the same value do not hide each other."""
    width = (max(values) - min(values)) / 24 or 1.0
    seen: dict[int, int] = {}
    heights = []
    for value in values:
        place = round(value / width)
        turn = seen[place] = seen.get(place, -1) + 1
        heights.append(row + (turn + 1) // 2 * 0.13 * (-1) ** turn)
    return heights


def _interval(axes: "Axes", spread: dict[str, Any], factor: float, height: float) -> None:
    if spread.get("low") is not None:
        axes.plot([spread["low"] * factor, spread["high"] * factor], [height] * 2, color=INK, linewidth=1.6)
    if spread.get("mean") is not None:
        axes.plot([spread["mean"] * factor], [height], "D", color=INK, markersize=4.5)


def _stretches(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last place of each run of neighbouring places."""
    found: list[tuple[int, int]] = []
    for place in sorted(places):
        if found and place == found[-1][1] + 1:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found
