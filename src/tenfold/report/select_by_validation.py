"""Selecting a setting by the validation part, so that the test part is looked at once, for the selected one."""

import math
from collections.abc import Sequence
from dataclasses import replace

from tenfold.errors import ExperimentError
from tenfold.report.formatting import metric_value, one_line
from tenfold.report.row_ranking import quality, rows_metric
from tenfold.report.rows import Row, metrics_of

NOT_VALIDATED = (
    "a setting is selected by the validation part, and none of these runs has one; set validation_fraction, such as "
    "validation_fraction=0.1, or cross-validate with folds"
)


def select_by_validation(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their metrics on the validation part; the best one is selected and keeps those on test."""
    validated = [
        replace(row, part="validation", metrics=metrics_of(row.runs, "validation"), selected=False) for row in rows
    ]
    from tenfold.training.measures import require_direction

    metric = rows_metric(validated)
    require_direction(rows[0].experiment.training, metric, "a selection")
    best = max(validated, key=lambda row: quality(row, metric))
    if not math.isfinite(quality(best, metric)):
        raise ExperimentError(NOT_VALIDATED)
    chosen = replace(best, selected=True, test_metrics=metrics_of(best.runs, "test"))
    return [chosen if row is best else row for row in validated]


def describe_selected(rows: Sequence[Row]) -> str:
    """Return a sentence about the selected setting and how good it is on the validation and test parts."""
    metric, row = rows_metric(rows), next(row for row in rows if row.selected)
    name = one_line(metric.replace("_", " "))
    test = row.test_metrics[metric].mean if metric in row.test_metrics else None
    tested = f"{name} {metric_value(metric, test)} on the test part" if test is not None else "there is no test part"
    score = f"{name} {metric_value(metric, row.metrics[metric].mean)}"
    return f"selected: {row.label}, the best on the validation part ({score}); {tested}"
