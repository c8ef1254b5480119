"""The columns of a table of settings that somebody asked for by name."""

from collections.abc import Sequence

from tenfold.common.part_names import PARTS
from tenfold.report.rows import Row, Spread, spread_of
from tenfold.report.run_values import EXPLAINED, KIND_SECONDS, SECONDS, is_time, is_timed, run_value
from tenfold.report.tables.columns import (
    RATIO_FORMATS,
    Column,
    clock_columns,
    common_part,
    metric_column,
    ratio_column,
    recorded_columns,
    seconds_column,
    setting_columns,
    time_column,
)

TIME_HEADINGS = SECONDS | KIND_SECONDS


def chosen_columns(rows: Sequence[Row], names: Sequence[str]) -> list[Column]:
    """Return the settings, the columns of these names, and which times were predicted, or recorded before."""
    clocks = [*clock_columns(rows), *recorded_columns(rows)] if any(map(is_timed, names)) else []
    return [*setting_columns(rows), *(_column(rows, name) for name in names), *clocks]


def explain_columns(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Return lines that say what columns are, or why they are empty."""
    found = [f"{SECONDS[name]}: {EXPLAINED[name]}" for name in names if name in EXPLAINED]
    for name in names:
        part, _, metric = name.partition("_")
        words = f"{part} {metric.replace('_', ' ')}"
        if part not in PARTS or name in EXPLAINED or is_time(name):
            continue
        if not any(row_value(row, name).values for row in rows):
            why = "it is not counted in these runs" if part == "train" else f"the runs have no {part} part"
            found.append(f"no {words}: {why}")
        elif part == "train" and not any("spread" in run.result for row in rows for run in row.runs):
            found.append(f"{words}: on the batches of the last epoch, as they were trained on")
    return found


def row_value(row: Row, name: str) -> Spread:
    """Return a number of a setting over its repeats; on the test part nothing, if another setting was selected."""
    if name in RATIO_FORMATS:
        return spread_of([getattr(row, RATIO_FORMATS[name].field)])
    if name in row.metrics:
        return row.metrics[name]
    if row.selected is not None and name.startswith("test_"):
        return row.test_metrics.get(name.removeprefix("test_"), Spread())
    return spread_of(run_value(run, name) for run in row.runs)


def _column(rows: Sequence[Row], name: str) -> Column:
    if name == "seconds":
        return time_column(rows)
    if name in RATIO_FORMATS:
        return ratio_column(rows, name)
    spreads = [row_value(row, name) for row in rows]
    if is_time(name):
        return seconds_column(TIME_HEADINGS[name], TIME_HEADINGS[name], spreads)
    part, _, metric = name.partition("_")
    if part in PARTS and not any(name in row.metrics for row in rows):
        return metric_column(metric, part, spreads, named=True)
    return metric_column(name, common_part(rows), spreads)
