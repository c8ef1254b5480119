"""Runs side by side: what each setting gains, and what it costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenfold.report.formatting import several
from tenfold.report.results.sheet import Sheet
from tenfold.report.rows import Row, Spread, rows_of
from tenfold.runs import Run

__all__ = ["Comparison", "Row", "Spread"]


class Comparison(Sheet):
    """Runs side by side, one row a setting: as a table, as files, and as a page with plots."""

    def __init__(self, runs: Sequence[Run], failed: dict[str, str] | None = None) -> None:
        self.runs = list(runs)
        self.failed = failed or {}
        """What could not be run, and why."""
        self.rows = rows_of(self.runs)

    @property
    def complete(self) -> bool:
        """Whether every run finished, with all its folds."""
        return not self.failed and not any(run.result.get("failed") for run in self.runs)

    def besides(self) -> dict[str, Any]:
        """Return what failed."""
        return {"failed": self.failed}

    def notes(self) -> list[str]:
        """Return what a reader of the table must know."""
        notes = self.times_told()
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            notes.append("speedup = T1/Tn; efficiency = speedup by core; PI = (T1-Tn)/T1; gain = Tslowest/Tn")
        elif any(row.workers > 1 for row in self.rows):
            alone = any(row.workers == 1 for row in self.rows)
            why = "no run of one worker has the same settings and clock" if alone else "no run has one worker"
            notes.append(f"no speedup, as {why}: add workers 1 to the comparison")
        else:
            notes.append("gain = Tslowest/Tn")
        notes += self.factors_told()
        if len({row.clock for row in self.rows}) > 1:
            notes.append("measured times are held against measured ones only, predicted against predicted")
        if any(row.bytes_per_worker for row in self.rows):
            notes.append("sent: what the messages of one worker amount to in a run")
        return notes + [f"failed: {line}" for line in self.failures()]

    def failures(self) -> list[str]:
        """Return what could not be run and why, one line a reason."""
        reasons: dict[str, list[str]] = {}
        for label, reason in self.failed.items():
            reasons.setdefault(reason, []).append(label)
        return [f"{' | '.join(labels)}: {reason}" for reason, labels in reasons.items()]

    def report(self, path: str | Path) -> Path:
        """Write a page with the table and plots, and return where it is."""
        from tenfold.report.pages.page import write

        return write(self, path)

    def __repr__(self) -> str:
        return f"<Comparison of {several(len(self.rows), 'setting')} in {several(len(self.runs), 'run')}>"
