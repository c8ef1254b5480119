"""Strong and weak scaling side by side: measured on this machine, predicted beyond."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenfold.common.files import json_text
from tenfold.reports.clocks import MEASURED, PREDICTED
from tenfold.reports.exports import write_csv
from tenfold.reports.formatting import NOTHING, duration, metric_value, plural, ratio
from tenfold.reports.results.comparison import Comparison
from tenfold.reports.results.forecast_result import Forecast
from tenfold.reports.rows import DOUBTS, Row, is_clearly_worse, rows_metric
from tenfold.reports.tables.run_tables import TextTable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

WORSE = " ▼"
"""Marks models that are less good than that of one worker."""


@dataclass(frozen=True)
class ScalingPoint:
    """One number of workers."""

    workers: int
    seconds: float
    ratio: float
    """T1 / Tn: the speedup of strong scaling, the efficiency of weak scaling."""
    clock: str
    """Either "measured" or "predicted"; T1 has the same clock."""
    score: float | None = None
    """The main metric, of trained models."""
    is_worse: bool = False
    """Whether the model is less good than that of one worker by more than the noise."""


class ScalingStudy:
    """How training time changes with the workers: for the same data, and for the same data per worker."""

    def __init__(
        self,
        strong: Comparison,
        weak: Comparison,
        far: Forecast | None,
        far_weak: Sequence[Forecast],
        *,
        samples: int,
        link: str,
    ) -> None:
        self.experiment = strong.rows[0].experiment
        self.metric = rows_metric(strong.rows)
        self.samples = samples
        """Training samples of each worker in weak scaling."""
        self.link = link
        predicted = [row for item in far_weak for row in item.rows]
        self.strong = [*self._points(strong.rows, MEASURED), *self._points(far.rows if far else [], PREDICTED)]
        self.weak = [*self._points(weak.rows, MEASURED), *self._points(predicted, PREDICTED)]
        self.failed = strong.failed | weak.failed
        rows = [*strong.rows, *weak.rows, *(far.rows if far else []), *predicted]
        self.doubts = {doubt: DOUBTS[doubt] for row in rows for doubt in row.doubts}
        """Why some times should not be trusted, such as those that were measured on a busy machine."""

    def _points(self, rows: Sequence[Row], clock: str) -> list[ScalingPoint]:
        timed = sorted(((row.workers, row.seconds.mean, row) for row in rows if row.seconds.mean), key=lambda of: of[0])
        if not timed or timed[0][0] != 1:
            return []
        _, alone, first = timed[0]
        return [
            ScalingPoint(
                workers,
                seconds,
                (alone or 0.0) / seconds,
                clock,
                self._score(row),
                is_clearly_worse(row, first, self.metric),
            )
            for workers, seconds, row in timed
            if seconds and (clock == MEASURED or workers > 1)
        ]

    def _score(self, row: Row) -> float | None:
        return row.metrics[self.metric].mean if self.metric in row.metrics else None

    def table(self) -> TextTable:
        """Return both scalings by the number of workers."""
        weak = {(point.workers, point.clock): point for point in self.weak}
        rows = []
        for point in self.strong:
            other = weak.get((point.workers, point.clock))
            rows.append(
                [
                    str(point.workers),
                    point.clock,
                    duration(point.seconds),
                    ratio(point.ratio),
                    f"{point.ratio / point.workers:.0%}",
                    self._shown_score(point),
                    duration(other.seconds) if other else NOTHING,
                    f"{other.ratio:.0%}{WORSE if other.is_worse else ''}" if other else NOTHING,
                ]
            )
        names = ["workers", "clock", "strong: time", "speedup", "efficiency", self.metric, "weak: time", "efficiency"]
        return TextTable(names, rows)

    def _shown_score(self, point: ScalingPoint) -> str:
        if point.score is None:
            return NOTHING
        return metric_value(self.metric, point.score) + (WORSE if point.is_worse else "")

    def sentences(self) -> list[str]:
        """Return what a proposal to a computing center says about scaling.

        That is of the most workers by each clock whose models are as good as that of one worker.
        """
        texts = []
        for clock in (MEASURED, PREDICTED):
            strong, weak = (
                [point for point in points if point.clock == clock and not point.is_worse]
                for points in (self.strong, self.weak)
            )
            where = "on this machine" if clock == MEASURED else f"on nodes of one worker joined by {self.link}"
            if strong and strong[-1].workers > 1:
                last = strong[-1]
                texts.append(
                    f"Strong scaling {where}: {plural(last.workers, 'worker')} train {ratio(last.ratio)}x as fast as "
                    f"one, a parallel efficiency of {last.ratio / last.workers:.0%} ({clock}){self._at_what(last)}."
                )
            if weak and weak[-1].workers > 1:
                last = weak[-1]
                texts.append(
                    f"Weak scaling {where}: with {self.samples:,} training samples per worker, "
                    f"{plural(last.workers, 'worker')} keep {last.ratio:.0%} of the efficiency of one ({clock})."
                )
        if worse := [point for point in self.strong if point.is_worse]:
            counts = ", ".join(str(point.workers) for point in worse)
            texts.append(
                f"Not at equal accuracy: {counts} workers, by more than the noise{self._at_what(worse[-1])}; what is "
                "predicted says nothing about accuracy."
            )
        return texts

    def _at_what(self, last: ScalingPoint) -> str:
        alone = next((point.score for point in self.strong if point.workers == 1 and point.score is not None), None)
        if last.score is None or alone is None:
            return ""
        values = metric_value(self.metric, last.score), metric_value(self.metric, alone)
        return f", with {self.metric} {values[0]} (one worker: {values[1]})"

    def notes(self) -> list[str]:
        """Return the lines that explain the table."""
        return [
            "strong: the same data for all workers together; speedup = T1/Tn, efficiency = speedup / workers",
            f"weak: {self.samples:,} training samples per worker; efficiency = T1/Tn",
            *(
                [f"{WORSE.strip()} the model is less good than that of one worker by more than the noise"]
                * self._any_worse
            ),
            "times are training alone, and each is compared with one worker by the same clock",
            *self.doubts.values(),
            *(f"failed: {label}: {why}" for label, why in self.failed.items()),
        ]

    @property
    def _any_worse(self) -> bool:
        return any(point.is_worse for point in (*self.strong, *self.weak))

    def records(self) -> list[dict[str, Any]]:
        """Return the points as flat dictionaries."""
        return [
            {"scaling": name} | asdict(point)
            for name, points in (("strong", self.strong), ("weak", self.weak))
            for point in points
        ]

    def to_csv(self) -> str:
        """Return the points as CSV."""
        return write_csv(self.records())

    def to_json(self) -> str:
        """Return everything as JSON."""
        about = {"samples_per_worker": self.samples, "link": self.link, "sentences": self.sentences()}
        return json_text({"rows": self.records(), **about}, indent=2) + "\n"

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        return self.table().to_markdown()

    def report(self, path: str | Path) -> Path:
        """Write an HTML report with table, plots and sentences, and return its path."""
        from tenfold.reports.pages.page import save_page
        from tenfold.reports.pages.run_pages import render_scaling

        return save_page(render_scaling(self), path)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        yield self.table().to_rich(words=2)
        yield from [*self.sentences(), *self.notes()]

    def __repr__(self) -> str:
        return f"<ScalingStudy to {plural(max(point.workers for point in self.strong), 'worker')}>"
