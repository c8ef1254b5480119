"""Runs side by side, one row for each setting."""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from tenfold.errors import ExperimentError
from tenfold.report.formatting import grouped, plural
from tenfold.report.results.result_table import ResultTable
from tenfold.report.rows import Row, Spread, make_rows
from tenfold.report.run_values import RATIOS, is_timed, require_columns
from tenfold.report.select_by_validation import describe_selected, select_by_validation
from tenfold.report.tables.chosen_columns import explain_columns
from tenfold.runs import Run

__all__ = ["Comparison", "Row", "Spread"]

PER_SAMPLE = "speedup, efficiency and PI are of times per sample, as some runs stopped before others"


class Comparison(ResultTable):
    """Runs side by side, one row for each setting: as a table, as files, and as an HTML report with plots."""

    def __init__(
        self,
        runs: Sequence[Run],
        failed: dict[str, str] | None = None,
        left_out: Sequence[str] = (),
        reused: Collection[int] = (),
    ) -> None:
        self.runs = list(runs)
        self.failed = failed or {}
        """The settings that could not be run, and why."""
        self.left_out = list(left_out)
        """Sentences about settings that are the same as others and were not run."""
        self.rows = [replace(row, reused=sum(run.id in reused for run in row.runs)) for row in make_rows(self.runs)]

    def with_columns(self, *names: str) -> Self:
        """Return the same rows with these columns in place of the usual ones, such as "validation_accuracy".

        Metrics are those of the experiment, with train_, validation_ or test_ before them for one part. Times are
        seconds (training time), seconds_without_averaging, seconds_with_evaluation and seconds_in_all, and those of
        a kind, such as evaluate_seconds; ratios are speedup, efficiency, PI and gain. Every form of the table has
        them.
        """
        of_experiments = (name for row in self.rows for name in row.experiment.training.metric_names)
        require_columns(
            names, ("accuracy", "loss", *of_experiments, *(name for row in self.rows for name in row.metrics))
        )
        shown = copy(self)
        shown.shown = names
        return shown

    def select(self) -> Self:
        """Return the same rows with the best one on the validation part selected.

        The rows show their metrics on the validation part, the mean over the repeats; metrics on the test part are
        shown for the selected row alone.
        """
        chosen = copy(self)
        chosen.rows = select_by_validation(self.rows)
        return chosen

    @property
    def selected(self) -> Row | None:
        """The best setting on the validation part; None unless `select` was called."""
        return next((row for row in self.rows if row.selected), None)

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

    def notes(self) -> list[str]:
        """Return the lines that explain the table, except for those in COLUMN_NOTES."""
        notes = self.time_notes() if not self.shown or any(map(is_timed, self.shown)) else []
        if self.shown:
            notes += explain_columns(self.rows, self.shown)
        if not self.shown or set(RATIOS) & set(self.shown):
            notes += self._ratio_notes()
        if not self.shown:
            notes += self.device_notes()
        if reused := sum(row.reused for row in self.rows):
            of = f"{reused} of {plural(len(self.runs), 'run')}"
            notes.append(f"{of} had been recorded before, on this machine, and not run again (--fresh, fresh=True)")
        if len({row.clock for row in self.rows}) > 1:
            notes.append("measured times are compared only with measured ones, predicted with predicted ones")
        return notes

    def _ratio_notes(self) -> list[str]:
        """Return what speedup and the like are, or why there are none."""
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            virtual = any(row.interval is not None for row in self.rows)
            per = "core, or per node of a virtual cluster" if virtual else "core"
            text = f"speedup = T1/Tn; efficiency = speedup per {per}; PI = (T1-Tn)/T1; gain = Tslowest/Tn"
            return [text, *([PER_SAMPLE] if any(row.per_sample for row in self.rows) else [])]
        if any(row.workers > 1 for row in self.rows):
            alone = any(row.workers == 1 for row in self.rows)
            why = "no run with one worker has the same settings and clock" if alone else "no run has one worker"
            return [f"no speedup, as {why}: add workers 1 to the comparison"]
        return ["gain = Tslowest/Tn"]

    def findings(self) -> list[str]:
        """Return what failed, and what was the same as something else."""
        return self.choice() + [f"failed: {line}" for line in self.failures()] + self.left_out

    def choice(self) -> list[str]:
        """Return a sentence about the selected setting; none unless `select` was called."""
        return [describe_selected(self.rows)] if self.selected is not None else []

    def failures(self) -> list[str]:
        """Return the settings that could not be run, one line for each reason."""
        reasons = grouped((reason, label) for label, reason in self.failed.items())
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
