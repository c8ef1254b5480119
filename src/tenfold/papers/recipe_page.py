"""The page of a recipe: the paper beside ours, and a drawing of how the data are divided."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args

from tenfold.crossval.fold import FoldMode
from tenfold.experiment import Experiment
from tenfold.papers.recipe_result import RecipeResult, ResultRow, Verdict, setting_values, written
from tenfold.reports.charts import (
    BLUE,
    GREEN,
    MARKERS,
    ORANGE,
    SERIES,
    BarPart,
    BarTable,
    Chart,
    ChartLine,
    ChartPoint,
    LineChart,
)
from tenfold.reports.comparison_rows import is_time, is_timed
from tenfold.reports.differences import describe_settings
from tenfold.reports.formatting import field_value, joined, metric_scale, plural
from tenfold.reports.pages.page import page_figures, render_template, save_page
from tenfold.reports.summary import HOW_RUN, PREDICTED

MOST_FOLDS = 10
"""At most this many models are drawn; the others look the same."""
GAPPED = 0.985
"""The share of a node's shard that is drawn, to leave gaps between shards."""
TRAINED, VALIDATED, TESTED = 0, 1, 2
NAMES = ("trained on", "validated on", "test part, held out")
COLORS = (BLUE, GREEN, ORANGE)


def parallel_plot(experiment: Experiment) -> BarTable:
    """Return the drawing: a row for each node, or for each fold if the experiment has folds."""
    workers, folds = experiment.parallel.workers, experiment.parallel.folds
    held = 1 - (experiment.data.test_fraction or 0.2)
    rows = _shards(workers, held) if folds is None else _folds(experiment, folds, held)
    used = (TRAINED, TESTED) if folds is None else (TRAINED, VALIDATED, TESTED)
    counted = f"{workers} nodes" + (f", {folds} folds" if folds is not None else "")
    return BarTable(
        title=f"how the data are divided: {counted}; the width is all samples",
        measures=[""],
        zeros=[0.0],
        series=[(NAMES[item], COLORS[item]) for item in used],
        rows=[(name, [[_part(used.index(kind), *ends, name) for kind, ends in parts]]) for name, parts in rows],
        one_line=True,
    )


Parts = list[tuple[int, tuple[float, float]]]
"""The use of a range of samples; its ends are shares of all samples."""


def _shards(workers: int, held: float) -> list[tuple[str, Parts]]:
    share = held / workers
    return [
        (f"node {node + 1}", [(TRAINED, (node * share, (node + 1) * share)), (TESTED, (held, 1.0))])
        for node in range(workers)
    ]


def _folds(experiment: Experiment, folds: int, held: float) -> list[tuple[str, Parts]]:
    """Return the parts of each fold's models; with data-and-folds each node divides its own shard into folds."""
    nodes = experiment.parallel.workers if FoldMode.of(experiment).by_node else 1
    share = held / nodes
    rows: list[tuple[str, Parts]] = []
    for fold in range(min(folds, MOST_FOLDS)):
        parts: Parts = []
        for node in range(nodes):
            first, whole = node * share, share * (1.0 if nodes == 1 else GAPPED)
            begin, end = first + fold * whole / folds, first + (fold + 1) * whole / folds
            trained = [(first, begin), (end, first + whole)]
            parts += [(TRAINED, ends) for ends in trained if ends[1] - ends[0] > 1e-9] + [(VALIDATED, (begin, end))]
        rows.append((f"fold {fold + 1}", [*parts, (TESTED, (held, 1.0))]))
    return rows


def _part(series: int, begin: float, end: float, name: str) -> BarPart:
    return BarPart(series=series, begin=begin, end=end, note=f"{name}: {end - begin:.1%} of the samples")


Who = Literal["ours", "paper"]
WHO: tuple[Who, ...] = ("ours", "paper")
PAPER_DASH = (6.0, 4.0)
PAPER_COLOR, PAPER_MARKER = ORANGE, "D"
"""The color and marker of the paper's bars and lines; none of our lines use them."""
OUR_COLORS = [color for color in SERIES if color != PAPER_COLOR]
OUR_MARKERS = [marker for marker in MARKERS if marker != PAPER_MARKER]
NARROW = 0.25
"""Bars of a metric whose values all lie within this share of the highest do not begin at zero."""
UNITS = {"PI": (1, "%"), "gain": (1, "%"), "speedup": (1, "x")}
"""The factor by which a column's values are drawn, and their unit."""
WIDE_RANGE = 8
"""The horizontal axis is logarithmic if its last value is at least this many times the first."""


def recipe_plots(result: RecipeResult) -> list[Chart]:
    show = result.recipe.show
    columns = [name for name in show.columns if any(name in row.ours for row in result.rows)]
    if show.plot not in ("bars", "lines") or not columns:
        return []
    placed = [row for row in result.rows if show.over in row.settings]
    if show.plot == "lines" and placed:
        styles = _styles(placed, columns, show.over)
        quoted = any(row.paper for row in placed)
        drawn = {name: [row for row in placed if _has(row, name)] for name in columns}
        return [_lines(rows, name, show.over, styles, quoted=quoted) for name, rows in drawn.items() if rows]
    return [_bars([row for row in result.rows if any(_has(row, name) for name in columns)], columns)]


def _has(row: ResultRow, column: str) -> bool:
    return column in row.ours or column in row.paper


def _bars(rows: Sequence[ResultRow], columns: Sequence[str]) -> BarTable:
    quoted = any(row.paper for row in rows)
    scales = [_Scale(rows, column) for column in columns]
    return BarTable(
        title="the paper's numbers and ours" if quoted else "our numbers",
        measures=[scale.heading for scale in scales],
        zeros=[scale.zero for scale in scales],
        series=[("ours", BLUE), ("paper", PAPER_COLOR)][: 2 if quoted else 1],
        rows=[(row.marked_label, [scale.parts(row) for scale in scales]) for row in rows],
        stripes=PREDICTED if any(row.clock == PREDICTED for row in rows) and any(map(is_timed, columns)) else "",
    )


class _Scale:
    """The bars of one column: on one scale, unless the paper's times and ours differ by more than a factor of ten."""

    def __init__(self, rows: Sequence[ResultRow], column: str) -> None:
        self.column = column
        values = {who: [getattr(row, who)[column] for row in rows if column in getattr(row, who)] for who in WHO}
        self.common = not is_time(column) or _one_scale(values["ours"], values["paper"])
        most = {who: max(map(abs, drawn), default=0.0) or 1.0 for who, drawn in values.items()}
        self._most = dict.fromkeys(WHO, max(most[who] for who in WHO if values[who])) if self.common else most
        least = min((value / self._most[who] for who in WHO for value in values[who]), default=0.0)
        self.zero = max(0.0, -least) / (1 + max(0.0, -least))
        """The position of zero, as a share of the width."""
        self._start = 0.0 if is_timed(column) else _start([*values["ours"], *values["paper"]])
        name = column.replace("_", " ")
        self.heading = name if self.common else f"{name}, the paper's and ours each on its own scale"
        if self._start:
            self.heading += f", bars begin at {written(column, self._start)}"

    def parts(self, row: ResultRow) -> list[BarPart]:
        return [self._part(row, at, who) for at, who in enumerate(WHO) if self.column in getattr(row, who)]

    def _part(self, row: ResultRow, series: int, who: Who) -> BarPart:
        value = getattr(row, who)[self.column]
        start = self._start
        end = self.zero + (1 - self.zero) * (value - start) / (self._most[who] - start)
        return BarPart(
            series=series,
            begin=min(self.zero, end),
            end=max(self.zero, end),
            text=row.text(self.column, who),
            note=_note(row, self.column, who),
            striped=who == "ours" and row.clock == PREDICTED and is_timed(self.column),
        )


def _start(values: Sequence[float]) -> float:
    """Return the start of a metric's bars: 0, or a round number that makes close values distinguishable."""
    if not values or len(set(values)) < 2 or min(values) <= 0:
        return 0.0
    low, high = min(values), max(values)
    if high - low > NARROW * high:
        return 0.0
    step = 10.0 ** math.floor(math.log10(high - low))
    return max(0.0, round(math.floor((low - (high - low) / 4) / step) * step, 12))


def _note(row: ResultRow, column: str, who: Who) -> str:
    where = f"{row.marked_label if who == 'ours' else row.label}\n{column.replace('_', ' ')}, {who}: "
    clock = f", {row.clock}" if who == "ours" and row.clock and is_timed(column) else ""
    return where + row.text(column, who) + clock


Family = tuple[Who, str, str]
"""Common properties of a line's points: whose numbers they are, the settings, and the clock of ours."""


def _styles(rows: Sequence[ResultRow], columns: Sequence[str], over: str) -> dict[Family, tuple[str, str]]:
    """Return the color and the marker of each line, the same in all plots of a recipe."""
    families = dict.fromkeys(
        family for column in columns for who in WHO for family in _families(rows, column, over, who)
    )
    ours = [family for family in families if family[0] == "ours"]
    styles = {
        family: (OUR_COLORS[at % len(OUR_COLORS)], OUR_MARKERS[at % len(OUR_MARKERS)]) for at, family in enumerate(ours)
    }
    return styles | {family: (PAPER_COLOR, PAPER_MARKER) for family in families if family not in ours}


def _name(family: Family, column: str, among: Sequence[Family], *, quoted: bool) -> str:
    """Return the name of a line in the legend; for metrics, the clock is included only if there are two."""
    who, settings, clock = family
    alone = sum(other[:2] == family[:2] for other in among) < 2
    made = clock if is_timed(column) else "" if alone else HOW_RUN.get(clock, clock)
    return joined(who if quoted else "", settings, made) or who


def _lines(
    rows: Sequence[ResultRow], column: str, over: str, styles: dict[Family, tuple[str, str]], *, quoted: bool
) -> LineChart:
    ours, paper = ([getattr(row, who)[column] for row in rows if column in getattr(row, who)] for who in WHO)
    ticks = _ticks(rows, over)
    named = not all(isinstance(x, int | float) for x in ticks)
    logarithmic = is_time(column) and not _one_scale(ours, paper) and min([*ours, *paper]) > 0
    factor, unit = (1, " s") if is_time(column) else UNITS.get(column) or metric_scale(column)
    lines: list[ChartLine] = []
    for who in WHO:
        families = _families(rows, column, over, who)
        for family, group in families.items():
            points = sorted(group, key=lambda row: ticks.index(row.settings[over]))
            color, marker = styles[family]
            lines.append(
                ChartLine.of(
                    _name(family, column, list(families), quoted=quoted),
                    [
                        ChartPoint(
                            ticks.index(row.settings[over]) if named else row.settings[over],
                            factor * getattr(row, who)[column],
                            _note(row, column, who),
                        )
                        for row in points
                    ],
                    color=color,
                    markers=[marker] * len(points),
                    fill="none" if who == "ours" and points[0].clock == PREDICTED and is_timed(column) else "full",
                    dash=PAPER_DASH if who == "paper" else (),
                )
            )
    chart = LineChart(
        title=column.replace("_", " ") + (" in %" if unit == "%" else ""),
        x_label=over.replace("_", " "),
        lines=lines,
        unit=unit,
        x_ticks=list(range(len(ticks))) if named else ticks,
        x_names=[field_value(x) for x in ticks] if named else (),
        y_range=(0.0 if (is_time(column) or column == "speedup") and not logarithmic else None, None),
        y_log=10 if logarithmic else 0,
    )
    wide = not named and ticks[0] > 0 and ticks[-1] / ticks[0] >= WIDE_RANGE
    return replace(chart, x_log=2 if all(isinstance(x, int) for x in ticks) else 10) if wide else chart


def _ticks(rows: Sequence[ResultRow], over: str) -> list[Any]:
    """Return the values of a setting, without duplicates: numbers in ascending order, then words."""
    values = setting_values(rows, over)
    numbers = [x for x in values if isinstance(x, int | float)]
    return sorted(numbers) + [x for x in values if x not in numbers]


def _families(rows: Sequence[ResultRow], column: str, over: str, who: Who) -> dict[Family, list[ResultRow]]:
    """Return the rows of each line: they agree in all settings except the one on the horizontal axis.

    A simulated run does the same arithmetic as a real one: if their metrics agree, they share one line.
    """
    families: dict[Family, list[ResultRow]] = {}
    for row in rows:
        if column in getattr(row, who):
            others: dict[str, Any] = {name: value for name, value in row.settings.items() if name not in (over, "verb")}
            clock = row.clock if who == "ours" else ""
            families.setdefault((who, describe_settings(others), clock), []).append(row)
    if is_timed(column):
        return families

    def points(rows: Sequence[ResultRow]) -> dict[str, float]:
        return {str(row.settings[over]): getattr(row, who)[column] for row in rows}

    def repeats(family: Family) -> bool:
        """Return whether another line with the same settings has all points of this one; of two, the first counts."""
        own, order = points(families[family]).items(), list(families)
        others = [other for other in order if other[:2] == family[:2] and other != family]
        return any(
            own < points(families[other]).items()
            or (own == points(families[other]).items() and order.index(other) < order.index(family))
            for other in others
        )

    return {family: group for family, group in families.items() if not repeats(family)}


def _one_scale(ours: Sequence[float], paper: Sequence[float]) -> bool:
    """Return whether both are legible on one axis: their largest values differ by less than a factor of ten."""
    largest = max(map(abs, paper), default=0.0), max(map(abs, ours), default=0.0)
    return not all(largest) or 0.1 < largest[0] / largest[1] < 10


def write(results: Sequence[RecipeResult], path: str | Path) -> Path:
    """Write the page of one or more recipes; with several, it begins with a table of contents."""
    charts: dict[str, Chart | None] = {}
    sections = [_section(result, charts) for result in results]
    recipe = results[0].recipe if len(results) == 1 else None
    content = {
        "title": f"{recipe.name}: {recipe.title}" if recipe else "The experiments of five papers",
        "details": [
            *([] if recipe else [plural(len(results), "recipe"), *_count_verdicts(results)]),
            f"scale {results[0].scale}",
        ],
        "truth": "Predicted times are marked in the column time; all others were measured",
        "papers": [] if recipe else _contents(results),
        "recipes": sections,
        "figures": page_figures([], [], charts) if charts else None,
    }
    return save_page(render_template("recipes.html", content), path)


def _contents(results: Sequence[RecipeResult]) -> list[dict[str, Any]]:
    """Return a card for each recipe, by paper: the table or figure, the verdict, and the sentence that decides it."""
    return [
        {
            "citation": citation,
            "recipes": [
                {
                    "name": member.recipe.name,
                    "place": member.recipe.paper.place,
                    "title": member.recipe.title,
                    "verdict": member.verdict,
                    "lead": _lead(member),
                }
                for member in group
            ],
        }
        for citation, group in groupby(results, key=lambda result: result.recipe.paper.citation)
    ]


def _lead(result: RecipeResult) -> str:
    """Return the sentence that a card shows: the first one that differs, else the first that agrees, else a reason."""
    findings = result.findings()
    for wanted in (False, True):
        if decisive := [finding.text for finding in findings if finding.agrees is wanted]:
            statements = sum(finding.agrees is not None for finding in findings)
            counted = f"{len(decisive)} of {statements} statements: " if statements > 1 else ""
            return counted + decisive[0]
    if doubtful := [statement.text for statement in findings if statement.doubtful]:
        return doubtful[0]
    return next(iter([*result.missing(), *(finding.text for finding in findings)]), "")


def _count_verdicts(results: Sequence[RecipeResult]) -> list[str]:
    verdicts = [result.verdict for result in results]
    return [f"{verdicts.count(verdict)} × {verdict}" for verdict in get_args(Verdict) if verdict in verdicts]


def _section(result: RecipeResult, charts: dict[str, Chart | None]) -> dict[str, Any]:
    recipe = result.recipe
    table = result.table()
    drawn: list[Chart] = [parallel_plot(Experiment(**recipe.experiment))] if recipe.show.plot == "parallel" else []
    drawn += recipe_plots(result)
    named = {f"{recipe.name}-{at}": chart for at, chart in enumerate(drawn)}
    charts |= named
    return {
        "name": recipe.name,
        "title": recipe.title,
        "citation": recipe.paper.citation,
        "place": recipe.paper.place,
        "table": {
            "columns": [(name, False) for name in table.columns],
            "rows": [("", line, row.doubts) for row, line in zip(result.table_rows(), table.rows, strict=True)],
            "optional": (),
        },
        "crosstables": result.crosstables(),
        "bars": [name for name, chart in named.items() if isinstance(chart, BarTable)],
        "lines": [name for name, chart in named.items() if not isinstance(chart, BarTable)],
        "agreement": result.findings(),
        "notes": result.notes(),
    }
