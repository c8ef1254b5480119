"""Recipes as one HTML page: the paper's numbers and ours side by side, and a plot in the form of the paper's figure."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tenfold.experiment import Experiment
from tenfold.recipes.recipe_plots import recipe_plots
from tenfold.recipes.recipe_result import RecipeResult
from tenfold.recipes.schematic import division_plot
from tenfold.report.formatting import plural
from tenfold.report.pages.figures import page_figures
from tenfold.report.pages.page import render_template, save_page
from tenfold.report.plots.charts import BarTable, Chart


def write(results: Sequence[RecipeResult], path: str | Path) -> Path:
    """Write the page of one or more recipes; that of several begins with a table of contents."""
    charts: dict[str, Chart | None] = {}
    sections = [_section(result, charts) for result in results]
    one = results[0].recipe if len(results) == 1 else None
    content = {
        "title": f"{one.name}: {one.title}" if one else "The experiments of five papers",
        "facts": [*([] if one else [plural(len(results), "recipe")]), f"scale {results[0].scale}"],
        "truth": "Predicted times are marked in the column time; all others were measured",
        "papers": [] if one else _contents(results),
        "recipes": sections,
        "figures": page_figures([], [], charts) if charts else None,
    }
    return save_page(render_template("recipes.html", content), path)


def _contents(results: Sequence[RecipeResult]) -> list[dict[str, Any]]:
    """Return the recipes by paper, each with what agrees and what is missing."""
    return [
        {
            "citation": citation,
            "recipes": [
                {
                    "name": one.recipe.name,
                    "place": one.recipe.paper.place,
                    "title": one.recipe.title,
                    "lines": one.agreement(),
                    "missing": one.missing(),
                }
                for one in group
            ],
        }
        for citation, group in groupby(results, key=lambda one: one.recipe.paper.citation)
    ]


def _section(result: RecipeResult, charts: dict[str, Chart | None]) -> dict[str, Any]:
    """Return what the page shows of a recipe, and add its plots to the charts of the page."""
    recipe = result.recipe
    table = result.table()
    drawn: list[Chart] = [division_plot(Experiment(**recipe.experiment))] if recipe.show.plot == "division" else []
    drawn += recipe_plots(result)
    named = {f"{recipe.name}-{at}": chart for at, chart in enumerate(drawn)}
    charts |= named
    return {
        "name": recipe.name,
        "title": recipe.title,
        "citation": recipe.paper.citation,
        "place": recipe.paper.place,
        "table": {
            "columns": [(name, False) for name in table.columns],
            "rows": [("", line, row.doubts) for row, line in zip(result.table_rows(), table.rows, strict=True)],
            "optional": (),
        },
        "crosstables": result.crosstables(),
        "bars": [name for name, chart in named.items() if isinstance(chart, BarTable)],
        "lines": [name for name, chart in named.items() if not isinstance(chart, BarTable)],
        "agreement": result.agreement(),
        "notes": result.notes(),
    }
