"""What came out of a recipe, beside the paper's numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from tenfold.recipes import agreement
from tenfold.recipes.recipe import PaperRow, Recipe, Scale
from tenfold.report.differences import describe_settings
from tenfold.report.formatting import duration, metric_value
from tenfold.runs import Run

ABSENT = "not in our copy"
"""Stands for a number that our copy of the paper does not have."""


@dataclass(frozen=True)
class Setting:
    """One setting of a recipe, and the runs that were made with it."""

    verb: str
    settings: dict[str, Any]
    runs: Sequence[Run] = ()
    reason: str = ""
    """Why it is missing, or what failed."""
    note: str = ""
    predicted_seconds: float | None = None
    """The predicted time of a cross-validation that needs more cores than there are; nothing was trained."""

    @property
    def clock(self) -> str:
        """Whether its times were measured or predicted; "" where there are none."""
        if self.predicted_seconds is not None:
            return "predicted"
        return self.runs[0].clock if self.runs else ""

    @property
    def done(self) -> bool:
        """Whether it has numbers."""
        return bool(self.runs) or self.predicted_seconds is not None


@dataclass(frozen=True)
class ResultRow:
    """One row: the paper's numbers and ours, by column."""

    label: str
    settings: dict[str, Any]
    paper: dict[str, float] = field(default_factory=dict)
    ours: dict[str, float] = field(default_factory=dict)
    clock: str = ""
    note: str = ""


class RecipeResult:
    """The numbers of a recipe beside the paper's: as a table, as a page, and in sentences about where they agree."""

    def __init__(self, recipe: Recipe, scale: Scale, settings: Sequence[Setting]) -> None:
        self.recipe = recipe
        self.scale = scale
        self.settings = list(settings)
        self.rows = _with_ratios(_rows(recipe, self.settings))

    @property
    def complete(self) -> bool:
        """Whether every setting has numbers."""
        return all(setting.done for setting in self.settings)

    def agreement(self) -> list[str]:
        """Return sentences, computed from the numbers, on where the paper's and ours agree or differ."""
        found = []
        for column in self.recipe.show.columns:
            rows = self._comparable(column)
            found.append(agreement.sentence(column, [(row.label, row.paper, row.ours) for row in rows]))
        return [sentence for sentence in found if sentence]

    def _comparable(self, column: str) -> list[ResultRow]:
        """Return the rows to compare: of times only measured or only predicted ones, whichever are more."""
        if column not in agreement.OF_TIME:
            return self.rows
        both = [row for row in self.rows if column in row.paper and column in row.ours]
        clocks = [row.clock for row in both]
        most = max(clocks, key=clocks.count, default="")
        return [row for row in both if row.clock == most]

    def notes(self) -> list[str]:
        """Return what a reader must know: the scale, predicted times, and why rows are missing."""
        notes = [f"scale {self.scale}: {_size(self.recipe, self.scale)}"] if self.settings else []
        notes += [self.recipe.paper.note] if self.recipe.paper.note else []
        notes += [_this_machine()] if self.recipe.show.machine else []
        found: dict[str, list[str]] = {}
        for row in self.rows:
            if row.note:
                found.setdefault(row.note, []).append(row.label)
        return notes + [f"{'; '.join(labels)}: {note}" for note, labels in found.items()]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the heads and the cells of the table: ours beside the paper's, where the paper has numbers."""
        quoted = {name for row in self.rows for name in row.paper}
        pairs = [
            (name, who)
            for name in self.recipe.show.columns
            for who in ("paper", "ours")
            if who == "ours" or name in quoted
        ]
        heads = ["", *(f"{name.replace('_', ' ')}, {who}" for name, who in pairs), "time"]
        cells = [[row.label, *(_cell(row, name, who) for name, who in pairs), row.clock] for row in self.rows]
        return heads, cells

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        heads, cells = self.table()
        lines = [heads, ["---"] * len(heads), *cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"

    def report(self, path: str | Path) -> Path:
        """Write an HTML page with the table, the plot and the sentences."""
        from tenfold.recipes.recipe_page import write

        return write([self], path)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table

        heads, cells = self.table()
        if not cells:
            return Group(
                f"[bold]{escape(self.recipe.name)}: {escape(self.recipe.title)}[/]", *map(escape, self.notes())
            )
        table = Table(*heads, title=f"{self.recipe.name}: {self.recipe.title}", title_justify="left")
        for line in cells:
            table.add_row(*map(escape, line))
        return Group(table, *map(escape, [*self.agreement(), *self.notes()]))

    def __repr__(self) -> str:
        done = sum(setting.done for setting in self.settings)
        return f"<RecipeResult {self.recipe.name}: {done} of {len(self.settings)} settings>"


def _cell(row: ResultRow, column: str, who: str) -> str:
    numbers, absent = (row.paper, ABSENT) if who == "paper" else (row.ours, "-")
    return shown(column, numbers[column]) if column in numbers else absent


def shown(column: str, value: float) -> str:
    """Return a number as tables show it, with its unit."""
    if column == "seconds":
        return duration(value)
    if column in ("PI", "gain"):
        return f"{value:.2f} %"
    return f"{value:.2f}x" if column == "speedup" else metric_value(column, value)


def _rows(recipe: Recipe, settings: Sequence[Setting]) -> list[ResultRow]:
    """Return the paper's rows with the runs that match them, then the settings that the paper has no row for."""
    left = list(settings)
    rows = []
    for row in recipe.rows:
        matching = [one for one in left if _matches(row, one)]
        left = [one for one in left if one not in matching]
        rows.append(_row(row.label, row.settings, row.paper, matching))
    return rows + [_row(_label(one), one.settings, {}, [one]) for one in left]


def _row(label: str, settings: dict[str, Any], paper: dict[str, float], found: Sequence[Setting]) -> ResultRow:
    runs = [run for one in found for run in one.runs if run.status == "finished"]
    names = dict.fromkeys(name for run in runs for name in run.metrics)
    ours = {name: fmean(run.metrics[name] for run in runs if name in run.metrics) for name in names}
    seconds = [run.seconds for run in runs if run.seconds is not None]
    seconds += [one.predicted_seconds for one in found if one.predicted_seconds is not None]
    if seconds:
        ours["seconds"] = fmean(seconds)
    clock = " and ".join(dict.fromkeys(one.clock for one in found if one.clock))
    note = "; ".join(dict.fromkeys(text for one in found for text in (one.reason, one.note) if text))
    return ResultRow(label, settings, dict(paper), ours, clock, note or ("" if found else "was not run at this scale"))


def _matches(row: PaperRow, setting: Setting) -> bool:
    known = setting.settings | {"verb": setting.verb}
    return all(known.get(name) == value for name, value in row.settings.items())


def _label(setting: Setting) -> str:
    return describe_settings(setting.settings) or setting.verb


def _with_ratios(rows: list[ResultRow]) -> list[ResultRow]:
    """Add speedup = T1/Tn, PI = (T1-Tn)/T1 x 100 and gain = Tslowest/Tn x 100; T1 is the first row's time.

    Only times of the same clock are compared: measured with measured, predicted with predicted.
    """
    for row in rows:
        alike = [other.ours["seconds"] for other in rows if other.clock == row.clock and "seconds" in other.ours]
        if "seconds" in row.ours and len(alike) > 1 and row.ours["seconds"]:
            first, own = alike[0], row.ours["seconds"]
            row.ours.update(speedup=first / own, PI=100 * (first - own) / first, gain=100 * max(alike) / own)
    return rows


def _size(recipe: Recipe, scale: Scale) -> str:
    fields = recipe.scales[scale].fields if scale in recipe.scales else {}
    return ", ".join(f"{name} = {value}" for name, value in fields.items()) or "as in the paper"


def _this_machine() -> str:
    """Return this machine's processor, cores, memory and GPUs in a sentence."""
    import psutil

    from tenfold.machine import cores, devices
    from tenfold.machine.facts import processor_name

    memory = psutil.virtual_memory().total / 2**30
    gpus = ", ".join(gpu.name for gpu in devices.gpus()) or "no GPU"
    return f"This machine: {processor_name()}, {cores.budget()} usable cores, {memory:.0f} GiB of memory, {gpus}."
