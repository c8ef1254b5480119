"""The rows of a recipe: the paper's numbers, and those of the runs that were made with the same settings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from tenfold.common.metric_table import lower_is_better, main_metric
from tenfold.recipes.recipe import PaperRow, Recipe
from tenfold.report.differences import describe_settings
from tenfold.report.rows import Doubt, make_rows
from tenfold.report.run_values import run_value
from tenfold.report.tables.columns import DOUBT
from tenfold.runs import Run

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
