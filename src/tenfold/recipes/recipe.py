"""A recipe: an experiment of a paper as a TOML file, with what it runs, at which scale, and the paper's numbers.

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
verb = "train"                      # train, crossval, simulate, or forecast (predict the time only)
vary = {workers = [1, 2]}           # every combination of these
together = [{pin = "0", threads = 1}, ...]   # settings that change together

[scales.small]                      # small: minutes; machine: what this machine can do; full: as in the paper
fields = {limit = 6000, epochs = 1}

[show]
columns = ["seconds", "gain", "accuracy"]
plot = "bars"

[[rows]]                            # the paper's numbers, and the settings that they belong to
label = "serial"
settings = {workers = 1}
paper = {seconds = 749.0}

[[claims]]                          # what the paper says in words; whether it holds here is computed
said = "two workers are faster"
column = "seconds"
best = {workers = 2}
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from tenfold.errors import ExperimentError
from tenfold.experiment import Section

Verb = Literal["train", "crossval", "simulate", "forecast"]
Scale = Literal["small", "machine", "full"]
SCALES: tuple[Scale, ...] = ("small", "machine", "full")
NEEDS = {
    "gpu": "a CUDA device",
    "tweets": "the tweets data set",
    "flite": "the program flite (Debian's package flite)",
    "mpi": "mpirun and mpi4py",
}
"""What a recipe may need, in words."""


class Paper(Section):
    """Where the experiment comes from."""

    key: str
    """The paper's short name; recipes of one paper are listed together."""
    citation: str
    place: str
    """The table, figure or section."""
    note: str = ""
    """Doubts about the numbers, and what the paper leaves open."""


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
    plot: Literal["bars", "lines", "division", "none"] = "bars"
    """division: a drawing of how the experiment divides its data."""
    machine: bool = False
    """Describe this machine in a note."""
    over: str = ""
    """The setting on the x axis of lines; the rows of one line agree in all other settings."""
    across: str = ""
    """Also show our numbers in crossed tables: `over` down, this setting across."""


class PaperRow(Section):
    """A row of the paper's table, or a bar of its figure."""

    label: str
    settings: dict[str, Any]
    """The settings of the runs that this row is compared with."""
    paper: dict[str, float] = {}
    """The paper's numbers by column; a number that our copy of the paper does not have is left out."""


class PaperClaim(Section):
    """What the paper says in words about which setting is best; whether it holds here is computed."""

    said: str
    """The paper's words."""
    column: str
    best: dict[str, Any]
    """The settings that should have the best value: the lowest of times, else as the metric has it."""
    each: list[str] = []
    """The claim is made for each value of these settings."""
    factor: bool = False
    """Whether the words are about how many times faster; the factor here stands beside them, with no verdict."""


class Recipe(Section):
    """One experiment of a paper."""

    name: str
    title: str
    needs: list[Literal["gpu", "tweets", "flite", "mpi"]] = []
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
            lines = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
            raise ExperimentError("\n".join(lines)) from None
