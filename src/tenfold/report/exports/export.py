"""The numbers of runs for other programs: CSV for spreadsheets and data frames, JSON for everything else."""

import json
from collections.abc import Sequence
from typing import Any

from tenfold.common.json_values import replace_nonfinite
from tenfold.report.exports.csv_table import write_csv
from tenfold.report.tables.fold_tables import name_of
from tenfold.runs import Run

COLUMNS = ("run", "title", "part", "metric", "epoch", "step", "seconds", "clock", "value")


def measurement_rows(run: Run) -> list[dict[str, Any]]:
    """Return one flat row for each measurement, in order; epochs count from 1, seconds are training time so far.

    `clock` says whether these were measured or predicted.
    """
    return [
        {
            "run": run.id,
            "title": run.title,
            "part": metric.part,
            "metric": metric.name,
            "epoch": metric.epoch + 1,
            "step": metric.step,
            "seconds": round(metric.seconds, 6),
            "clock": run.clock,
            "value": metric.value,
        }
        for metric in run.measurements()
    ]


def to_csv(runs: Sequence[Run]) -> str:
    """Return the rows of all runs as one CSV table with a header; for a cross-validation, the scores of each fold."""
    return write_csv(COLUMNS, [row for run in runs for row in measurement_rows(run) or _of_folds(run)])


def _of_folds(run: Run) -> list[dict[str, Any]]:
    """Return a row for each metric of each fold of a cross-validation, as it was in the end."""
    folds = run.result.get("folds") or []
    return [
        {
            "run": fold["run"],
            "title": f"{run.title}, {name_of(fold)}",
            "part": part,
            "metric": name,
            "seconds": fold["seconds"],
            "clock": run.clock,
            "value": value,
        }
        for fold in folds
        for part, metrics in fold["metrics"].items()
        for name, value in metrics.items()
    ]


def to_json(runs: Sequence[Run]) -> str:
    """Return everything known of the runs but their spans, as a JSON list; NaN and infinity become null.

    A run's `measurements` are columns of equal length, as `pandas.DataFrame` takes them.
    """
    listed = [
        {**run.summary(), "ended": run.ended, "facts": run.facts, "history": run.history, "measurements": _columns(run)}
        for run in runs
    ]
    return json.dumps(replace_nonfinite(listed), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _columns(run: Run) -> dict[str, list[Any]]:
    rows = measurement_rows(run)
    return {name: [row[name] for row in rows] for name in COLUMNS[2:]}
