"""Tables of text and of settings: the columns of a comparison, and two settings across each other."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tenfold.common import PARTS
from tenfold.reports import summary
from tenfold.reports.comparison_rows import (
    EXPLAINED,
    RATIOS,
    SECONDS,
    TIMES,
    Interval,
    Row,
    Spread,
    is_time,
    is_timed,
    run_value,
    spread_of,
)
from tenfold.reports.differences import CLUSTER_FIELDS, LAUNCHER, MIXING_FIELDS, describe_settings
from tenfold.reports.formatting import (
    NOTHING,
    byte_size,
    field_value,
    joined,
    metric_scale,
    metric_value,
    one_line,
    significant_decimals,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class TextTable:
    """Headings and rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    totals: int = 0
    """The number of total rows at the end; a terminal separates them and prints them in bold."""

    def shades(self) -> list[list[float]]:
        """Return the leading number of each cell, scaled from 0 (the lowest) to 1 (the highest)."""
        numbers = [[_leading_number(cell) for cell in row[1:]] for row in self.rows]
        shown = [number for row in numbers for number in row if number is not None]
        low, high = min(shown, default=0.0), max(shown, default=0.0)
        return [
            [(number - low) / (high - low) if number is not None and high > low else 0.0 for number in row]
            for row in numbers
        ]

    def to_markdown(self) -> str:
        """Return the table as Markdown, without its title."""
        lines = ["| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def to_rich(self, words: int = 1, caption: str | None = None) -> "Table":
        """Return the table for a terminal; the first `words` columns are aligned left, the others right."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, caption=caption, caption_justify="left")
        table.title, table.title_justify, table.title_style = self.title or None, "left", "bold"
        for at, name in enumerate(self.columns):
            table.add_column(Text(name), justify="left" if at < words else "right")
        first_total = len(self.rows) - self.totals
        for at, row in enumerate(self.rows):
            if self.totals and at == first_total:
                table.add_section()
            table.add_row(*(Text(cell, style="bold" if at >= first_total else "") for cell in row))
        return table


def _leading_number(cell: str) -> float | None:
    try:
        return float(cell.replace(",", "").split()[0])
    except (ValueError, IndexError):
        return None


CROSSED = ("folds", "workers")


def heat_maps(rows: Sequence[Row]) -> list[TextTable]:
    """Return the tables of two varied settings, a row for each value of one and a column for each of the other."""
    varied = list(rows[0].settings) if rows else []
    if len(varied) != 2 or set(varied) == set(CROSSED):
        return []
    return make_crosstables(rows, (varied[1], varied[0]))


def make_crosstables(rows: Sequence[Row], axes: tuple[str, str] = CROSSED) -> list[TextTable]:
    """Return tables of the times and of each metric over two settings, for every combination of the others."""
    if not rows or not set(axes) <= set(rows[0].settings):
        return []
    cells = [time_column(rows), *metric_columns(rows)]
    families: list[tuple[str, dict[str, Any]]] = []
    for row in rows:
        family = row.clock, {name: value for name, value in row.settings.items() if name not in axes}
        if family not in families and (row.workers > 1 or not any(name in MIXING_FIELDS for name in family[1])):
            families.append(family)
    tables = []
    for clock, other in families:
        belonging = [  # a single worker matches every strategy
            (at, row)
            for at, row in enumerate(rows)
            if row.clock == clock
            and all(row.settings[name] == value or _has_no_effect(row, name) for name, value in other.items())
        ]
        down, across = (_values(name, [row for _, row in belonging]) for name in axes)
        places = {
            place: at
            for at, row in belonging
            for place in product(_matching(row, axes[0], down), _matching(row, axes[1], across))
        }
        if min(len(down), len(across)) < 2:
            continue
        for column in cells:
            title = f"{column.name}, {clock}" if column is cells[0] else column.name
            title = f"{title}, {summary.INTERVAL}" if column is cells[0] and clock == summary.PREDICTED else title
            lines = [
                (item, *(column.cells[places[item, other]] if (item, other) in places else NOTHING for other in across))
                for item in down
            ]
            tables.append(TextTable(["", *across], lines, joined(describe_settings(other), title)))
    return tables


def _values(name: str, rows: Sequence[Row]) -> list[str]:
    """Return the values of a setting as text, in order, without those that have no effect on their row."""

    def order(row: Row) -> tuple[bool, float, str]:  # missing values, numbers by value, text alphabetically
        value = row.settings[name]
        number = isinstance(value, int | float)
        return not number and value is not None, float(value) if number else 0.0, str(value)

    ordered = sorted(rows, key=order)
    return list(dict.fromkeys(_label(name, row.settings[name]) for row in ordered if not _has_no_effect(row, name)))


def _matching(row: Row, name: str, values: Sequence[str]) -> Sequence[str]:
    """Return the values of a setting that a row represents: all values if the setting has no effect on the row."""
    return values if _has_no_effect(row, name) else [_label(name, row.settings[name])]


def _has_no_effect(row: Row, name: str) -> bool:
    """Return whether a field only affects averaging and the row has a single worker."""
    return row.workers == 1 and name in MIXING_FIELDS


def _label(name: str, value: Any) -> str:
    return describe_settings({name: value}) or ("no folds" if name == "folds" else f"{name} {field_value(value)}")


SENT = "sent"
SHARES = "compute/wait/communicate %"
HOST_FIELDS = ("workers", "threads")
UNITS = ((1.0, 1e3, "ms"), (600.0, 1.0, "s"), (math.inf, 1 / 60, "min"))
"""Units of time: the largest number of seconds shown in the unit, the units per second, and the unit's name."""
WIDE_RANGE = 100
"""If the largest mean exceeds the smallest by more than this factor, each gets its own number of decimals."""
RECORDED = "recorded"
OPTIONAL = (SHARES, SENT, "gain %", "PI %", "efficiency %", RECORDED)
"""Columns that are omitted on a narrow terminal, in this order."""
DOUBT = "!"
"""Marks a row whose time or speedup should not be trusted."""


@dataclass(frozen=True)
class Column:
    """A heading, a short heading, and cells."""

    name: str
    short: str
    cells: Sequence[str]
    words: bool = False
    """Whether the column holds text, which is left-aligned."""

    def heading(self, broken: bool) -> str:
        """Return the short heading; if `broken`, a heading wider than the cells is split into several lines."""
        widest = max(map(len, self.cells), default=0)
        return self.short.replace(" ", "\n") if broken and len(self.short) > widest else self.short


def table_width(columns: Sequence[Column], gap: int, broken: bool) -> int:
    """Return the width at which no cell wraps."""
    lines = [(*column.cells, *column.heading(broken).splitlines()) for column in columns]
    return sum(max(map(len, listed), default=0) + gap for listed in lines) - gap


def comparison_columns(rows: Sequence[Row]) -> list[Column]:
    alone = all(row.workers == 1 for row in rows)
    columns = [*setting_columns(rows), time_column(rows), *_to_target(rows), *_origin_columns(rows)]
    if not alone:
        columns += [ratio_column(rows, name) for name in ("speedup", "efficiency", "PI")]
    columns.append(ratio_column(rows, "gain"))
    if any(row.factor_against_cpu is not None for row in rows):
        columns.append(_column("factor against cpu", "× cpu", rows, lambda row: _number(row.factor_against_cpu, ".2f")))
    columns += metric_columns(rows)
    if not alone:
        columns.append(
            _column(SENT, SENT, rows, lambda row: byte_size(row.bytes_per_worker) if row.bytes_per_worker else NOTHING)
        )
        columns.append(_column(SHARES, "c/w/c %", rows, _shares))
    return columns


def setting_columns(rows: Sequence[Row]) -> list[Column]:
    """Return columns for the workers (doubtful rows are marked), the fields that differ, and the selected row."""
    no_mark = " " * (1 + len(DOUBT)) if any(row.doubts for row in rows) else ""

    def hosts(row: Row) -> str:
        counts = f"{row.workers} × {row.threads}" if row.threads else f"{row.workers}"
        return counts + (f" {DOUBT}" if row.doubts else no_mark)

    columns = [_column("workers × threads" if any(row.threads for row in rows) else "workers", "workers", rows, hosts)]
    for name in (name for name in (rows[0].settings if rows else ()) if name not in HOST_FIELDS):
        cells = [NOTHING if is_meaningless(row, name) else field_value(row.settings[name]) for row in rows]
        words = not all(isinstance(row.settings[name], int | float) for row in rows)
        columns.append(Column(name.replace("_", " "), name.replace("_", " "), cells, words))
    if any(row.selected for row in rows):
        columns.append(_column("selected", "selected", rows, lambda row: "yes" if row.selected else ""))
    return columns


def _origin_columns(rows: Sequence[Row]) -> list[Column]:
    """Return columns that mark predicted times and rows recorded before the comparison, if there are any."""

    def when(row: Row) -> str:
        return "now" if not row.reused else "before" if row.reused == len(row.runs) else f"{row.reused} before"

    clocks = [row.clock if row.calibrated else f"{row.clock}, uncalibrated" for row in rows]
    columns = [Column("clock", "clock", clocks, words=True)] if set(clocks) - {summary.MEASURED} else []
    return columns + ([_column(RECORDED, RECORDED, rows, when)] if any(row.reused for row in rows) else [])


def ratio_column(rows: Sequence[Row], name: str) -> Column:
    """Return the values of a ratio, by its name in RATIOS."""
    ratio = RATIOS[name]
    return _column(
        ratio.heading, ratio.short, rows, lambda row: _number(getattr(row, ratio.field), ratio.form, ratio.factor)
    )


def time_unit(longest: float) -> tuple[float, str]:
    """Return a suitable unit for times up to this many seconds: the units per second, and the unit's name."""
    return next((factor, unit) for limit, factor, unit in UNITS if longest < limit)


def time_column(rows: Sequence[Row]) -> Column:
    """Return the training times in one unit, predicted ones with their interval."""
    return seconds_column("training time", "time", [row.seconds for row in rows], [row.interval for row in rows])


def seconds_column(
    name: str, short: str, spreads: Sequence[Spread], intervals: Sequence[Interval | None] | None = None
) -> Column:
    """Return times in a unit that suits the longest of them."""
    factor, unit = time_unit(max((spread.mean for spread in spreads if spread.mean is not None), default=1.0))
    return Column(f"{name}, {unit}", f"{short}, {unit}", spread_cells(spreads, factor, intervals=intervals))


def _to_target(rows: Sequence[Row]) -> list[Column]:
    """Return the training time to the target and its speedup; empty if there is no target."""
    if all(row.experiment.training.target is None for row in rows):
        return []
    times = seconds_column("time to target", "target", [row.seconds_to_target for row in rows])
    columns = [replace(times, cells=[reached_by(row, text) for row, text in zip(rows, times.cells, strict=True)])]
    if any(row.workers > 1 for row in rows):
        columns.append(
            _column("speedup to target", "target speedup", rows, lambda row: _number(row.target_speedup, ".2f"))
        )
    return columns


def reached_by(row: Row, seconds: str) -> str:
    count, runs = len(row.seconds_to_target.values), len(row.runs)
    if count == runs:
        return seconds
    return f"{seconds} ({count} of {runs})" if count else "not reached"


def metric_columns(rows: Sequence[Row]) -> list[Column]:
    """Return the final metrics, or the loss if there is no other; on two parts if a row was selected."""
    names = list(dict.fromkeys(name for row in rows for name in row.metrics))
    names = [name for name in names if name != "loss"] or names
    part = common_part(rows)
    if not any(row.selected for row in rows):
        return [metric_column(name, part, [row.metrics.get(name, Spread()) for row in rows]) for name in names]
    columns = []
    for name in names:
        of_part = [row.metrics.get(name, Spread()) for row in rows]
        of_test = [row.test_metrics.get(name, Spread()) for row in rows]
        columns += [metric_column(name, part, of_part, named=True), metric_column(name, "test", of_test, named=True)]
    return columns


def common_part(rows: Sequence[Row]) -> str:
    """Return the part of the data on which all metrics were measured; "" if there are several."""
    parts = {row.part for row in rows if row.metrics} or {"test"}
    return parts.pop() if len(parts) == 1 else ""


def metric_column(name: str, part: str, spreads: Sequence[Spread], *, named: bool = False) -> Column:
    """Return the values of a metric; on a terminal, the heading includes the part only if `named`."""
    text = one_line(name.replace("_", " "))
    scale, unit = metric_scale(name)
    if unit:
        text, cells = f"{text} {unit}", spread_cells(spreads, scale, 2)
    else:
        cells = [
            metric_value(name, item.mean) + (f" ± {item.deviation:.2g}" if item.deviation is not None else "")
            for item in spreads
        ]
    full = f"{part} {text}".strip()
    return Column(full, full if named else text, cells)


def is_meaningless(row: Row, name: str) -> bool:
    """Return whether a field does not apply: averaging for a single worker, or a virtual cluster that is not set."""
    absent = name in (*CLUSTER_FIELDS, LAUNCHER) and row.settings[name] is None
    return absent or _has_no_effect(row, name)


def _shares(row: Row) -> str:
    if not row.shares:
        return NOTHING
    return "/".join(f"{row.shares.get(kind, 0.0) * 100:.0f}" for kind in ("compute", "wait", "communicate"))


def spread_cells(
    spreads: Sequence[Spread],
    factor: float,
    decimals: int | None = None,
    intervals: Sequence[Interval | None] | None = None,
) -> list[str]:
    """Return means, deviations and intervals, all with the same number of decimals unless their range is wide."""
    means = [abs(spread.mean * factor) for spread in spreads if spread.mean]
    wide_range = bool(means) and max(means) > WIDE_RANGE * min(means)

    def shown(spread: Spread, interval: Interval | None) -> str:
        if spread.mean is None:
            return NOTHING
        places = (
            decimals
            if decimals is not None
            else significant_decimals(spread.mean * factor if wide_range else min(means, default=1))
        )
        text = f"{spread.mean * factor:.{places}f}"
        if spread.deviation is not None:
            text += f" ± {spread.deviation * factor:.{places}f}"
        if interval is not None:
            text += f" [{interval[0] * factor:.{places}f}-{interval[1] * factor:.{places}f}]"
        return text

    return [shown(*pair) for pair in zip(spreads, intervals or [None] * len(spreads), strict=True)]


def _number(value: float | None, form: str, factor: float = 1) -> str:
    return NOTHING if value is None else f"{value * factor:{form}}"


def _column(name: str, short: str, rows: Sequence[Row], cell: Callable[[Row], str]) -> Column:
    return Column(name, short, [cell(row) for row in rows])


def chosen_columns(rows: Sequence[Row], names: Sequence[str]) -> list[Column]:
    """Return the settings, the named columns, and columns that mark predicted times and previously recorded rows."""
    origins = _origin_columns(rows) if any(map(is_timed, names)) else []
    return [*setting_columns(rows), *(_chosen_column(rows, name) for name in names), *origins]


def explain_columns(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return lines that explain the columns, or the reasons why they are empty."""
    explanations = [f"{SECONDS[name]}: {EXPLAINED[name]}" for name in names if name in EXPLAINED]
    for name in names:
        part, _, metric = name.partition("_")
        words = f"{part} {metric.replace('_', ' ')}"
        if part not in PARTS or name in EXPLAINED or is_time(name):
            continue
        if not any(row_value(row, name).values for row in rows):
            why = "these runs did not record it" if part == "train" else f"the runs have no {part} part"
            explanations.append(f"no {words}: {why}")
        elif part == "train" and not any("spread" in run.result for row in rows for run in row.runs):
            explanations.append(f"{words}: on the batches of the last epoch, measured during training")
    return explanations


def row_value(row: Row, name: str) -> Spread:
    """Return a value over the repeats of a setting; empty for the test part if another setting was selected."""
    if name in RATIOS:
        return spread_of([getattr(row, RATIOS[name].field)])
    if name in row.metrics:
        return row.metrics[name]
    if row.selected is not None and name.startswith("test_"):
        return row.test_metrics.get(name.removeprefix("test_"), Spread())
    return spread_of(run_value(run, name) for run in row.runs)


def _chosen_column(rows: Sequence[Row], name: str) -> Column:
    if name == "seconds":
        return time_column(rows)
    if name in RATIOS:
        return ratio_column(rows, name)
    spreads = [row_value(row, name) for row in rows]
    if is_time(name):
        return seconds_column(TIMES[name], TIMES[name], spreads)
    part, _, metric = name.partition("_")
    if part in PARTS and not any(name in row.metrics for row in rows):
        return metric_column(metric, part, spreads, named=True)
    return metric_column(name, common_part(rows), spreads)
