"""The result of a recipe, beside the paper's numbers."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tenfold.recipes import agreement
from tenfold.recipes.recipe import PaperClaim, Recipe, Scale, Size
from tenfold.recipes.result_rows import ResultRow, Setting, result_rows, setting_label, setting_values
from tenfold.report.differences import describe_settings
from tenfold.report.formatting import NOTHING, field_value, grouped, name_some
from tenfold.report.rows import DOUBTS
from tenfold.report.run_values import EXPLAINED, is_timed
from tenfold.report.tables.columns import DOUBT
from tenfold.report.tables.text_table import TextTable

MOST_NAMED = 4
"""A note about several rows names at most this many."""
ABSENT = "not in our copy"
"""Stands for a number that our copy of the paper does not have."""


class RecipeResult:
    """The numbers of a recipe beside the paper's: as a table, as a page, and in sentences about where they agree."""

    def __init__(self, recipe: Recipe, scale: Scale, settings: Sequence[Setting], problem: str = "") -> None:
        self.recipe = recipe
        self.scale = scale
        self.settings = list(settings)
        self.rows = result_rows(recipe, self.settings)
        self.problem = problem
        """Why the recipe could not be run at all."""

    @property
    def complete(self) -> bool:
        """Whether every setting has numbers."""
        return not self.problem and all(setting.done for setting in self.settings)

    def missing(self) -> list[str]:
        """Return why numbers are missing: each reason with the settings that it is the reason for."""
        found = grouped((one.reason, setting_label(one)) for one in self.settings if one.reason)
        listed = [f"{reason} ({name_some(labels, MOST_NAMED)})" for reason, labels in found.items()]
        return ([self.problem] if self.problem else []) + listed

    def agreement(self) -> list[str]:
        """Return sentences, computed from the numbers, on where the paper's and ours agree or differ."""
        found = []
        for column in self.recipe.show.columns:
            both = [row for row in self.rows if column in row.paper and column in row.ours]
            rows = _of_one_clock(column, both)
            said = agreement.sentence(column, [(row.label, row.paper, row.ours) for row in rows])
            found.append(_with_doubts(said, column, rows))
        for claim in self.recipe.claims:
            rows = _of_one_clock(claim.column, [row for row in self.rows if claim.column in row.ours])
            found.append(_with_doubts(agreement.check_claim(claim, _claimed(claim, rows)), claim.column, rows))
        listed = [sentence for sentence in found if sentence]
        return listed or ([self._nothing_to_compare()] if self.recipe.blocks else [])

    def _nothing_to_compare(self) -> str:
        if not any(row.ours for row in self.rows):
            return "Nothing was compared, as nothing could be run here."
        if any(row.paper for row in self.rows):
            return "Nothing was compared, as the rows that the paper has numbers for could not be run here."
        if self.recipe.claims:
            return "Nothing was compared, as some of the rows that the paper speaks of could not be run here."
        return "Nothing was compared, as our copy of the paper has no numbers for these rows."

    def notes(self) -> list[str]:
        """Return what a reader must know: the scale, predicted times, and why rows are missing."""
        notes = [f"scale {self.scale}: {_size(self.recipe, self.scale)}"] if self.settings else []
        notes += [self.recipe.paper.note] if self.recipe.paper.note else []
        notes += [_this_machine()] if self.recipe.show.machine else []
        doubts = {doubt for row in self.rows for doubt in row.doubts}
        notes += [f"{DOUBT} {text}" for doubt, text in DOUBTS.items() if doubt in doubts]
        notes += [
            f"{name.replace('_', ' ')}: {EXPLAINED[name]}" for name in self.recipe.show.columns if name in EXPLAINED
        ]
        notes += [f"selected: {row.label}, the best on the validation part" for row in self.rows if row.selected]
        notes += [f"it could not be run: {self.problem}"] if self.problem else []
        found = grouped((row.note, row.label) for row in self.rows if row.note)
        return notes + [f"{name_some(labels, MOST_NAMED)}: {note}" for note, labels in found.items()]

    def crosstables(self) -> list[TextTable]:
        """Return our numbers by two settings, a table for each column, where the paper has them in this form."""
        show = self.recipe.show
        rows = [row for row in self.rows if {show.over, show.across} <= set(row.settings)] if show.across else []
        down, across = (setting_values(rows, name) for name in (show.over, show.across))
        found, quoted = [], any(row.paper for row in self.rows)
        for column in show.columns:
            places = {(str(row.settings[show.over]), str(row.settings[show.across])): row for row in rows}
            cells = [
                (
                    describe_settings({show.over: one}),
                    *(
                        _cell(places[str(one), str(two)], column, "ours") if (str(one), str(two)) in places else NOTHING
                        for two in across
                    ),
                )
                for one in down
            ]
            heads = ["", *(describe_settings({show.across: two}) for two in across)]
            if any(column in row.ours for row in rows):
                found.append(TextTable(heads, cells, _head(column, "ours", quoted)))
        return found

    def table_rows(self) -> list[ResultRow]:
        """Return the rows of the table: those of the paper, and those with numbers; notes name the others.

        Each is shown once: a single worker is the same setting with every strategy.
        """
        rows = [found[0] for found in grouped(((row.label, row.clock), row) for row in self.rows).values()]
        return [row for row in rows if row.in_paper or row.ours] or rows

    def table(self) -> TextTable:
        """Return the numbers: ours beside the paper's, where the paper has any."""
        rows = self.table_rows()
        quoted = {name for row in rows for name in row.paper}
        pairs = [
            (name, who)
            for name in self.recipe.show.columns
            for who in ("paper", "ours")
            if who == "ours" or name in quoted
        ]
        heads = ["", *(_head(name, who, bool(quoted)) for name, who in pairs), "time"]
        cells = [[row.marked_label, *(_cell(row, name, who) for name, who in pairs), row.clock] for row in rows]
        return TextTable(heads, cells, f"{self.recipe.name}: {self.recipe.title}")

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        return self.table().to_markdown()

    def report(self, path: str | Path) -> Path:
        """Write an HTML page with the table, the plot and the sentences."""
        from tenfold.recipes.recipe_page import write

        return write([self], path)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        table = self.table()
        if not table.rows:
            return Group(Text(table.title, style="bold"), *map(Text, self.notes()))
        tables = [boxed(one) for one in (table, *self.crosstables())]
        return Group(*tables, *map(Text, [*self.agreement(), *self.notes()]))

    def __repr__(self) -> str:
        done = sum(setting.done for setting in self.settings)
        return f"<RecipeResult {self.recipe.name}: {done} of {len(self.settings)} settings>"


def _of_one_clock(column: str, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows to compare: of times only measured or only predicted ones, whichever are more."""
    clocks = [row.clock for row in rows]
    most = max(clocks, key=clocks.count, default="")
    return [row for row in rows if row.clock == most or not is_timed(column)]


def _claimed(claim: PaperClaim, rows: Sequence[ResultRow]) -> list[tuple[str, bool, float]]:
    """Return the group of each row that a claim is about, whether it should be the best one, and its value."""
    return [
        (
            describe_settings({name: row.settings[name] for name in claim.each if name in row.settings}),
            all(row.settings.get(name) == value for name, value in claim.best.items()),
            row.ours[claim.column],
        )
        for row in rows
    ]


def _with_doubts(said: str, column: str, rows: Iterable[ResultRow]) -> str:
    """Return a sentence about a column; it warns where it rests on times that should not be trusted."""
    unsure = said and is_timed(column) and any(row.doubts for row in rows)
    return f"{said} Some of our times are unreliable ({DOUBT})." if unsure else said


def boxed(content: TextTable) -> Any:
    """Return a table for a terminal, with lines around its columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=content.title or None, title_justify="left")
    for name in content.columns:
        table.add_column(Text(name))
    for line in content.rows:
        table.add_row(*map(Text, line))
    return table


def _head(column: str, who: str, quoted: bool) -> str:
    """Return a heading, which says whose numbers these are where the table also has numbers of the paper."""
    return column.replace("_", " ") + (f", {who}" if quoted else "")


def _cell(row: ResultRow, column: str, who: str) -> str:
    numbers, absent = (row.paper, ABSENT if row.in_paper else NOTHING) if who == "paper" else (row.ours, NOTHING)
    return agreement.written(column, numbers[column]) if column in numbers else absent


def _size(recipe: Recipe, scale: Scale) -> str:
    size = recipe.scales.get(scale, Size())
    fields = [f"{name} = {value}" for name, value in size.fields.items()]
    fewer = [f"{name} in {', '.join(map(field_value, values))}" for name, values in size.vary.items()]
    return "; ".join([*([", ".join(fields)] if fields else []), *fewer]) or "as in the paper"


def _this_machine() -> str:
    """Return this machine's processor, cores, memory and GPUs in a sentence."""
    import psutil

    from tenfold.machine import cores, devices
    from tenfold.machine.facts import processor_name

    memory = psutil.virtual_memory().total / 2**30
    gpus = ", ".join(gpu.name for gpu in devices.gpus()) or "no GPU"
    return f"This machine: {processor_name()}, {cores.budget()} usable cores, {memory:.0f} GiB of memory, {gpus}."
