"""Runs side by side, one row for each setting."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.errors import ExperimentError
from tenfold.report.formatting import plural
from tenfold.report.results.result_table import ResultTable, TableNote
from tenfold.report.rows import Row, Spread, make_rows
from tenfold.runs import Run

__all__ = ["Comparison", "Row", "Spread"]


class Comparison(ResultTable):
    """Runs side by side, one row for each setting: as a table, as files, and as an HTML report with plots."""

    def __init__(self, runs: Sequence[Run], failed: dict[str, str] | None = None, left_out: Sequence[str] = ()) -> None:
        self.runs = list(runs)
        self.failed = failed or {}
        """The settings that could not be run, and why."""
        self.left_out = list(left_out)
        """Sentences about settings that are the same as others and were not run."""
        self.rows = make_rows(self.runs)

    @property
    def doubtful(self) -> list[Run]:
        """The runs of marked rows; where a speedup is too good, also the baselines with one worker."""
        baselines = any("speedup" in row.doubts for row in self.rows)
        return [run for row in self.rows if row.doubts or (baselines and row.workers == 1) for run in row.runs]

    @property
    def complete(self) -> bool:
        """Whether every run finished, with all its folds."""
        return not self.failed and not any(run.result.get("failed") for run in self.runs)

    def extra_json(self) -> dict[str, Any]:
        """Return the settings that failed."""
        return {"failed": self.failed}

    def notes(self) -> list[TableNote]:
        """Return the lines that explain the columns."""
        notes = self.time_notes()
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            virtual = any(row.interval is not None for row in self.rows)
            per = "core, or per node of a virtual cluster" if virtual else "core"
            notes.append(
                TableNote(f"speedup = T1/Tn; efficiency = speedup per {per}; PI = (T1-Tn)/T1; gain = Tslowest/Tn")
            )
        elif any(row.workers > 1 for row in self.rows):
            alone = any(row.workers == 1 for row in self.rows)
            why = "no run with one worker has the same settings and clock" if alone else "no run has one worker"
            notes.append(TableNote(f"no speedup, as {why}: add workers 1 to the comparison"))
        else:
            notes.append(TableNote("gain = Tslowest/Tn"))
        notes += self.device_notes()
        if len({row.clock for row in self.rows}) > 1:
            notes.append(
                TableNote("measured times are compared only with measured ones, predicted with predicted ones")
            )
        return notes + self.column_notes()

    def findings(self) -> list[str]:
        """Return what failed, and what was the same as something else."""
        return [f"failed: {line}" for line in self.failures()] + self.left_out

    def failures(self) -> list[str]:
        """Return the settings that could not be run, one line for each reason."""
        reasons: dict[str, list[str]] = {}
        for label, reason in self.failed.items():
            reasons.setdefault(reason, []).append(label)
        return [f"{' | '.join(labels)}: {reason}" for reason, labels in reasons.items()]

    def report(self, path: str | Path) -> Path:
        """Write an HTML report with the table and plots, and return its path."""
        from tenfold.report.pages.write_report import write_report

        return write_report(self, path)

    def plot(self, path: str | Path) -> Path:
        """Write a plot of the metric against the training time, with the target; return its path.

        The name ends with .svg, .png or .pdf.
        """
        from tenfold.report.plots.target_plots import save_target_plot

        if not save_target_plot(self.rows, Path(path)):
            raise ExperimentError("there is no target to plot; give one, such as target=0.99 or --target 0.99")
        return Path(path)

    def __repr__(self) -> str:
        return f"<Comparison of {plural(len(self.rows), 'setting')} in {plural(len(self.runs), 'run')}>"
