"""The built-in recipes, and your own from a file: reading them, and finding mistakes in them."""

from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from tenfold.common.files import read_toml
from tenfold.common.metric_table import METRICS
from tenfold.common.registry import suggest
from tenfold.common.trust import Origin, mark_paths
from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS
from tenfold.experiment.values import label_of
from tenfold.recipes.recipe import Recipe
from tenfold.report.run_values import is_time, known_columns


def names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(path.name.removesuffix(".toml") for path in _library().iterdir() if path.name.endswith(".toml"))


def load(name: str | Path, *, trust: bool = False) -> Recipe:
    """Return a built-in recipe by its name, or your own by the path of its TOML file.

    The import paths that a file names are imported when it is run, if your own commands have named them before; others
    only with `trust`.
    """
    path = Path(name)
    is_file = path.suffix == ".toml"
    if not is_file:
        if str(name) not in names():
            raise ExperimentError(f"unknown recipe '{name}'; {suggest(str(name), names())}, or the path of a TOML file")
        path = Path(str(_library().joinpath(f"{name}.toml")))
    content = read_toml(path, "a recipe", "name a built-in recipe, or an existing file")
    if is_file and not trust:
        content = mark_paths(content, Origin(str(path)))
    try:
        recipe = Recipe(**content)
        _check(recipe)
        return recipe
    except ExperimentError as error:
        raise ExperimentError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def _library() -> Any:
    return files("tenfold.recipes").joinpath("library")


def _check(recipe: Recipe) -> None:
    """Raise an error that names every mistake that its types do not show, one on a line."""
    mistakes = [*_unknown_fields(recipe), *_settings_not_varied(recipe), *_unknown_columns(recipe)]
    if mistakes:
        raise ExperimentError("\n".join(mistakes))


def _unknown_fields(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each name that is not a field of an experiment."""
    yield from _not_among(FIELDS, "an experiment field", "experiment", recipe.experiment)
    for at, block in enumerate(recipe.blocks):
        for part, names in (("fields", block.fields), ("vary", block.vary)):
            yield from _not_among(FIELDS, "an experiment field", f"blocks.{at}.{part}", names)
        for together in block.together:
            yield from _not_among(FIELDS, "an experiment field", f"blocks.{at}.together", together)
        yield from (
            f"blocks.{at}.vary.{name}: give at least one value" for name, values in block.vary.items() if not values
        )
    for scale, size in recipe.scales.items():
        yield from _not_among(FIELDS, "an experiment field", f"scales.{scale}.fields", size.fields)


def _unknown_columns(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each column that is neither a time, a ratio nor a metric of the experiments."""
    fields = [recipe.experiment, *(block.fields for block in recipe.blocks)]
    metrics = [label_of(name) for one in fields for name in one.get("metrics", ()) if isinstance(name, str)]
    known = known_columns(dict.fromkeys(("accuracy", "loss", *metrics, *METRICS)))
    for where, names in (
        ("show.columns", recipe.show.columns),
        *((f"rows.{at}.paper", list(row.paper)) for at, row in enumerate(recipe.rows)),
        *((f"claims.{at}.column", [claim.column]) for at, claim in enumerate(recipe.claims)),
    ):
        yield from (f"{where}: unknown column '{name}'; {suggest(name, known)}" for name in names if name not in known)
    yield from (
        f"claims.{at}.factor: needs a column of times, not {claim.column}"
        for at, claim in enumerate(recipe.claims)
        if claim.factor and not is_time(claim.column)
    )
    if recipe.show.select and not any({"validation_fraction", "folds"} & set(one) for one in fields):
        yield "show.select: needs a validation part; set validation_fraction or folds in [experiment]"


def _settings_not_varied(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each setting that rows, claims, plots or scales name and no block varies."""
    varied = {name for block in recipe.blocks for name in block.vary}
    settings = varied | {name for block in recipe.blocks for one in block.together for name in one}
    for scale, size in recipe.scales.items():
        yield from _not_among(varied, "varied by a block", f"scales.{scale}.vary", size.vary)
    if not recipe.blocks:
        return
    for at, row in enumerate(recipe.rows):
        yield from _not_among(settings | {"verb"}, "a setting of a block", f"rows.{at}.settings", row.settings)
    for at, claim in enumerate(recipe.claims):
        yield from _not_among(settings, "a setting of a block", f"claims.{at}", [*claim.best, *claim.each])
    named = [name for name in (recipe.show.over, recipe.show.across) if name]
    yield from _not_among(settings, "a setting of a block", "show", named)
    if recipe.show.plot == "lines" and not recipe.show.over:
        yield "show: lines need `over`, the setting on the horizontal axis"


def _not_among(known: Iterable[str], what: str, where: str, names: Iterable[str]) -> Iterator[str]:
    listed = sorted(known)
    for name in names:
        if name not in listed:
            yield f"{where}: '{name}' is not {what}; {suggest(name, listed)}"
