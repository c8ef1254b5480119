"""Predicted times of an experiment on other hardware, one row for each setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tenfold.cluster.time_prediction import TimePrediction
from tenfold.experiment import Experiment
from tenfold.report import clocks, summary
from tenfold.report.differences import describe_settings, varied_fields
from tenfold.report.formatting import plural
from tenfold.report.knee import explain_knees, scaling_families
from tenfold.report.results.result_table import ResultTable
from tenfold.report.rows import Row, Spread, with_ratios
from tenfold.report.tables.columns import Column

ALWAYS = ("workers", "strategy", "sync_every")
"""Fields that are shown even if they are the same in all rows."""
HIDDEN = ("PI %", "gain %")


@dataclass(frozen=True, eq=False)
class Predicted:
    """An experiment and its prediction."""

    experiment: Experiment
    prediction: TimePrediction


class Forecast(ResultTable):
    """Predictions side by side, one row for each setting: as a table, as files, and as an HTML report."""

    def __init__(self, rows: Sequence[tuple[Experiment, TimePrediction]]) -> None:
        self.forecasts = [Predicted(*row) for row in rows]
        names = [*ALWAYS, *(name for name in varied_fields(self.forecasts) if name not in ALWAYS)]
        self.rows = with_ratios([_row(one, names) for one in self.forecasts])

    def columns(self) -> list[Column]:
        """Return the columns of the table."""
        return [column for column in super().columns() if column.name not in HIDDEN]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text, without metrics, as nothing was trained."""
        records = super().records()
        known = {name for record in records for name, value in record.items() if value is not None}
        return [{name: value for name, value in record.items() if name in known} for record in records]

    def extra_json(self) -> dict[str, Any]:
        """Return what explains the numbers."""
        return {"explanation": self.explanation(), "reasons": self.reasons()}

    def notes(self) -> list[str]:
        """Return the lines that explain the table, except for those in COLUMN_NOTES."""
        notes = self.time_notes()
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            notes.append("speedup = T1/Tn; efficiency = speedup per worker")
        elif any(row.workers > 1 for row in self.rows):
            notes.append("no speedup, as there is no prediction for one worker: add 1 to the workers")
        speeds = clocks.speed_notes(one.prediction.machine_speed for one in self.forecasts)
        return notes + speeds + self.device_notes()

    def findings(self) -> list[str]:
        """Return where the speedups level off, and which settings make no difference."""
        return [*self.explanation(), *self.reasons()]

    def explanation(self) -> list[str]:
        """Return sentences that say at how many workers each speedup levels off, and why."""
        return explain_knees([family for family in scaling_families(self.rows) if len(family[1]) > 1])

    def reasons(self) -> list[str]:
        """Return why settings make no difference, each sentence once, with the settings it holds for."""
        both = zip(self.rows, self.forecasts, strict=True)
        return summary.merge_reasons([(row.label, one.prediction.reasons) for row, one in both])

    def report(self, path: str | Path) -> Path:
        """Write an HTML report with the table and plots, and return its path."""
        from tenfold.report.pages.forecast_page import render_forecast
        from tenfold.report.pages.page import save_page

        return save_page(render_forecast(self), path)

    def __repr__(self) -> str:
        return f"<Forecast of {plural(len(self.rows), 'setting')}, {clocks.PREDICTED}>"


def _row(one: Predicted, names: Sequence[str]) -> Row:
    experiment, prediction = one.experiment, one.prediction
    flat = experiment.flat()
    settings = {name: flat[name] for name in names}
    if experiment.division.average == "gradients":
        settings["sync_every"] = 1
    workers = experiment.division.workers
    times = {kind: fmean(map(float, each)) for kind, each in prediction.times.items()}
    return Row(
        label=describe_settings(settings),
        settings=settings,
        experiment=experiment,
        workers=workers,
        cores=workers,
        seconds=Spread((prediction.seconds,)),
        clock=clocks.PREDICTED,
        interval=prediction.interval,
        calibrated=prediction.calibrated,
        bytes_per_worker=fmean(map(float, prediction.bytes_per_worker)),
        times={kind: times[kind] for kind in summary.TRAINING_KINDS if kind in times},
    )
