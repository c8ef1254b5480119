"""A cross-validation on a page: how the folds' scores spread, what the models do together, and who worked when."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenfold.report.formatting import NOTHING, plain, several
from tenfold.report.plots import palette
from tenfold.report.plots.run_plots import identifier
from tenfold.report.plots.svg import INK, NARROW, WIDE, below, draw
from tenfold.report.tables.fold_tables import NAMES, PARTS, Fold, bounds, folds_table, models_table, name_of, told
from tenfold.runs import Run
from tenfold.runs.store import FOLDED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"train": palette.GREEN, "validation": palette.BLUE, "test": palette.ORANGE}
ROOM_OF_A_LETTER = 0.011
"""What a letter takes of the width of a wide figure."""
SEAM = 0.003
"""Between a fold and the next on the same core, as a share of the whole time."""


def section(run: Run) -> dict[str, Any] | None:
    """Return what a page says of the folds; None unless the run is a cross-validation that has any."""
    folds: list[Fold] = run.result.get("folds") or []
    if run.kind != FOLDED or not folds:
        return None
    failed = sum(fold["status"] == "failed" for fold in folds)
    lost = f" {several(failed, 'fold')} failed and {'is' if failed == 1 else 'are'} not drawn." if failed else ""
    return {
        "strips": [svg for name in told(run) if (svg := strip(run, name))],
        "about": f"One point a fold; the diamond is the mean, the line its 95% interval.{lost}",
        "table": folds_table(run),
        "models": models_table(run),
        "lanes": lanes(run),
    }


def strip(run: Run, metric: str) -> str:
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
            axes.plot(values, _apart(values, row), "o", color=COLOURS[part], markersize=4.5, alpha=0.75)
            _interval(axes, spread, factor, row + 0.34)
        axes.set_yticks(range(len(parts)), [NAMES.get(part, part) for part in parts])
        axes.set_ylim(len(parts) - 0.45, -0.55)
        axes.margins(x=0.06)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"{plain(metric)} (%)" if factor != 1 else plain(metric))

    size = (NARROW, 0.8 + 0.62 * len(parts))
    return draw(f"strip-{identifier(metric)}", f"{plain(metric)} of every fold", size, paint)


def lanes(run: Run) -> str:
    """Return which core worked on which fold and when: one lane a core, one box a fold."""
    folds: list[Fold] = run.result["folds"]
    cores = sorted({core for fold in folds for core in fold["cores"]})
    begin = min(fold["began"] for fold in folds)
    whole = max(fold["ended"] for fold in folds) - begin
    if not cores or not whole:
        return ""

    def paint(figure: "Figure") -> None:
        from matplotlib.patches import Rectangle

        axes = figure.subplots()
        for place, fold in enumerate(folds):
            colour = palette.RED if fold["status"] == "failed" else palette.BLUE
            left, width = fold["began"] - begin, max(fold["ended"] - fold["began"] - SEAM * whole, 0.0)
            room = width / whole / ROOM_OF_A_LETTER
            names = (name_of(folds, place), f"{fold['fold']}")
            name = next((one for one in names if len(one) < room), "")
            for first, last in _stretches([cores.index(core) for core in fold["cores"]]):
                looks: dict[str, Any] = {"facecolor": colour, "linewidth": 0}
                axes.add_patch(Rectangle((left, first - 0.38), width, last - first + 0.76, **looks))
                middle = (left + width / 2, (first + last) / 2)
                axes.text(*middle, name, color="white", fontsize=8, ha="center", va="center")
        axes.set_yticks(range(len(cores)), [f"core {core}" for core in cores])
        axes.set_ylim(len(cores) - 0.4, -0.6)
        axes.set_xlim(0, whole)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"time since the first fold began (s, {run.clock})")
        if any(fold["status"] == "failed" for fold in folds):
            looks = {"linewidth": 0}
            kinds = (("fold", palette.BLUE), ("fold that failed", palette.RED))
            below(figure, [(Rectangle((0, 0), 1, 1, facecolor=colour, **looks), name) for name, colour in kinds])

    return draw("fold-lanes", "folds on cores over time", (WIDE, 0.85 + 0.3 * len(cores)), paint)


def mean_of(run: Run, metric: str) -> str:
    """Return what stands beside a mean over folds: how many they are, and its interval; nothing without folds."""
    if not run.result.get("folds"):
        return ""
    around = bounds(metric, run.result.get("spread", {}).get("validation", {}).get(metric, {}))
    finished = sum(fold["status"] == "finished" for fold in run.result["folds"])
    interval = f", 95% interval {around}" if around != NOTHING else ""
    return f"mean over {several(finished, 'fold')}{interval}"


def _values(run: Run, part: str, metric: str) -> list[float]:
    return [fold["metrics"][part][metric] for fold in run.result["folds"] if metric in fold["metrics"].get(part, {})]


def _apart(values: Sequence[float], row: int) -> list[float]:
    """Return heights that keep points of nearly the same value from hiding each other."""
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
    """Return runs of neighbouring lanes, first and last of each."""
    found: list[tuple[int, int]] = []
    for place in sorted(places):
        if found and place == found[-1][1] + 1:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found
