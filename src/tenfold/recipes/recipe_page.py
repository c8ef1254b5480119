"""Recipes as one HTML page: the paper's numbers and ours side by side, and a plot in the form of the paper's figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.experiment import Experiment
from tenfold.recipes.recipe_result import RecipeResult, ResultRow
from tenfold.recipes.schematic import draw_division
from tenfold.report.differences import describe_settings
from tenfold.report.pages.page import render_template, save_page
from tenfold.report.plots import palette
from tenfold.report.plots.svg import draw_svg, legend_below

MOST_TICKS = 12
UNITS = {"seconds": "seconds", "PI": "PI in %", "gain": "gain in %", "speedup": "speedup"}


def write(results: Sequence[RecipeResult], path: str | Path) -> Path:
    """Write the page of one or more recipes."""
    sections = [_section(place, result) for place, result in enumerate(results)]
    one = results[0].recipe if len(results) == 1 else None
    content = {
        "title": f"{one.name}: {one.title}" if one else "The experiments of five papers",
        "facts": [f"{len(results)} recipes", f"scale {results[0].scale}"]
        if one is None
        else [f"scale {results[0].scale}"],
        "truth": "Predicted times are marked in the column time; all others were measured",
        "recipes": sections,
    }
    return save_page(render_template("recipes.html", content), path)


def _section(place: int, result: RecipeResult) -> dict[str, Any]:
    recipe = result.recipe
    heads, cells = result.table()
    drawn = [_schematic(f"recipe-{place}", result)] if recipe.show.plot == "division" else []
    drawn += [_plot(f"recipe-{place}-{k}", column, result) for k, column in enumerate(recipe.show.columns)]
    return {
        "name": recipe.name,
        "title": recipe.title,
        "citation": recipe.paper.citation,
        "place": recipe.paper.place,
        "table": {"columns": heads, "rows": cells},
        "plots": [svg for svg in drawn if svg],
        "lines": [*result.agreement(), *result.notes()],
    }


def _schematic(name: str, result: RecipeResult) -> str:
    return draw_division(name, Experiment(**result.recipe.experiment))


def _plot(name: str, column: str, result: RecipeResult) -> str:
    rows = [row for row in result.rows if column in row.ours or column in row.paper]
    show = result.recipe.show
    if show.plot == "none" or not any(column in row.ours for row in rows):
        return ""
    lines = show.plot == "lines" and all(show.over in row.settings for row in rows)
    paint = _lines(rows, column, show.over) if lines else _bars(rows, column)
    height = 2.4 if lines else 0.6 + 0.42 * len(rows)
    return draw_svg(name, f"{column} of {result.recipe.name}, the paper's numbers and ours", (6.4, height), paint)


def _bars(rows: Sequence[ResultRow], column: str) -> Any:
    """Two bars a row, the paper's and ours, each on its own axis where they differ by more than a factor of ten."""

    def paint(figure: Any) -> None:
        axes = figure.subplots()
        places = range(len(rows))
        ours = [row.ours.get(column, 0.0) for row in rows]
        paper = [row.paper.get(column, 0.0) for row in rows]
        scale = _common_scale(paper, ours)
        own = axes.barh([place + 0.2 for place in places], ours, height=0.36, color=palette.series(0)[0])
        entries: list[tuple[Any, str]] = [(own, "ours")]
        if any(paper):
            other = axes if scale else axes.twiny()
            theirs = other.barh([place - 0.2 for place in places], paper, height=0.36, color=palette.series(1)[0])
            entries.append((theirs, "paper" if scale else "paper (upper axis)"))
            other.grid(visible=scale)
        axes.set_yticks(list(places), [row.label for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel(UNITS.get(column, column))
        legend_below(figure, entries)

    return paint


def _lines(rows: Sequence[ResultRow], column: str, over: str) -> Any:
    def paint(figure: Any) -> None:
        axes = figure.subplots()
        entries = []
        ours, paper = ([getattr(row, who).get(column, 0.0) for row in rows] for who in ("ours", "paper"))
        relative = column == "seconds" and any(paper) and not _common_scale(paper, ours)
        lines = {
            (who, label): sorted(points, key=lambda point: (isinstance(point[0], str), point[0]))
            for who in ("ours", "paper")
            for label, points in _grouped(rows, column, over, who).items()
        }
        found = dict.fromkeys(x for points in lines.values() for x, _ in points)
        ticks = sorted(found, key=lambda x: (isinstance(x, str), x))
        in_words = any(isinstance(x, str) for x in ticks)
        places = {x: at if in_words else x for at, x in enumerate(ticks)}
        for number, ((who, label), points) in enumerate(lines.items()):
            colour, marker = palette.series(number)
            values = [value / points[0][1] if relative else value for _, value in points]
            (line,) = axes.plot([places[x] for x, _ in points], values, marker=marker, color=colour)
            entries.append((line, f"{who}, {label}" if label else who))
        axes.set_xlabel(over.replace("_", " "))
        axes.set_ylabel("time / its first value" if relative else UNITS.get(column, column.replace("_", " ")))
        if all(isinstance(x, int | str) for x in ticks) and len(ticks) <= MOST_TICKS:
            axes.set_xticks([places[x] for x in ticks], [str(x) for x in ticks])
        legend_below(figure, entries)

    return paint


def _grouped(rows: Sequence[ResultRow], column: str, over: str, who: str) -> dict[str, list[tuple[Any, float]]]:
    """Return the points of each line: rows that agree in all settings but the one on the x axis."""
    found: dict[str, list[tuple[Any, float]]] = {}
    for row in rows:
        numbers = getattr(row, who)
        if column in numbers:
            rest = describe_settings({key: value for key, value in row.settings.items() if key not in (over, "verb")})
            clock = row.clock if who == "ours" else ""
            found.setdefault(", ".join(part for part in (rest, clock) if part), []).append(
                (row.settings[over], numbers[column])
            )
    return found


def _common_scale(paper: Sequence[float], ours: Sequence[float]) -> bool:
    largest = max(map(abs, paper), default=0.0), max(map(abs, ours), default=0.0)
    return not all(largest) or 0.1 < largest[0] / largest[1] < 10
