"""The experiments of five papers, one TOML file each, run with one call and shown beside the paper's numbers."""

from tenfold.papers.recipe import Recipe, load, names
from tenfold.papers.recipe_result import RecipeResult
from tenfold.papers.run_recipe import run

__all__ = ["Recipe", "RecipeResult", "load", "names", "run"]
