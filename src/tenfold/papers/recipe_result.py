"""The result of a recipe: a paper's numbers beside ours, and an assessment of their agreement."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from tenfold.common.metric_traits import lower_is_better, main_metric
from tenfold.papers.recipe import NEEDS, PaperClaim, PaperRow, Recipe, Scale, Size
from tenfold.reports.comparison_rows import (
    DOUBTS,
    EXPLAINED,
    RATIOS,
    SECONDS,
    Doubt,
    is_time,
    is_timed,
    make_rows,
    run_value,
)
from tenfold.reports.differences import describe_settings
from tenfold.reports.formatting import NOTHING, duration, field_value, grouped, metric_scale, metric_value, name_some
from tenfold.reports.tables import DOUBT, TextTable
from tenfold.runs import Run

ALIKE = 0.03
"""Two times that differ by less than this share are called equal: repeated runs vary by this much."""
MOST_NAMED = 4
"""A sentence names at most this many rows."""
FASTER, ALIKE_WORD, SLOWER = "faster", "about as fast", "slower"


class Statement(NamedTuple):
    """A sentence, and whether our numbers agree with the paper; None if there is no verdict."""

    text: str
    agrees: bool | None = None
    doubtful: bool = False
    """Whether it is based on unreliable times and therefore has no verdict."""


class Pair(NamedTuple):
    """A row that has both numbers of a column."""

    label: str
    paper: float
    ours: float
    printed: str = ""
    """The number as printed in the paper."""


def written(column: str, value: float) -> str:
    if is_time(column):
        return duration(value)
    if column in ("PI", "gain"):
        return f"{value:.2f} %"
    return f"{value:.2f}x" if column == "speedup" else metric_value(column, value)


def compare_column(column: str, pairs: Sequence[Pair], in_paper: Mapping[str, float]) -> list[Statement]:
    """Return sentences about a column: the direction of each change, and the best row.

    `in_paper` has the paper's numbers of all its rows, by label, also of those that were not run here or not with the
    same clock: a sentence over some rows says which.
    """
    if not pairs:
        return []
    rest = [label for label in in_paper if label not in {pair.label for pair in pairs}]
    if len(pairs) == 1 or column in RATIOS:
        return [
            Statement(
                f"{_name(column)}, {pair.label}: {pair.printed or written(column, pair.paper)} in the paper, "
                f"{written(column, pair.ours)} here."
            )
            for pair in pairs
        ]
    theirs = [_direction(column, a.paper, b.paper) for a, b in pairwise(pairs)]
    mine = [_direction(column, a.ours, b.ours) for a, b in pairwise(pairs)]
    statements = [
        Statement(
            f"From {a.label} to {b.label}: {_change(column, a.paper, b.paper)} in the paper, "
            f"{_change(column, a.ours, b.ours)} here.",
            their_direction == my_direction,
        )
        for (a, b), their_direction, my_direction in zip(pairwise(pairs), theirs, mine, strict=True)
    ]
    if theirs == mine and len(theirs) > 1:
        how = "rises and falls at the same steps as in the paper"
        if len(set(theirs)) == 1 and theirs[0]:
            how = f"{'falls' if theirs[0] < 0 else 'rises'} at every step, as in the paper"
        statements = [Statement(f"{_name(column)} {how}.", True)]
    if len(pairs) > 2 or rest:
        statements.append(_best_row(column, pairs, in_paper))
    if rest:
        compared = name_some([pair.label for pair in pairs], MOST_NAMED)
        statements.append(
            Statement(f"These sentences are about {compared}; not compared: {name_some(rest, MOST_NAMED)}.")
        )
    return statements


def check_claim(claim: PaperClaim, rows: Sequence[tuple[str, bool, float]]) -> Statement | None:
    """Return whether a claim holds: in each group of rows one that should be better must have the best value.

    Each row has the name of its group, whether it should be better, and its value. None if no group can decide it.
    """
    if claim.reaches is not None:
        return _check_reached(claim, claim.reaches, [value for _, _, value in rows])
    groups = grouped((group, (favored, value)) for group, favored, value in rows)
    decided = {group: members for group, members in groups.items() if len({favored for favored, _ in members}) == 2}
    cases = {group: _Case(claim, members) for group, members in decided.items()}
    quoted = f"The paper says “{claim.said}”"
    if claim.factor:
        sizes = [case.size for case in cases.values() if case.size is not None]
        several = f" in {len(sizes)} cases" if len(sizes) > 1 else ""
        return Statement(f"{quoted}; here it is {_range(claim.column, sizes)}{several}.") if sizes else None
    if not cases:
        return None
    yes, no = ([group for group, case in cases.items() if case.holds is which] for which in (True, False))
    for_yes, for_no = (_evidence(claim, [cases[group] for group in some]) for some in (yes, no))
    limited = _limit(claim)
    in_all, in_any = (f" in {each} {len(cases)} cases" if len(cases) > 1 else "" for each in ("all", "any of"))
    if not no:
        return Statement(f"{quoted}; confirmed here{in_all}{for_yes}{limited}.", True)
    if not yes:
        return Statement(f"{quoted}; not confirmed here{in_any}{for_no}{limited}.", False)
    return Statement(
        f"{quoted}; confirmed here for {'; '.join(yes)}{for_yes}, but not for {'; '.join(no)}{for_no}{limited}.", False
    )


def _check_reached(claim: PaperClaim, reached: float, values: Sequence[float]) -> Statement | None:
    """Return whether every value is at least as good as claimed."""
    if not values:
        return None
    best = _best(claim.column)
    holds = all(best(value, reached) == value for value in values)
    return Statement(
        f"The paper says “{claim.said}”; {'confirmed' if holds else 'not confirmed'} here "
        f"({_range(claim.column, values)}, taking it to mean {written(claim.column, reached)} or better).",
        holds,
    )


def _limit(claim: PaperClaim) -> str:
    """Return the meaning of a claim's size, in parentheses; "" for a claim without one."""
    words = {"small means by at most": claim.at_most, "similar means by at most": claim.similar}
    words["it means by at least"] = claim.at_least
    return next((f" ({text} {_amount(claim.column, size)})" for text, size in words.items() if size is not None), "")


class _Case:
    """One group of a claim's rows: the best value of those that should be better beside the best, or worst, other."""

    def __init__(self, claim: PaperClaim, rows: Sequence[tuple[bool, float]]) -> None:
        best = _best(claim.column)
        worst = max if best is min else min
        own, others = ([value for favored, value in rows if favored is which] for which in (True, False))
        sized = claim.at_most or claim.similar
        self.own: float = best(own)
        self.other: float = (worst if sized else best)(others)
        better = best(self.own, self.other) == self.own
        if claim.similar is not None:
            gaps = [_gap(claim.column, self.own, value) for value in others]
            self.holds = max(gaps) <= claim.similar
            self.other = others[gaps.index(max(gaps))]
        else:
            gap, most = _gap(claim.column, self.own, self.other), claim.at_most
            self.holds = better and (claim.at_least or 0.0) <= gap and (most is None or gap <= most)
        self.size = self._size(claim.column)

    def _size(self, column: str) -> float | None:
        """Return how many times as fast the better ones are; of a ratio or a metric, their value."""
        if not is_time(column):
            return self.own
        return self.other / self.own if min(self.own, self.other) > 0 else None


def _evidence(claim: PaperClaim, cases: Sequence["_Case"]) -> str:
    """Return the numbers that decide a claim, in parentheses; "" if there are none."""
    column = claim.column
    if len(cases) == 1 and not is_time(column):
        return f" ({written(column, cases[0].own)} against {written(column, cases[0].other)})"
    sizes = [case.size for case in cases if case.size is not None and is_time(column)]
    return f" ({_who(claim)}{_range(column, sizes)})" if sizes else ""


def _who(claim: PaperClaim) -> str:
    """Return the settings that a claim compares, if it names both."""
    best, against = (
        describe_settings({name: value for name, value in settings.items() if name != "verb"})
        for settings in (claim.best, claim.against)
    )
    return f"{best} against {against}: " if best and against else ""


def _range(column: str, sizes: Iterable[float]) -> str:
    """Return the lowest and the highest of some sizes, or only one if both look the same."""
    low, *_, high = sorted([*sizes] * 2)
    if not is_time(column):
        return " to ".join(dict.fromkeys(written(column, size) for size in (low, high)))
    if high < 1:
        low, high = 1 / high, 1 / low
        return " to ".join(dict.fromkeys(f"{size:.3g}x" for size in (low, high))) + f" {SLOWER}"
    if low < 1:
        return f"from {1 / low:.3g}x {SLOWER} to {high:.3g}x {FASTER}"
    return " to ".join(dict.fromkeys(f"{size:.3g}x" for size in (low, high))) + f" {FASTER}"


def _gap(column: str, own: float, other: float) -> float:
    """Return the difference between two values: relative to the shorter for times, else absolute."""
    if not is_time(column):
        return abs(own - other)
    return max(own, other) / min(own, other) - 1 if min(own, other) > 0 else float("inf")


def _amount(column: str, size: float) -> str:
    scale, unit = metric_scale(column)
    if is_time(column):
        return f"{size:.0%}"
    return f"{size * scale:g} percentage points" if unit == "%" else f"{size:g}"


def _best_row(column: str, pairs: Sequence[Pair], in_paper: Mapping[str, float]) -> Statement:
    """Return a sentence on the row with the paper's best value, and the row with ours among those compared."""
    best = _best(column)
    word = "lowest" if best is min else "highest"
    theirs = best(in_paper, key=lambda label: in_paper[label])
    mine = best(pairs, key=lambda pair: pair.ours).label
    if theirs not in {pair.label for pair in pairs}:
        return Statement(f"The paper's {word} value is at {theirs}, which is not compared; ours is at {mine}.")
    if theirs == mine:
        return Statement(f"Both have the {word} value at {mine}.", True)
    return Statement(f"The {word} value is at {theirs} in the paper, at {mine} here.", False)


def _direction(column: str, before: float, after: float) -> int:
    """Return 1 for a rise, -1 for a fall, and 0 if a time stays the same within the variation of repeats."""
    if is_time(column) and min(before, after) > 0 and max(before, after) / min(before, after) < 1 + ALIKE:
        return 0
    return (after > before) - (after < before)


def _change(column: str, before: float, after: float) -> str:
    """Return a change in words: 1.98x slower, about as fast, from 98.10% to 97.20%."""
    if not is_time(column) or min(before, after) <= 0:
        return f"from {written(column, before)} to {written(column, after)}"
    direction = _direction(column, before, after)
    if not direction:
        return ALIKE_WORD
    return f"{max(before, after) / min(before, after):.3g}x {SLOWER if direction > 0 else FASTER}"


def _name(column: str) -> str:
    """Return the beginning of a sentence about a column."""
    name = "time" if column == "seconds" else SECONDS.get(column) or column.replace("_", " ")
    return name[0].upper() + name[1:]


def _best(column: str) -> Callable[..., Any]:
    """Return the function that finds the best value of a column."""
    return min if is_time(column) or lower_is_better(column) else max


HOST_SETTINGS = ("workers", "device", "batch_size", "pin", "threads", "verb")
"""Settings in which a row may differ from the one that it is compared with."""


LESS = 0.9
"""A speedup compares unlike results if a metric is worse by more than this factor."""


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
    """The predicted time where nothing was trained, or where folds were trained here for their metrics alone."""
    doubts: tuple[Doubt, ...] = ()
    """Reasons not to trust that time."""

    @property
    def clock(self) -> str:
        """Whether its times were measured or predicted; "" if there are none."""
        if self.predicted_seconds is not None:
            return "predicted"
        return self.runs[0].clock if self.runs else ""

    @property
    def done(self) -> bool:
        return bool(self.runs) or self.predicted_seconds is not None


@dataclass(frozen=True)
class ResultRow:
    """One row: the paper's numbers and ours, by column."""

    label: str
    settings: dict[str, Any]
    paper: dict[str, float] = field(default_factory=dict)
    """The paper's numeric values."""
    ours: dict[str, float] = field(default_factory=dict)
    clock: str = ""
    note: str = ""
    doubts: tuple[Doubt, ...] = ()
    """Reasons not to trust its time or speedup, as in comparisons."""
    in_paper: bool = False
    """Whether it is a row of the paper's table or a bar of its figure."""
    printed: dict[str, str] = field(default_factory=dict)
    """The paper's cells, if known: numbers with their unit, and words such as N/A."""
    selected: bool = False
    """Whether it is the best on the validation part, if the recipe selects one."""

    @property
    def paper_columns(self) -> set[str]:
        return {*self.paper, *self.printed}

    def text(self, column: str, who: str) -> str:
        """Return a number as text: ours with its unit, the paper's as it prints it; a dash if there is none."""
        if who == "paper":
            return _printed(self, column) if column in self.paper_columns else NOTHING
        return written(column, self.ours[column]) if column in self.ours else NOTHING

    @property
    def marked_label(self) -> str:
        """The label, with a mark if the row is doubtful, and whether it was selected."""
        label = f"{self.label} (selected)" if self.selected else self.label
        return f"{label} {DOUBT}" if self.doubts else label


def result_rows(recipe: Recipe, settings: Sequence[Setting]) -> list[ResultRow]:
    """Return the paper's rows with the runs that match them, then the settings that the paper has no row for."""
    left = list(settings)
    runs = list({run.id: run for setting in settings for run in setting.runs}.values())
    doubts = {run.id: row.doubts for row in make_rows(runs) for run in row.runs} if runs else {}
    rows = []
    for row in recipe.rows:
        matching = [item for item in left if _matches(row, item)]
        left = [item for item in left if item not in matching]
        rows.append(_row(recipe, row, matching, doubts))
    compared = "seconds_to_target" if "seconds_to_target" in recipe.show.columns else "seconds"
    rows = _with_ratios(rows + [_row(recipe, None, [item], doubts) for item in left], compared)
    return _with_selected(rows) if recipe.show.select else rows


def _row(
    recipe: Recipe, paper: PaperRow | None, matching: Sequence[Setting], doubts: dict[int, tuple[Doubt, ...]]
) -> ResultRow:
    """Return the row of the runs that match a row of the paper, or of a setting that the paper does not have."""
    runs = [run for item in matching for run in item.runs if run.status == "finished"]
    timed = [run for item in matching if item.predicted_seconds is None for run in item.runs if run in runs]
    metrics = [name for run in runs for name in run.metrics]
    validated = [f"validation_{name}" for name in metrics] if recipe.show.select else []
    shown = [*recipe.show.columns, *(claim.column for claim in recipe.claims)]
    ours: dict[str, float] = {}
    for name in dict.fromkeys([*metrics, *validated, *shown, "seconds"]):
        values = [value for run in (timed if is_timed(name) else runs) if (value := run_value(run, name)) is not None]
        if name == "seconds":
            values += [item.predicted_seconds for item in matching if item.predicted_seconds is not None]
        if values:
            ours[name] = fmean(values)
    clock = " and ".join(dict.fromkeys(item.clock for item in matching if item.clock))
    note = "; ".join(dict.fromkeys(text for item in matching for text in (item.reason, item.note) if text))
    of_runs = [doubt for run in timed for doubt in doubts.get(run.id, ())]
    doubted = tuple(dict.fromkeys([*of_runs, *(doubt for item in matching for doubt in item.doubts)]))
    note = note or ("" if matching else "was not run at this scale")
    settings = matching[0].settings | {"verb": matching[0].verb} if matching else {}
    if paper is None:
        return ResultRow(setting_label(matching[0]), settings, {}, ours, clock, note, doubted)
    return ResultRow(
        paper.label,
        settings | paper.settings,
        paper.numbers,
        ours,
        clock,
        note,
        doubted,
        in_paper=True,
        printed=paper.printed,
    )


def _matches(row: PaperRow, setting: Setting) -> bool:
    settings = setting.settings | {"verb": setting.verb}
    return all(settings.get(name) == value for name, value in row.settings.items())


def setting_label(setting: Setting) -> str:
    return describe_settings(setting.settings) or setting.verb


def setting_values(rows: Iterable[ResultRow], name: str) -> list[Any]:
    values: list[Any] = []
    for row in rows:
        if row.settings[name] not in values:
            values.append(row.settings[name])
    return values


def _with_selected(rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Select the row that is best on the validation part; the others lose their metrics on the test part."""
    metric = main_metric(name for row in rows for name in row.ours if f"validation_{name}" in row.ours)
    scored = [row for row in rows if f"validation_{metric}" in row.ours]
    if not scored:
        return list(rows)
    sign = -1 if lower_is_better(str(metric)) else 1
    best = max(scored, key=lambda row: sign * row.ours[f"validation_{metric}"])

    def untested(ours: dict[str, float]) -> dict[str, float]:
        return {
            name: value
            for name, value in ours.items()
            if f"validation_{name}" not in ours and not name.startswith("test_")
        }

    return [replace(row, selected=True) if row is best else replace(row, ours=untested(row.ours)) for row in rows]


def _with_ratios(rows: list[ResultRow], compared: str) -> list[ResultRow]:
    """Add speedup = T1/Tn, PI = (T1-Tn)/T1 x 100 and gain = Tslowest/Tn x 100.

    If a recipe shows the times to the target, these are used, which makes the accuracies equal. Only times of the
    same clock are compared: measured with measured, predicted with predicted.
    """
    for row in rows:
        alike = [other for other in rows if other.clock == row.clock and compared in other.ours]
        if compared not in row.ours or not row.ours[compared] or len(alike) < 2:
            continue
        own = row.ours[compared]
        row.ours["gain"] = 100 * max(other.ours[compared] for other in alike) / own
        first = _first(row, alike, rows)
        if first is not None:
            time = first.ours[compared]
            row.ours.update(speedup=time / own, PI=100 * (time - own) / time)
    return rows


def _first(row: ResultRow, alike: Sequence[ResultRow], rows: Sequence[ResultRow]) -> ResultRow | None:
    """Return the row whose time is T1: of those with one worker the one most similar; None if these have no time.

    If no row has one worker, it is the first row.
    """
    alone = [other for other in alike if other.settings.get("workers") == 1]
    if not alone and any(other.settings.get("workers") == 1 for other in rows):
        return None
    names = [name for name in row.settings if name not in HOST_SETTINGS]

    def similarity(other: ResultRow) -> tuple[int, bool]:
        agreeing = sum(other.settings.get(name) == row.settings[name] for name in names)
        return agreeing, other.settings.get("device") == row.settings.get("device")

    return max(alone or alike[:1], key=similarity)


Verdict = Literal["agrees", "differs", "no number to compare", "needs a GPU", "unreliable times", "not run"]


class RecipeResult:
    """The numbers of a recipe beside the paper's: as a table, as a page, and in sentences about their agreement."""

    def __init__(self, recipe: Recipe, scale: Scale, settings: Sequence[Setting], problem: str = "") -> None:
        self.recipe = recipe
        self.scale = scale
        self.settings = list(settings)
        self.rows = result_rows(recipe, self.settings)
        self.problem = problem
        """The reason why the recipe could not be run at all."""

    @property
    def complete(self) -> bool:
        return not self.problem and all(setting.done for setting in self.settings)

    def missing(self) -> list[str]:
        """Return the reasons for missing numbers, each with the settings that it applies to."""
        labels_by_reason = grouped(
            (setting.reason, setting_label(setting)) for setting in self.settings if setting.reason
        )
        listed = [f"{reason} ({name_some(labels, MOST_NAMED)})" for reason, labels in labels_by_reason.items()]
        return ([self.problem] if self.problem else []) + listed

    def agreement(self) -> list[str]:
        """Return sentences, computed from the numbers, on where the paper's and ours agree or differ."""
        return [finding.text for finding in self.findings()]

    def findings(self) -> list[Statement]:
        statements: list[Statement] = []
        for column in self.recipe.show.columns:
            both = [row for row in self.rows if column in row.paper and column in row.ours]
            if column in RATIOS:  # where the paper has the times, a ratio of them says nothing more
                both = [row for row in both if "seconds" not in row.paper]
            rows = _of_one_clock(column, both)
            pairs = [Pair(row.label, row.paper[column], row.ours[column], _printed(row, column)) for row in rows]
            in_paper = {row.label: row.paper[column] for row in self.rows if column in row.paper}
            statements += _with_doubts(compare_column(column, pairs, in_paper), column, rows)
        for claim in self.recipe.claims:
            rows = _of_one_clock(claim.column, _claimed(claim, self.rows))
            groups = [{name: row.settings[name] for name in claim.each if name in row.settings} for row in rows]
            checked = check_claim(
                claim,
                [
                    (describe_settings(group), _is_favored(claim, row), row.ours[claim.column])
                    for row, group in zip(rows, groups, strict=True)
                ],
            )
            undecided = f"The paper says “{claim.said}”; the rows that would decide it were not run here."
            statements += _with_doubts([checked or Statement(undecided)], claim.column, rows if checked else ())
        if statements or not self.recipe.blocks:
            return statements
        why = "our copy of the paper has no numbers for these rows"
        if not any(row.ours for row in self.rows):
            why = "nothing could be run here"
        elif any(row.paper for row in self.rows):
            why = "the rows that the paper has numbers for could not be run here"
        return [Statement(f"Nothing is compared: {why}.")]

    @property
    def verdict(self) -> Verdict:
        """Whether the paper's numbers and ours agree, or why nothing can be said."""
        verdicts = [finding.agrees for finding in self.findings() if finding.agrees is not None]
        if verdicts:
            return "agrees" if all(verdicts) else "differs"
        if any(statement.doubtful for statement in self.findings()):
            return "unreliable times"
        if any(NEEDS["gpu"] in setting.reason for setting in self.settings):
            return "needs a GPU"
        if self.problem or (self.settings and not any(setting.done for setting in self.settings)):
            return "not run"
        return "no number to compare"

    def notes(self) -> list[str]:
        """Return notes for the reader: the scale, predicted times, and why rows are missing."""
        size = self.recipe.scales.get(self.scale, Size())
        fields = ", ".join(f"{name} = {value}" for name, value in size.fields.items())
        fewer = [f"{name} in {', '.join(map(field_value, values))}" for name, values in size.vary.items()]
        sized = "; ".join([*([fields] if fields else []), *fewer]) or "as in the paper"
        notes = [f"scale {self.scale}: {sized}"] if self.settings else []
        notes += [self.recipe.paper.note] if self.recipe.paper.note else []
        notes += [_this_machine()] if self.recipe.show.machine else []
        doubts = {doubt for row in self.rows for doubt in row.doubts}
        notes += [f"{DOUBT} {text}" for doubt, text in DOUBTS.items() if doubt in doubts]
        notes += [
            f"{name.replace('_', ' ')}: {EXPLAINED[name]}" for name in self.recipe.show.columns if name in EXPLAINED
        ]
        notes += self._warnings()
        notes += [f"selected: {row.label}, the best on the validation part" for row in self.rows if row.selected]
        notes += [f"it could not be run: {self.problem}"] if self.problem else []
        labels_by_note = grouped((row.note, row.label) for row in self.rows if row.note)
        return notes + [f"{name_some(labels, MOST_NAMED)}: {note}" for note, labels in labels_by_note.items()]

    def _warnings(self) -> list[str]:
        """Return a sentence for each row that is faster than one worker but learns much less."""
        columns = self.recipe.show.columns
        metric = next((name for name in columns if not is_timed(name)), None)
        if metric is None or "seconds_to_target" in columns or not {"speedup", "PI"} & set(columns):
            return []
        warnings = []
        for row in self.rows:
            alike = [other for other in self.rows if other.clock == row.clock and metric in other.ours]
            first = _first(row, alike, self.rows) if alike else None
            if first is None or metric not in row.ours or row.ours.get("speedup", 0.0) <= 1:
                continue
            before, after = first.ours[metric], row.ours[metric]
            if after > before / LESS if lower_is_better(metric) else after < before * LESS:
                warnings.append(
                    f"A speedup of {row.ours['speedup']:.3g}x with an unequal result: {metric.replace('_', ' ')} is "
                    f"{written(metric, after)} with {row.label}, {written(metric, before)} with {first.label}."
                )
        return warnings

    def crosstables(self) -> list[TextTable]:
        """Return our numbers by two settings, a table for each column, if the paper has such tables."""
        show = self.recipe.show
        rows = [row for row in self.rows if {show.over, show.across} <= set(row.settings)] if show.across else []
        down, across = (setting_values(rows, name) for name in (show.over, show.across))
        tables, quoted = [], any(row.paper_columns for row in self.rows)
        for column in show.columns:
            places = {(str(row.settings[show.over]), str(row.settings[show.across])): row for row in rows}
            cells = [
                (
                    describe_settings({show.over: item}),
                    *(
                        places[str(item), str(two)].text(column, "ours") if (str(item), str(two)) in places else NOTHING
                        for two in across
                    ),
                )
                for item in down
            ]
            heads = ["", *(describe_settings({show.across: two}) for two in across)]
            if any(column in row.ours for row in rows):
                tables.append(TextTable(heads, cells, _head(column, "ours", quoted)))
        return tables

    def table_rows(self) -> list[ResultRow]:
        """Return the rows of the table: those of the paper, and those with numbers; notes name the others.

        Each is shown once: a single worker is the same setting with every strategy.
        """
        rows = [same[0] for same in grouped(((row.label, row.clock), row) for row in self.rows).values()]
        return [row for row in rows if row.in_paper or row.ours] or rows

    def table(self) -> TextTable:
        """Return the numbers: ours beside the paper's, if the paper has any.

        A column that only the paper has, such as an accuracy where we measure another metric, is the paper's alone.
        """
        rows = self.table_rows()
        quoted = {name for row in rows for name in row.paper_columns}
        ours = {name for row in rows for name in row.ours}
        pairs = [
            (name, who)
            for name in self.recipe.show.columns
            for who in ("paper", "ours")
            if (name in quoted if who == "paper" else name in ours or name not in quoted or is_timed(name))
        ]
        heads = ["", *(_head(name, who, bool(quoted)) for name, who in pairs), "time"]
        cells = [[row.marked_label, *(row.text(name, who) for name, who in pairs), row.clock] for row in rows]
        return TextTable(heads, cells, f"{self.recipe.name}: {self.recipe.title}")

    def to_markdown(self) -> str:
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
        tables = [item.to_rich() for item in (table, *self.crosstables())]
        return Group(*tables, *map(Text, [*self.agreement(), *self.notes()]))

    def __repr__(self) -> str:
        done = sum(setting.done for setting in self.settings)
        return f"<RecipeResult {self.recipe.name}: {done} of {len(self.settings)} settings>"


def _of_one_clock(column: str, rows: Sequence[ResultRow]) -> list[ResultRow]:
    """Return the rows to compare: of times only measured or only predicted ones, whichever are more."""
    clocks = [row.clock for row in rows]
    most = max(clocks, key=clocks.count, default="")
    return [row for row in rows if row.clock == most or not is_timed(column)]


def _claimed(claim: PaperClaim, rows: Iterable[ResultRow]) -> list[ResultRow]:
    """Return the rows that a claim is about: those with its column and, if it is made for `each`, such a setting."""
    return [
        row
        for row in rows
        if claim.column in row.ours
        and (_is_favored(claim, row) or _has(row, claim.against))
        and (not claim.each or any(name in row.settings for name in claim.each))
    ]


def _is_favored(claim: PaperClaim, row: ResultRow) -> bool:
    return _has(row, claim.best) if claim.best else not _has(row, claim.against)


def _has(row: ResultRow, settings: Mapping[str, Any]) -> bool:
    return all(row.settings.get(name) == value for name, value in settings.items())


def _with_doubts(statements: Sequence[Statement], column: str, rows: Iterable[ResultRow]) -> list[Statement]:
    """Return sentences about a column; those that rest on times that should not be trusted say so, without verdict."""
    if not statements or not is_timed(column) or not any(row.doubts for row in rows):
        return list(statements)
    *others, last = [item._replace(agrees=None, doubtful=item.agrees is not None) for item in statements]
    return [*others, last._replace(text=f"{last.text} Some of our times are unreliable ({DOUBT}).")]


def _printed(row: ResultRow, column: str) -> str:
    return row.printed.get(column) or written(column, row.paper[column])


def _head(column: str, who: str, quoted: bool) -> str:
    """Return a heading, which says whose numbers these are where the table also has numbers of the paper."""
    return column.replace("_", " ") + (f", {who}" if quoted else "")


def _this_machine() -> str:
    import psutil

    from tenfold.machine import cores, devices
    from tenfold.machine.metadata import processor_name

    memory = psutil.virtual_memory().total / 2**30
    gpus = ", ".join(gpu.name for gpu in devices.gpus()) or "no GPU"
    return f"This machine: {processor_name()}, {cores.budget()} usable cores, {memory:.0f} GiB of memory, {gpus}."
