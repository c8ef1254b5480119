"""Where a paper's numbers and ours agree, computed from both: the order, the direction of change, the best row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tenfold.common.metric_table import lower_is_better, main_metric
from tenfold.papers.recipe import PaperClaim, PaperRow, Recipe, Scale, Size
from tenfold.report.differences import describe_settings
from tenfold.report.formatting import NOTHING, duration, field_value, grouped, metric_value, name_some
from tenfold.report.rows import DOUBTS, EXPLAINED, Doubt, is_time, is_timed, make_rows, run_value
from tenfold.report.tables.columns import DOUBT
from tenfold.report.tables.run_tables import TextTable
from tenfold.runs import Run

Numbers = Sequence[tuple[str, Mapping[str, float], Mapping[str, float]]]
"""For each row its label, the paper's numbers and ours, by column."""


def written(column: str, value: float) -> str:
    """Return a number as tables show it, with its unit."""
    if is_time(column):
        return duration(value)
    if column in ("PI", "gain"):
        return f"{value:.2f} %"
    return f"{value:.2f}x" if column == "speedup" else metric_value(column, value)


def sentence(column: str, rows: Numbers) -> str:
    """Return one sentence about a column; "" where no row has both numbers."""
    both = [(label, paper[column], ours[column]) for label, paper, ours in rows if column in paper and column in ours]
    if not both:
        return ""
    name = column.replace("_", " ")
    if len(both) == 1:
        label, their_value, my_value = both[0]
        return f"{name}: {written(column, their_value)} in the paper, {written(column, my_value)} here ({label})."
    labels = [label for label, _, _ in both]
    theirs, mine = [paper for _, paper, _ in both], [ours for _, _, ours in both]
    parts = [_order(labels, theirs, mine), _signs(theirs, mine) + _by_factors(column, theirs, mine)]
    best = _best(column)
    their_best, my_best = labels[theirs.index(best(theirs))], labels[mine.index(best(mine))]
    word = "highest" if best is max else "lowest"
    parts.append(
        f"both have the {word} value at {their_best}"
        if their_best == my_best
        else f"the {word} value is at {their_best} in the paper and at {my_best} here"
    )
    return f"{name}: " + "; ".join(part for part in parts if part) + "."


def check_claim(claim: PaperClaim, rows: Sequence[tuple[str, bool, float]]) -> str:
    """Return whether a claim holds: in each group of rows one that should be the best must have the best value.

    Each row has the name of its group, whether it should be the best, and its value. "" where no group can decide it.
    Of times above 0, the sentence also says by which factor they differ.
    """
    groups = grouped((group, (favoured, value)) for group, favoured, value in rows)
    decided = {group: found for group, found in groups.items() if len({favoured for favoured, _ in found}) == 2}
    if not decided:
        return ""
    best = _best(claim.column)
    holds: dict[str, bool] = {}
    factors: dict[str, float] = {}
    for group, found in decided.items():
        own, others = (best(value for favoured, value in found if favoured is which) for which in (True, False))
        holds[group] = best(own, others) == own
        if is_time(claim.column) and min(own, others) > 0:
            factors[group] = others / own
    quoted, number = f'The paper says "{claim.said}"', len(holds)
    if claim.factor:
        if not factors:
            return ""
        cases = f" in {len(factors)} cases" if len(factors) > 1 else ""
        return f"{quoted}: here the factor is {_range(factors.values())}{cases}."
    yes, no = ([group for group, held in holds.items() if held is which] for which in (True, False))
    by, the_other_way = (_factor([factors[group] for group in some if group in factors]) for some in (yes, no))
    if not no:
        return f"{quoted}: this holds here{f' in all {number} cases' if number > 1 else ''}{by}."
    if not yes:
        in_none = f"this holds here in none of {number} cases" if number > 1 else "this does not hold here"
        return f"{quoted}: {in_none}{the_other_way}."
    return f"{quoted}: this holds here for {'; '.join(yes)}{by}, not for {'; '.join(no)}{the_other_way}."


def _factor(factors: Sequence[float]) -> str:
    """Return by which factor times differ, in parentheses; "" where there are no times."""
    if not factors:
        return ""
    if max(factors) < 1:
        return f" (the other way round, by a factor of {_range(1 / factor for factor in factors)})"
    return f" (by a factor of {_range(factors)})"


def _range(factors: Iterable[float]) -> str:
    low, *_, high = sorted([*factors] * 2)
    return " to ".join(dict.fromkeys(f"{factor:.3g}" for factor in (low, high)))


def _best(column: str) -> Callable[..., float]:
    """Return the function that finds the best value of a column."""
    return min if is_time(column) or lower_is_better(column) else max


def _order(labels: Sequence[str], theirs: Sequence[float], mine: Sequence[float]) -> str:
    if len(labels) < 3:
        return ""
    same = _ranked(labels, theirs) == _ranked(labels, mine)
    return "the rows are in the same order" if same else "the order of the rows differs"


def _signs(theirs: Sequence[float], mine: Sequence[float]) -> str:
    """Compare the direction of change from each row to the next."""
    steps = len(theirs) - 1
    alike = sum((theirs[k + 1] > theirs[k]) == (mine[k + 1] > mine[k]) for k in range(steps))
    if steps == 1:
        return "it changes in the same direction" if alike else "it changes in the opposite direction"
    return f"{alike} of {steps} changes from row to row have the same sign"


def _by_factors(column: str, theirs: Sequence[float], mine: Sequence[float]) -> str:
    """Return by which factors two times differ, in the paper and here."""
    if len(theirs) != 2 or not is_time(column) or min(*theirs, *mine) <= 0:
        return ""
    return f", by a factor of {max(theirs) / min(theirs):.3g} in the paper and {max(mine) / min(mine):.3g} here"


def _ranked(labels: Sequence[str], values: Sequence[float]) -> list[str]:
    return [label for _, label in sorted(zip(values, labels, strict=True))]


HOST_SETTINGS = ("workers", "device", "batch_size", "pin", "threads", "verb")
"""Settings in which a row may differ from the one that it is compared with."""


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
    doubts: tuple[Doubt, ...] = ()
    """Why its time or speedup should not be trusted, as in comparisons."""
    in_paper: bool = False
    """Whether it is a row of the paper's table or a bar of its figure."""
    selected: bool = False
    """Whether it is the best on the validation part, where the recipe selects one."""

    @property
    def marked_label(self) -> str:
        """The label, with a mark if the row is doubtful, and whether it was selected."""
        label = f"{self.label} (selected)" if self.selected else self.label
        return f"{label} {DOUBT}" if self.doubts else label


def result_rows(recipe: Recipe, settings: Sequence[Setting]) -> list[ResultRow]:
    """Return the paper's rows with the runs that match them, then the settings that the paper has no row for."""
    left = list(settings)
    runs = list({run.id: run for one in settings for run in one.runs}.values())
    doubts = {run.id: row.doubts for row in make_rows(runs) for run in row.runs} if runs else {}
    rows = []
    for row in recipe.rows:
        matching = [one for one in left if _matches(row, one)]
        left = [one for one in left if one not in matching]
        rows.append(_row(recipe, row, matching, doubts))
    rows = _with_ratios(rows + [_row(recipe, None, [one], doubts) for one in left])
    return _with_selected(rows) if recipe.show.select else rows


def _row(
    recipe: Recipe, paper: PaperRow | None, found: Sequence[Setting], doubts: dict[int, tuple[Doubt, ...]]
) -> ResultRow:
    """Return the row of the runs that match a row of the paper, or of a setting that the paper does not have."""
    runs = [run for one in found for run in one.runs if run.status == "finished"]
    metrics = [name for run in runs for name in run.metrics]
    validated = [f"validation_{name}" for name in metrics] if recipe.show.select else []
    asked = [*recipe.show.columns, *(claim.column for claim in recipe.claims)]
    ours: dict[str, float] = {}
    for name in dict.fromkeys([*metrics, *validated, *asked, "seconds"]):
        values = [value for run in runs if (value := run_value(run, name)) is not None]
        if name == "seconds":
            values += [one.predicted_seconds for one in found if one.predicted_seconds is not None]
        if values:
            ours[name] = fmean(values)
    clock = " and ".join(dict.fromkeys(one.clock for one in found if one.clock))
    note = "; ".join(dict.fromkeys(text for one in found for text in (one.reason, one.note) if text))
    doubted = tuple(dict.fromkeys(doubt for run in runs for doubt in doubts.get(run.id, ())))
    note = note or ("" if found else "was not run at this scale")
    if paper is None:
        return ResultRow(setting_label(found[0]), found[0].settings, {}, ours, clock, note, doubted)
    return ResultRow(paper.label, paper.settings, dict(paper.paper), ours, clock, note, doubted, in_paper=True)


def _matches(row: PaperRow, setting: Setting) -> bool:
    known = setting.settings | {"verb": setting.verb}
    return all(known.get(name) == value for name, value in row.settings.items())


def setting_label(setting: Setting) -> str:
    """Return the settings as a phrase."""
    return describe_settings(setting.settings) or setting.verb


def setting_values(rows: Iterable[ResultRow], name: str) -> list[Any]:
    """Return the values of a setting, each once."""
    found: list[Any] = []
    for row in rows:
        if row.settings[name] not in found:
            found.append(row.settings[name])
    return found


def _with_selected(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Select the row that is best on the validation part; the others lose their metrics on the test part."""
    metric = main_metric(name for row in rows for name in row.ours if f"validation_{name}" in row.ours)
    scored = [row for row in rows if f"validation_{metric}" in row.ours]
    if not scored:
        return list(rows)
    sign = -1 if lower_is_better(str(metric)) else 1
    best = max(scored, key=lambda row: sign * row.ours[f"validation_{metric}"])
    return [replace(row, selected=True) if row is best else replace(row, ours=_untested(row.ours)) for row in rows]


def _untested(ours: dict[str, float]) -> dict[str, float]:
    """Return numbers without those on the test part: plain metrics, and those that name it."""
    plain = {name.removeprefix("validation_") for name in ours if name.startswith("validation_")}
    return {name: value for name, value in ours.items() if name not in plain and not name.startswith("test_")}


def _with_ratios(rows: list[ResultRow]) -> list[ResultRow]:
    """Add speedup = T1/Tn, PI = (T1-Tn)/T1 x 100 and gain = Tslowest/Tn x 100.

    Only times of the same clock are compared: measured with measured, predicted with predicted.
    """
    for row in rows:
        alike = [other for other in rows if other.clock == row.clock and "seconds" in other.ours]
        if "seconds" in row.ours and len(alike) > 1 and row.ours["seconds"]:
            first, own = _first(row, alike).ours["seconds"], row.ours["seconds"]
            slowest = max(other.ours["seconds"] for other in alike)
            row.ours.update(speedup=first / own, PI=100 * (first - own) / first, gain=100 * slowest / own)
    return rows


def _first(row: ResultRow, rows: Sequence[ResultRow]) -> ResultRow:
    """Return the row whose time is T1: of those with one worker the one most similar, else the first one."""
    alone = [other for other in rows if other.settings.get("workers") == 1]
    names = [name for name in row.settings if name not in HOST_SETTINGS]
    return max(alone or rows[:1], key=lambda other: sum(other.settings.get(x) == row.settings[x] for x in names))


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
            said = sentence(column, [(row.label, row.paper, row.ours) for row in rows])
            found.append(_with_doubts(said, column, rows))
        for claim in self.recipe.claims:
            rows = _of_one_clock(claim.column, [row for row in self.rows if claim.column in row.ours])
            found.append(_with_doubts(check_claim(claim, _claimed(claim, rows)), claim.column, rows))
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
        from tenfold.papers.recipe_page import write

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
    return written(column, numbers[column]) if column in numbers else absent


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
