"""The built-in recipes, and your own from a file."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from tenfold.common.files import read_toml
from tenfold.common.registry import suggest
from tenfold.errors import ExperimentError
from tenfold.recipes.check_recipe import check_recipe
from tenfold.recipes.recipe import Recipe


def names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(path.name.removesuffix(".toml") for path in _library().iterdir() if path.name.endswith(".toml"))


def load(name: str | Path) -> Recipe:
    """Return a built-in recipe by its name, or your own by the path of its TOML file."""
    path = Path(name)
    if path.suffix != ".toml":
        if str(name) not in names():
            raise ExperimentError(f"unknown recipe '{name}'; {suggest(str(name), names())}, or the path of a TOML file")
        path = Path(str(_library().joinpath(f"{name}.toml")))
    content = read_toml(path, "a recipe", "name a built-in recipe, or an existing file")
    try:
        recipe = Recipe(**content)
        check_recipe(recipe)
        return recipe
    except ExperimentError as error:
        raise ExperimentError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def _library() -> Any:
    return files("tenfold.recipes").joinpath("library")
