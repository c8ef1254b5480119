"""The experiments of five papers, one TOML file each, run with one call and shown beside the paper's numbers."""

from tenfold.recipes.load_recipe import load, names
from tenfold.recipes.recipe import Recipe
from tenfold.recipes.recipe_result import RecipeResult
from tenfold.recipes.run_recipe import run

__all__ = ["Recipe", "RecipeResult", "load", "names", "run"]
