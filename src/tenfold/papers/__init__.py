"""The experiments of five papers, one TOML file each, run with one call and shown beside the paper's numbers.

Its data sets, models, metrics, clusters and commands are added to Tenfold by entry points, as any package can do it.
"""

from typing import TYPE_CHECKING

from tenfold.common.imports import lazy_attributes

if TYPE_CHECKING:
    from tenfold.papers.recipe import Recipe, load, names
    from tenfold.papers.recipe_result import RecipeResult
    from tenfold.papers.recommender import recommend
    from tenfold.papers.run_recipe import run

__all__ = ["Recipe", "RecipeResult", "load", "names", "recommend", "run"]

if not TYPE_CHECKING:  # the command line should not wait for torch
    __getattr__ = lazy_attributes(
        __name__,
        {
            "Recipe": f"{__name__}.recipe",
            "RecipeResult": f"{__name__}.recipe_result",
            "load": f"{__name__}.recipe",
            "names": f"{__name__}.recipe",
            "recommend": f"{__name__}.recommender",
            "run": f"{__name__}.run_recipe",
        },
    )
