"""`Comparison`: a table of settings in every form: terminal, notebook, page, CSV, JSON and Markdown."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tenfold.reports import summary, tables
from tenfold.reports.comparison_rows import (
    DOUBTS,
    NUMBERS,
    RATIOS,
    Row,
    Spread,
    describe_selected,
    is_time,
    is_timed,
    make_rows,
    require_columns,
    select_by_validation,
)
from tenfold.reports.exports import Result
from tenfold.reports.formatting import CROSSVAL_TIME, NOTHING, grouped, plural
from tenfold.reports.tables import (
    Column,
    TextTable,
    chosen_columns,
    explain_columns,
    is_meaningless,
    make_crosstables,
    row_value,
)
from tenfold.runs import Run
from tenfold.runs.store import CROSSVAL, SCRIPT

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


SEVERAL_PARTS = "metrics of cross-validations are measured on the held-out folds, all others on the part evaluated last"
FACTOR_PER_SAMPLE = "the factor against cpu compares times per sample, because some runs stopped early"
LAYOUTS = ((2, False), (2, True), (1, True))
"""Layouts of a printed table, as (spaces between columns, whether to break headings); the first that fits is used."""


COLUMN_NOTES = {
    tables.SHARES: "c/w/c %: shares of computing, waiting and communicating",
    tables.SENT: "sent: bytes that one worker sends during a run",
}
"""Explanations of columns that may be omitted on a narrow terminal."""


class ResultTable(Result):
    """Rows of settings."""

    rows: list[Row]
    shown: tuple[str, ...] = ()
    """The columns to show in addition to the settings. Default: all columns that apply to the rows."""

    @abstractmethod
    def notes(self) -> list[str]:
        """Return the lines that explain the table, except for those in COLUMN_NOTES."""

    @abstractmethod
    def findings(self) -> list[str]:
        """Return sentences about the rows, or about failures."""

    def columns(self) -> list[Column]:
        return chosen_columns(self.rows, self.shown) if self.shown else tables.comparison_columns(self.rows)

    def crosstables(self) -> list[TextTable]:
        """Return tables of folds by workers if both vary."""
        return make_crosstables(self.rows)

    def records(self) -> list[dict[str, Any]]:
        return [_record(row, self.shown) for row in self.rows]

    def to_markdown(self) -> str:
        """Return the table as Markdown, followed by folds by workers if both vary."""
        crossed = [f"{crosstable.title}\n\n{crosstable.to_markdown()}" for crosstable in self.crosstables()]
        return "\n".join([super().to_markdown(), *crossed])

    def text_table(self) -> TextTable:
        shown = self.columns()
        cells = [list(row) for row in zip(*(item.cells for item in shown), strict=True)]
        return TextTable([item.name for item in shown], cells)

    def time_notes(self) -> list[str]:
        """Return an explanation of the times: measured or predicted, their parts, and which are unreliable."""
        clock = summary.clock_names(self.rows)
        both = clock not in (summary.MEASURED, summary.PREDICTED)
        text = f"times are {'measured or predicted, see clock' if both else clock}"
        if {run.kind for row in self.rows for run in row.runs} == {SCRIPT}:
            text += ", from the first process group to the end of the script"
        elif not any(is_time(name) and name != "seconds" for name in self.shown):
            text += ", excluding startup, evaluation and saving"
        if any(len(row.runs) > 1 for row in self.rows):
            text += "; mean ± standard deviation over the repeats"
        notes = [text]
        if any(run.kind == CROSSVAL for row in self.rows for run in row.runs):
            notes.append(CROSSVAL_TIME)
        if len({row.part for row in self.rows if row.metrics}) > 1:
            notes.append(SEVERAL_PARTS)
        if any(row.interval for row in self.rows):
            notes.append(f"predicted {summary.INTERVAL}")
        if any(not row.calibrated for row in self.rows):
            notes.append(summary.UNCALIBRATED)
        doubts = {doubt for row in self.rows for doubt in row.doubts}
        return notes + [f"{tables.DOUBT} {text}" for doubt, text in DOUBTS.items() if doubt in doubts]

    def device_notes(self) -> list[str]:
        """Return sentences on the speedup over the CPU, or why there is none; empty if all rows use the same device."""
        if any(row.factor_against_cpu is not None for row in self.rows):
            per_sample = any(row.factor_per_sample for row in self.rows)
            text = "factor against cpu (× cpu) = Tcpu/T, with all other settings equal"
            return [text, *([FACTOR_PER_SAMPLE] if per_sample else [])]
        if any("device" in row.settings for row in self.rows):
            return ["no factor against cpu because no run on cpu has the same settings; add device cpu"]
        return []

    def explanations(self, omitted: Sequence[str] = ()) -> list[str]:
        """Return the lines that explain the table, except for columns that are omitted or empty."""
        shown = [
            column.name for column in self.columns() if set(column.cells) != {NOTHING} and column.name not in omitted
        ]
        return self.notes() + [text for name, text in COLUMN_NOTES.items() if name in shown]

    def lines(self, omitted: Sequence[str] = ()) -> list[str]:
        return self.explanations(omitted) + self.findings()

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        shown, omitted, width = self.columns(), [], options.max_width
        fitting = [layout for layout in LAYOUTS if tables.table_width(shown, *layout) <= width]
        gap, broken = (fitting or LAYOUTS[-1:])[0]
        for name in tables.OPTIONAL:
            if tables.table_width(shown, gap, broken) > width and any(item.name == name for item in shown):
                shown = [item for item in shown if item.name != name]
                omitted.append(name)
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
        for item in shown:
            table.add_column(Text(item.heading(broken)), justify="left" if item.words else "right", vertical="bottom")
        for row in zip(*(item.cells for item in shown), strict=True):
            table.add_row(*map(Text, row))
        yield from (table, Text())
        for crosstable in self.crosstables():
            yield from (crosstable.to_rich(), Text())
        lines = self.lines(omitted)
        if omitted:
            lines.append(f"hidden because the terminal is narrow: {', '.join(omitted)}; --format csv has all columns")
        for line in lines:
            yield Text(line, style="dim")


def _record(row: Row, shown: Sequence[str]) -> dict[str, Any]:
    numbers: dict[str, Any] = {name: getattr(row, name) for name in NUMBERS}
    numbers |= {name: spread for name, spread in row.metrics.items() if name not in numbers}
    if row.selected is not None:  # metrics are shown on two parts, so their names include the part
        numbers = {name: value for name, value in numbers.items() if name not in ("accuracy", "loss", *row.metrics)}
        numbers |= {f"{row.part}_{name}": spread for name, spread in row.metrics.items()}
        numbers |= {f"test_{name}": row.test_metrics.get(name, Spread()) for name in row.metrics}
        numbers["selected"] = row.selected
    numbers |= {name: row_value(row, name) for name in shown if name not in numbers and name not in RATIOS}
    record: dict[str, Any] = {}
    for name, value in row.settings.items():
        is_number = name in numbers and name not in ("workers", "threads")
        record[f"{name}_setting" if is_number else name] = None if is_meaningless(row, name) else value
    for name, value in numbers.items():
        if isinstance(value, Spread):
            record |= {name: value.mean, f"{name}_deviation": value.deviation}
        else:
            record[name] = value
    if row.interval is not None:
        record |= {"seconds_low": row.interval[0], "seconds_high": row.interval[1]}
    record |= {f"share_{kind}": share for kind, share in row.shares.items()}
    record |= {"doubts": " ".join(row.doubts)} if row.doubts else {}
    record |= {"reused_runs": row.reused} if row.reused else {}
    return record | ({"runs": " ".join(str(run.id) for run in row.runs)} if row.runs else {})


__all__ = ["Comparison", "Row", "Spread"]

PER_SAMPLE = "speedup, efficiency and PI compare times per sample, because some runs stopped early"


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
        """The settings that could not be run, each with its error."""
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
        """The runs of doubtful rows that are worth repeating; if a speedup is too high, also its baselines."""
        baselines = any("speedup" in row.doubts for row in self.rows)
        return [
            run
            for row in self.rows
            if {"load", "speedup"} & {*row.doubts} or (baselines and row.workers == 1)
            for run in row.runs
        ]

    @property
    def complete(self) -> bool:
        """Whether every run finished, with all its folds."""
        return not self.failed and not any(run.result.get("failed") for run in self.runs)

    def extra_json(self) -> dict[str, Any]:
        return {"failed": self.failed}

    def notes(self) -> list[str]:
        notes = self.time_notes() if not self.shown or any(map(is_timed, self.shown)) else []
        if self.shown:
            notes += explain_columns(self.rows, self.shown)
        if not self.shown or set(RATIOS) & set(self.shown):
            notes += self._ratio_notes()
        if not self.shown:
            notes += self.device_notes()
        if reused := sum(row.reused for row in self.rows):
            of = f"{reused} of {plural(len(self.runs), 'run')}"
            notes.append(f"{of} were already recorded on this machine (--fresh or fresh=True repeats them)")
        if len({row.clock for row in self.rows}) > 1:
            notes.append("measured times are compared only with measured ones, predicted with predicted ones")
        return notes

    def _ratio_notes(self) -> list[str]:
        """Return the definitions of the ratios, such as the speedup, or the reasons why they are missing."""
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            virtual = any(row.interval is not None for row in self.rows)
            per = "core, or per node of a virtual cluster" if virtual else "core"
            text = f"speedup = T1/Tn; efficiency = speedup per {per}; PI = (T1-Tn)/T1; gain = Tslowest/Tn"
            return [text, *([PER_SAMPLE] if any(row.per_sample for row in self.rows) else [])]
        if any(row.workers > 1 for row in self.rows):
            alone = any(row.workers == 1 for row in self.rows)
            why = "no run with one worker has the same settings and clock" if alone else "no run has one worker"
            return [f"no speedup because {why}; add workers 1 to the comparison"]
        return ["gain = Tslowest/Tn"]

    def findings(self) -> list[str]:
        """Return the failures, and the settings that were equal to others."""
        return self.choice() + [f"failed: {line}" for line in self.failures()] + self.left_out

    def choice(self) -> list[str]:
        """Return a sentence about the selected setting; none unless `select` was called."""
        return [describe_selected(self.rows)] if self.selected is not None else []

    def failures(self) -> list[str]:
        """Return the settings that could not be run, one line for each reason."""
        reasons = grouped((reason, label) for label, reason in self.failed.items())
        return [f"{' | '.join(labels)}: {reason}" for reason, labels in reasons.items()]

    def failure_counts(self) -> str:
        """Return the number of failed runs and folds, and the first error."""
        counts = []
        if self.failed:
            reason = next(iter(self.failed.values())).partition("\n")[0]
            counts.append(f"{len(self.failed)} of {len(self.failed) + len(self.runs)} runs failed: {reason}")
        partial = [run.result for run in self.runs if run.result.get("failed")]
        if partial:
            failed, folds = (sum(len(result[kind]) for result in partial) for kind in ("failed", "folds"))
            counts.append(f"{failed} of {folds} folds failed: {partial[0]['failed'][0].splitlines()[0]}")
        return "; ".join(counts)

    def report(self, path: str | Path) -> Path:
        from tenfold.reports.pages.run_pages import write_report

        return write_report(self, path)

    def __repr__(self) -> str:
        return f"<Comparison of {plural(len(self.rows), 'setting')} in {plural(len(self.runs), 'run')}>"
