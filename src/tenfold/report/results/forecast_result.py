"""How an experiment would do on hardware that is not there: predicted times, and what becomes of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tenfold.cluster.prediction import Prediction
from tenfold.experiment import Experiment
from tenfold.report import clocks, summary
from tenfold.report import knee as bend
from tenfold.report.differences import spoken, varied
from tenfold.report.formatting import several
from tenfold.report.results.sheet import Sheet
from tenfold.report.rows import Row, Spread, rated
from tenfold.report.tables.columns import Column

ALWAYS = ("workers", "strategy", "sync_every")
"""The fields that are told even if they are the same in all rows."""
NOT_ASKED = ("PI %", "gain %")


@dataclass(frozen=True, eq=False)
class Predicted:
    """An experiment and what the clock says about it."""

    experiment: Experiment
    prediction: Prediction


class Forecast(Sheet):
    """Predictions side by side, one row a setting: as a table, as files, and as a page with the speedup's curve."""

    def __init__(self, rows: Sequence[tuple[Experiment, Prediction]]) -> None:
        self.forecasts = [Predicted(*row) for row in rows]
        names = [*ALWAYS, *(name for name in varied(self.forecasts) if name not in ALWAYS)]
        self.rows = rated([_row(one, names) for one in self.forecasts])

    def columns(self) -> list[Column]:
        """Return the columns of the table."""
        return [column for column in super().columns() if column.name not in NOT_ASKED]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text; without learning, nothing is scored."""
        records = super().records()
        known = {name for record in records for name, value in record.items() if value is not None}
        return [{name: value for name, value in record.items() if name in known} for record in records]

    def besides(self) -> dict[str, Any]:
        """Return what explains the numbers."""
        return {"explanation": self.explanation(), "reasons": self.reasons()}

    def notes(self) -> list[str]:
        """Return what a reader of the table must know."""
        notes = self.times_told()
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            notes.append("speedup = T1/Tn; efficiency = speedup by worker")
        elif any(row.workers > 1 for row in self.rows):
            notes.append("no speedup, as there is no prediction for one worker: add 1 to the workers")
        notes += self.factors_told()
        if any(row.bytes_per_worker for row in self.rows):
            notes.append("sent: what the messages of one worker amount to in a run")
        return [*notes, *self.explanation(), *self.reasons()]

    def explanation(self) -> list[str]:
        """Return where each curve of the speedup bends and why, in a sentence each."""
        return [bend.sentence(name, group) for name, group in bend.families(self.rows) if len(group) > 1]

    def reasons(self) -> list[str]:
        """Return why settings make no difference, each sentence once, with the settings that it is about."""
        both = zip(self.rows, self.forecasts, strict=True)
        return summary.reasons([(row.label, one.prediction.reasons) for row, one in both])

    def report(self, path: str | Path) -> Path:
        """Write a page with the table and plots, and return where it is."""
        from tenfold.report.pages.forecast_page import render
        from tenfold.report.pages.page import save

        return save(render(self), path)

    def __repr__(self) -> str:
        return f"<Forecast on {several(len(self.rows), 'setting')}, {clocks.PREDICTED}>"


def _row(one: Predicted, names: Sequence[str]) -> Row:
    experiment, prediction = one.experiment, one.prediction
    flat = experiment.flat()
    settings = {name: flat[name] for name in names}
    workers = experiment.division.workers
    times = {kind: fmean(map(float, each)) for kind, each in prediction.times.items()}
    return Row(
        label=spoken(settings),
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
