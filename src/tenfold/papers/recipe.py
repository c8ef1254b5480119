"""A recipe: an experiment of a paper as a TOML file, with its settings, their scale, and the paper's numbers.

name = "lopez-serial-parallel"
title = "A CNN on MNIST, serial and with two workers"

[paper]
key = "lopez"                       # recipes of one paper are listed together
citation = "..."
place = "section 3"                 # the table or figure
note = "..."                        # doubts, missing or inconsistent numbers

[experiment]                        # fields of an experiment, by their short names
model = "cnn"
data = "mnist"

[[blocks]]                          # what is run
verb = "train"                      # train, launch (under mpirun), crossval, simulate, or forecast (the time only)
vary = {workers = [1, 2]}           # every combination of these
together = [{pin = "0", threads = 1}, ...]   # settings that change together

[scales.small]                      # small: minutes; machine: what this machine can do; full: as in the paper
fields = {limit = 6000, epochs = 1}

[show]
columns = ["seconds", "gain", "accuracy"]
plot = "bars"

[[rows]]                            # the paper's numbers as it prints them, and the settings that they belong to
label = "serial"
settings = {workers = 1}
paper = {seconds = "749 s", gain = "N/A"}    # words such as N/A are shown, and compared with nothing

[[claims]]                          # what the paper says in words; whether it holds here is computed
said = "two workers are faster"
column = "seconds"
best = {workers = 2}
"""

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tenfold.common.files import read_toml
from tenfold.common.imports import Origin, mark_paths
from tenfold.common.metric_traits import METRICS
from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS, Section
from tenfold.experiment.values import label_of
from tenfold.registry import suggest
from tenfold.reports.comparison_rows import is_timed, known_columns
from tenfold.reports.formatting import metric_scale

Verb = Literal["train", "launch", "crossval", "simulate", "forecast"]
Scale = Literal["small", "machine", "full"]
SCALES: tuple[Scale, ...] = ("small", "machine", "full")
NEEDS = {
    "gpu": "a CUDA device",
    "tweets": "the tweets data set",
    "flite": "the program flite (Debian's package flite)",
    "recordings": "recordings of digits (Debian's package asterisk-core-sounds-en-wav)",
    "mpi": "mpirun and mpi4py",
}
"""Requirements of recipes, in words."""


class Paper(Section):
    """The source of the experiment."""

    key: str
    """The paper's short name; recipes of one paper are listed together."""
    citation: str
    place: str
    """The table, figure or section."""
    note: str = ""
    """Doubts about the numbers, and questions that the paper leaves open."""


class Block(Section):
    """Runs of one kind over a grid of settings."""

    verb: Verb = "train"
    fields: dict[str, Any] = {}
    """Fields of these runs alone."""
    vary: dict[str, list[Any]] = {}
    """Every combination of these values is run."""
    together: list[dict[str, Any]] = []
    """Settings that change together; combined with every combination of `vary`."""


class Size(Section):
    """How large the experiment is at one scale."""

    fields: dict[str, Any] = {}
    repeats: Annotated[int, Field(ge=1)] = 1
    vary: dict[str, list[Any]] = {}
    """Replaces the values that blocks vary."""


class Show(Section):
    """Which numbers are shown, and how they are drawn."""

    columns: list[str] = ["seconds", "accuracy"]
    """Times (seconds, seconds_with_evaluation), speedup, PI, gain, and metrics: accuracy, or train_accuracy."""
    select: bool = False
    """Select the row that is best on the validation part, and show metrics on the test part for it alone."""
    plot: Literal["bars", "lines", "parallel", "none"] = "bars"
    """parallel: a drawing of how the experiment divides its data."""
    machine: bool = False
    """Describe this machine in a note."""
    over: str = ""
    """The setting on the x axis of lines; the rows of one line agree in all other settings."""
    across: str = ""
    """Also show our numbers in crossed tables: `over` down, this setting across."""


class PaperNumber(Section):
    """A number of the paper whose text alone would be misread, such as one against another baseline than ours."""

    printed: str
    value: float


class PaperRow(Section):
    """A row of the paper's table, or a bar of its figure."""

    label: str
    settings: dict[str, Any]
    """The settings of the runs that this row is compared with."""
    paper: dict[str, float | str | PaperNumber] = {}
    """What the paper prints, by column: "9,511.66 s" is compared with ours; words such as "N/A", "nearly 50 %" and
    "not in our copy" are only shown. A column that the paper does not have is left out."""

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers in `paper`, in seconds, as shares of one, or in the unit of the column."""
        read = {column: read_number(column, given) for column, given in self.paper.items()}
        return {column: value for column, value in read.items() if value is not None}

    @property
    def printed(self) -> dict[str, str]:
        """The values given as text, as printed in the paper."""
        return {
            column: given if isinstance(given, str) else given.printed
            for column, given in self.paper.items()
            if not isinstance(given, float)
        }


NUMBER = re.compile(r"(-?[\d,]*\d(?:\.\d+)?) ?(ms|s|sec|%|x)?")


def read_number(column: str, given: "float | str | PaperNumber") -> float | None:
    """Return the number that a paper prints in a column; None for words."""
    if not isinstance(given, str):
        return given if isinstance(given, float) else given.value
    match = NUMBER.fullmatch(given)
    if match is None:
        return None
    number, unit = float(match[1].replace(",", "")), match[2]
    return number / {"ms": 1000, "%": metric_scale(column)[0]}.get(unit, 1)


class PaperClaim(Section):
    """What the paper says in words about which settings are better; whether it holds here is computed."""

    said: str
    """The paper's words."""
    column: str
    best: dict[str, Any] = {}
    """The settings that should be better: lower for times, else as the metric has it. Default: all but `against`."""
    against: dict[str, Any] = {}
    """The settings that they are compared with. Default: all others."""
    each: list[str] = []
    """The claim is made for each value of these settings."""
    factor: bool = False
    """Whether the words are about how much faster; our number stands beside them, with no verdict."""
    at_most: Annotated[float, Field(gt=0)] | None = None
    """The size of a "small" difference: of a metric absolute, of times relative. By more, the claim does not hold."""
    at_least: Annotated[float, Field(gt=0)] | None = None
    """The size of an improvement that the words give, likewise. By less, the claim does not hold."""
    similar: Annotated[float, Field(gt=0)] | None = None
    """The size up to which values are "similar", whichever is better; likewise."""
    reaches: float | None = None
    """What a word such as "excellent" means: the value that each run reaches, compared with no other run."""


class Recipe(Section):
    """One experiment of a paper."""

    name: str
    title: str
    needs: list[Literal["gpu", "tweets", "flite", "recordings", "mpi"]] = []
    seconds: Annotated[float, Field(ge=0)] = 60.0
    """How long it took at scale small on two idle cores; with a GPU, its rows come on top."""
    paper: Paper
    experiment: dict[str, Any] = {}
    blocks: list[Block] = []
    scales: dict[Scale, Size] = {}
    show: Show = Show()
    rows: list[PaperRow] = []
    claims: list[PaperClaim] = []
    percentages: list[dict[str, float]] = []
    """Percentages that the paper prints, with the times they follow from and the value that these give."""

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            raise ExperimentError("\n".join(lines)) from None


def names() -> list[str]:
    return sorted(path.name.removesuffix(".toml") for path in _library().iterdir() if path.name.endswith(".toml"))


def load(name: str | Path, *, trust: bool = False) -> Recipe:
    """Return a built-in recipe by its name, or your own by the path of its TOML file.

    The import paths that a file names are imported when it is run if your own commands have named them before; other
    paths require `trust`.
    """
    path = Path(name)
    is_file = path.suffix == ".toml"
    if not is_file:
        if str(name) not in names():
            raise ExperimentError(f"unknown recipe '{name}'; {suggest(str(name), names())}, or the path of a TOML file")
        path = Path(str(_library().joinpath(f"{name}.toml")))
    content = read_toml(path, "a recipe", "name a built-in recipe, or an existing file")
    if is_file:
        content = mark_paths(content, Origin(str(path), is_trusted=trust))
    try:
        recipe = Recipe(**content)
        _check(recipe)
        return recipe
    except ExperimentError as error:
        raise ExperimentError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from None


def _library() -> Any:
    return files("tenfold.papers").joinpath("library")


def _check(recipe: Recipe) -> None:
    """Raise an error that lists every mistake that type validation does not find, one per line."""
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
    metrics = [label_of(name) for field in fields for name in field.get("metrics", ()) if isinstance(name, str)]
    columns = known_columns(dict.fromkeys(("accuracy", "loss", *metrics, *METRICS)))
    for where, names in (
        ("show.columns", recipe.show.columns),
        *((f"rows.{at}.paper", list(row.paper)) for at, row in enumerate(recipe.rows)),
        *((f"claims.{at}.column", [claim.column]) for at, claim in enumerate(recipe.claims)),
    ):
        yield from (
            f"{where}: unknown column '{name}'; {suggest(name, columns)}" for name in names if name not in columns
        )
    yield from (
        f"claims.{at}.factor: needs a column of times or of their ratios, not {claim.column}"
        for at, claim in enumerate(recipe.claims)
        if claim.factor and not is_timed(claim.column)
    )
    if recipe.show.select and not any({"validation_fraction", "folds"} & set(field) for field in fields):
        yield "show.select: needs a validation part; set validation_fraction or folds in [experiment]"


def _settings_not_varied(recipe: Recipe) -> Iterator[str]:
    """Yield a sentence for each setting that rows, claims, plots or scales name and no block varies."""
    varied = {name for block in recipe.blocks for name in block.vary}
    settings = varied | {name for block in recipe.blocks for item in block.together for name in item}
    for scale, size in recipe.scales.items():
        yield from _not_among(varied, "varied by a block", f"scales.{scale}.vary", size.vary)
    if not recipe.blocks:
        return
    for at, row in enumerate(recipe.rows):
        yield from _not_among(settings | {"verb"}, "a setting of a block", f"rows.{at}.settings", row.settings)
    for at, claim in enumerate(recipe.claims):
        named = [*claim.best, *claim.against, *claim.each]
        yield from _not_among(settings | {"verb"}, "a setting of a block", f"claims.{at}", named)
        if not claim.best and not claim.against and claim.reaches is None:
            yield f"claims.{at}: name the settings that should be `best`, or those that they are compared `against`"
    named = [name for name in (recipe.show.over, recipe.show.across) if name]
    yield from _not_among(settings, "a setting of a block", "show", named)
    if recipe.show.plot == "lines" and not recipe.show.over:
        yield "show: lines need `over`, the setting on the horizontal axis"


def _not_among(allowed: Iterable[str], what: str, where: str, names: Iterable[str]) -> Iterator[str]:
    listed = sorted(allowed)
    for name in names:
        if name not in listed:
            yield f"{where}: '{name}' is not {what}; {suggest(name, listed)}"
