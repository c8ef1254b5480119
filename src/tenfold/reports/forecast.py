"""Predicted results: forecasts, twins (one experiment real and virtual), and scaling studies."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tenfold.cluster.time_prediction import TimePrediction
from tenfold.common.files import json_text
from tenfold.experiment import Experiment
from tenfold.reports import summary
from tenfold.reports.comparison import Comparison, ResultTable
from tenfold.reports.comparison_rows import (
    DOUBTS,
    Row,
    Spread,
    baseline_row,
    idle_share,
    is_clearly_worse,
    load_doubts,
    mean_seconds,
    rows_metric,
    with_ratios,
)
from tenfold.reports.differences import describe_settings, varied_fields
from tenfold.reports.exports import Result
from tenfold.reports.formatting import (
    NOTHING,
    count,
    duration,
    grouped,
    interval,
    metric_value,
    one_line,
    plural,
    ratio,
)
from tenfold.reports.summary import KIND_NAMES
from tenfold.reports.tables import Column, TextTable
from tenfold.runs import Run

if TYPE_CHECKING:
    from rich.console import Group


HELPFUL_FACTOR = 1.02
"""More workers help if they make training at least 2% faster; smaller gains are within the prediction error."""


@dataclass(frozen=True)
class Knee:
    """The number of workers at which a speedup levels off."""

    idle: Row | None
    """The first row that spends more time on communication and waiting than on computing."""
    peak: Row | None
    """The row beyond which more workers do not help; None if even the largest number does."""

    @property
    def first(self) -> Row | None:
        """The row with fewer workers: `idle` or `peak`."""
        rows_shown = [row for row in (self.idle, self.peak) if row is not None]
        return min(rows_shown, key=lambda row: row.workers, default=None)


def scaling_families(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return named groups of rows that differ only in the number of workers, sorted by it.

    A row of one worker belongs to every group with the same fields, averaging aside.
    """
    several = sorted((row for row in rows if row.workers > 1), key=lambda row: row.workers)
    families = grouped((row.describe_without("workers"), row) for row in several)
    alone = {name: baseline_row(group[0], rows) for name, group in families.items()}
    return [(name, [*([one] if (one := alone[name]) else []), *group]) for name, group in families.items()]


def rows_with_rounds(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with at least one round; without averaging, the time saved is not a speedup.

    If no row has a round, as with strategy none, all rows are returned.
    """
    chosen = [row for row in rows if row.workers == 1 or row.bytes_per_worker]
    return chosen if any(row.workers > 1 for row in chosen) else list(rows)


def find_knee(group: Sequence[Row]) -> Knee:
    """Return the point where the speedup levels off, for rows sorted by workers."""
    group = rows_with_rounds(group)
    waits = next((row for row in group if idle_share(row) > 0.5), None)
    peak = next(
        (
            row
            for at, row in enumerate(group[:-1], 1)
            if mean_seconds(row) <= HELPFUL_FACTOR * min(map(mean_seconds, group[at:]))
        ),
        None,
    )
    return Knee(waits, peak)


def explain_knees(families: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """Return one sentence for each distinct explanation, with the families that it applies to."""
    names = grouped((_knee_reason(group), name) for name, group in families)
    return [
        f"With {' or with '.join(listed)}, the speedup {reason}" if any(listed) else f"The speedup {reason}"
        for reason, listed in names.items()
    ]


def _knee_reason(group: Sequence[Row]) -> str:
    counted, knee = rows_with_rounds(group), find_knee(group)
    last = counted[-1]
    uncounted = next((row for row in group if row not in counted), None)
    without_rounds = (
        f" With {count(uncounted.workers)} or more, training ends before the first round; these are not counted."
        if uncounted
        else ""
    )
    if knee.first is None:
        return (
            f"keeps growing up to {plural(last.workers, 'worker')}, where computing still takes "
            f"{1 - idle_share(last):.0%} of the time.{without_rounds}"
        )
    reasons = []
    if knee.idle is not None:
        communicating, waiting = (knee.idle.shares.get(kind, 0.0) for kind in ("communicate", "wait"))
        why = f"communication ({communicating:.0%}) and waiting ({waiting:.0%}) take longer than computing"
        reasons.append((knee.idle.workers, f"from {count(knee.idle.workers)} workers on, {why}"))
    if knee.peak is not None:
        fastest, largest = duration(mean_seconds(knee.peak)), duration(mean_seconds(last))
        times = f"{fastest} predicted with {count(knee.peak.workers)}, {largest} with {count(last.workers)}"
        reasons.append((knee.peak.workers, f"beyond {count(knee.peak.workers)}, more workers do not help ({times})"))
    text = "; ".join(reason for _, reason in sorted(reasons, key=lambda pair: pair[0]))
    return f"levels off at {plural(knee.first.workers, 'worker')}: {text}.{without_rounds}"


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
        self.rows = with_ratios([_row(forecast, names) for forecast in self.forecasts])

    def columns(self) -> list[Column]:
        return [column for column in super().columns() if column.name not in HIDDEN]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as flat dictionaries of numbers and text, without metrics because nothing was trained."""
        records = super().records()
        filled = {name for record in records for name, value in record.items() if value is not None}
        return [{name: value for name, value in record.items() if name in filled} for record in records]

    def extra_json(self) -> dict[str, Any]:
        return {"explanation": self.explanation(), "reasons": self.reasons()}

    def notes(self) -> list[str]:
        notes = self.time_notes()
        if any(row.speedup is not None and row.workers > 1 for row in self.rows):
            notes.append("speedup = T1/Tn; efficiency = speedup per worker")
        elif any(row.workers > 1 for row in self.rows):
            notes.append("no speedup because there is no prediction for one worker; add 1 to the workers")
        notes += self._pace_note()
        speeds = summary.speed_notes(forecast.prediction.machine_speed for forecast in self.forecasts)
        return notes + speeds + self.device_notes()

    def _pace_note(self) -> list[str]:
        """Return a sentence if only the strategy was varied, but sync_every differs, too."""
        paces: dict[Any, set[Any]] = {}
        for row in self.rows:
            if row.workers > 1:
                paces.setdefault(row.settings["strategy"], set()).add(row.settings["sync_every"])
        if any(len(pace_values) > 1 for pace_values in paces.values()) or len(set().union(*paces.values())) < 2:
            return []
        each = ", ".join(f"{one_line(str(name))} every {pace_values.pop()}" for name, pace_values in paces.items())
        return [f"by default strategies average after different numbers of steps ({each}); sync_every makes them equal"]

    def findings(self) -> list[str]:
        """Return sentences on where the speedups level off, and on settings that make no difference."""
        return [*self.explanation(), *self.reasons()]

    def explanation(self) -> list[str]:
        """Return sentences on the number of workers at which each speedup levels off, and the reason."""
        return explain_knees([family for family in scaling_families(self.rows) if len(family[1]) > 1])

    def reasons(self) -> list[str]:
        """Return the reasons why settings make no difference, each once, with the settings that it applies to."""
        both = zip(self.rows, self.forecasts, strict=True)
        return summary.merge_reasons([(row.label, item.prediction.reasons) for row, item in both])

    def report(self, path: str | Path) -> Path:
        from tenfold.reports.pages.page import save_page
        from tenfold.reports.pages.run_pages import render_forecast

        return save_page(render_forecast(self), path)

    def __repr__(self) -> str:
        return f"<Forecast of {plural(len(self.rows), 'setting')}, {summary.PREDICTED}>"


def _row(predicted: Predicted, names: Sequence[str]) -> Row:
    experiment, prediction = predicted.experiment, predicted.prediction
    flat = experiment.flat()
    settings = {name: flat[name] for name in names}
    if experiment.parallel.average == "gradients":
        settings["sync_every"] = 1
    workers = experiment.parallel.workers
    times = {kind: fmean(map(float, each)) for kind, each in prediction.times.items()}
    return Row(
        label=describe_settings(settings),
        settings=settings,
        experiment=experiment,
        workers=workers,
        cores=workers,
        seconds=Spread((prediction.seconds,)),
        clock=summary.PREDICTED,
        interval=prediction.interval,
        calibrated=prediction.calibrated,
        bytes_per_worker=fmean(map(float, prediction.bytes_per_worker)),
        times={kind: times[kind] for kind in summary.TRAINING_KINDS if kind in times},
        doubts=load_doubts(prediction.calibration_load),
    )


SPANS: dict[str, tuple[str, ...]] = {
    "data and computing": ("data", "copy", "compute"),
    **{KIND_NAMES[kind]: (kind,) for kind in ("wait", "communicate", "evaluate", "save", "start")},
}
"""The rows of the table, and the kinds of time that each adds up."""
TOTAL, TO_TARGET = "training, total", "training to target"


@dataclass(frozen=True)
class TimePart:
    """A part of the time, measured and predicted."""

    name: str
    measured: float | None
    predicted: float | None

    @property
    def error(self) -> float | None:
        """The relative error, (predicted - measured) / measured; negative if the prediction is too short."""
        if not self.measured or self.predicted is None:
            return None
        return (self.predicted - self.measured) / self.measured


class Twin:
    """One experiment run for real and on a virtual cluster: as a table, JSON, a trace and an HTML report."""

    def __init__(self, real: Run, virtual: Run, difference: float) -> None:
        self.real = real
        self.virtual = virtual
        self.difference = difference
        """The largest difference between the weights; 0.0 means the same bits."""

    @property
    def parts(self) -> list[TimePart]:
        """The mean time over the workers by kind, then the training time of the slowest worker."""
        both, sections = (self.real, self.virtual), []
        for name, kinds in SPANS.items():
            spans = [[run.times[kind] for kind in kinds if kind in run.times] for run in both]
            if any(spans):
                sections.append(TimePart(name, *(sum(seconds) if seconds else None for seconds in spans)))
        reached = [run.seconds_to_target for run in both]
        if any(seconds is not None for seconds in reached):
            sections.append(TimePart(TO_TARGET, *reached))
        return [*sections, TimePart(TOTAL, self.real.seconds, self.virtual.seconds)]

    @property
    def error(self) -> float | None:
        """The relative error of the predicted training time."""
        return self.parts[-1].error

    @property
    def same_weights(self) -> bool:
        """Whether the final weights of both runs are the same, bit for bit."""
        return self.difference == 0.0

    def table(self) -> TextTable:
        rows = [
            [part.name, duration(part.measured), duration(part.predicted), signed_percent(part.error)]
            for part in self.parts
        ]
        if self.virtual.interval and self.virtual.seconds is not None:
            rows[-1][2] += f" {interval(*self.virtual.interval, self.virtual.seconds)}"
        return TextTable(["time", "measured", "predicted", "error"], rows, totals=1)

    def weights(self) -> str:
        return "0.0, bit for bit the same" if self.same_weights else f"{self.difference:.3g}, not the same"

    def notes(self) -> list[str]:
        notes = ["rows: mean over the workers; total: the slowest worker; error = (predicted - measured) / measured"]
        if (target := self.real.experiment.training.target) is not None:
            reached = self.real.seconds_to_target is not None
            until = f"training to target: until target {target:g}"
            notes.append(until if reached else f"target {target:g} was not reached; all epochs were trained")
        notes += summary.speed_notes([self.virtual.result.get("machine_speed", 1.0)])
        notes.append("startup: reading the data is included in the measured time, not in the predicted one")
        interval, seconds = self.virtual.interval, self.real.seconds
        if interval and seconds is not None:
            inside = interval[0] <= seconds <= interval[1]
            notes.append(f"{summary.INTERVAL}; the measured time is {'inside' if inside else 'outside'}")
        return [*notes, summary.UNCALIBRATED] if summary.is_uncalibrated(self.virtual) else notes

    def record(self) -> dict[str, Any]:
        return {
            "real": self.real.id,
            "virtual": self.virtual.id,
            "weights_largest_difference": self.difference,
            "parts": [asdict(part) | {"error": part.error} for part in self.parts],
            "interval": self.virtual.interval,
            "target": self.real.experiment.training.target,
        }

    def to_json(self) -> str:
        return json_text(self.record(), indent=2) + "\n"

    def trace(self) -> dict[str, Any]:
        """Return a trace for Perfetto and chrome://tracing, with two processes: measured and predicted."""
        real, virtual = self.real.trace(), self.virtual.trace()
        return real | {"traceEvents": real["traceEvents"] + virtual["traceEvents"]}

    def report(self, path: str | Path) -> Path:
        """Write an HTML report with the table and both timelines, and return its path."""
        from tenfold.reports.pages.page import save_page
        from tenfold.reports.pages.run_pages import render_twin

        return save_page(render_twin(self), path)

    def __rich__(self) -> "Group":
        from rich.console import Group
        from rich.text import Text

        weights = Text(self.weights(), style="bold" if self.same_weights else "bold red")
        head = Text.assemble(
            "largest difference between the weights  ", weights, f"  (runs {self.real.id} and {self.virtual.id})"
        )
        return Group(head, Text(), self.table().to_rich(), Text(), *(Text(note, style="dim") for note in self.notes()))

    def __str__(self) -> str:
        from tenfold.reports.display import as_plain_text

        return as_plain_text(self, 120)

    def __repr__(self) -> str:
        both = f"{self.real.id} and {self.virtual.id}"
        error = signed_percent(self.error)
        return f"<Twin of runs {both}: weights differ by {self.difference:.3g}, predicted time by {error}>"


def signed_percent(error: float | None) -> str:
    return NOTHING if error is None else f"{error:+,.{0 if abs(error) >= 10 else 1}%}"


WORSE = " ▼"
"""Marks models that are worse than the model of one worker."""


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
    """Whether the model is worse than the model of one worker by more than the noise."""


class ScalingStudy(Result):
    """How training time changes with the workers: for the same data, and for the same data per worker."""

    words = 2

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
        """Training samples per worker in weak scaling."""
        self.link = link
        predicted = [row for item in far_weak for row in item.rows]
        self.strong = [
            *self._points(strong.rows, summary.MEASURED),
            *self._points(far.rows if far else [], summary.PREDICTED),
        ]
        self.weak = [*self._points(weak.rows, summary.MEASURED), *self._points(predicted, summary.PREDICTED)]
        self.failed = strong.failed | weak.failed
        rows = [*strong.rows, *weak.rows, *(far.rows if far else []), *predicted]
        self.doubts = {doubt: DOUBTS[doubt] for row in rows for doubt in row.doubts}
        """Reasons not to trust some times, such as measurements on a busy machine."""

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
            if seconds
        ]

    def _score(self, row: Row) -> float | None:
        return row.metrics[self.metric].mean if self.metric in row.metrics else None

    def text_table(self) -> TextTable:
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
                    metric_value(self.metric, point.score) + (WORSE if point.is_worse else ""),
                    duration(other.seconds) if other else NOTHING,
                    f"{other.ratio:.0%}{WORSE if other.is_worse else ''}" if other else NOTHING,
                ]
            )
        names = ["workers", "clock", "strong: time", "speedup", "efficiency", self.metric, "weak: time", "efficiency"]
        return TextTable(names, rows)

    def sentences(self) -> list[str]:
        """Return the text on scaling for a proposal to a computing center.

        For each clock, it uses the largest number of workers whose model is as good as the model of one worker.
        """
        texts = []
        for clock in (summary.MEASURED, summary.PREDICTED):
            strong, weak = (
                [point for point in points if point.clock == clock and not point.is_worse]
                for points in (self.strong, self.weak)
            )
            where = "on this machine" if clock == summary.MEASURED else f"on nodes of one worker joined by {self.link}"
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
                f"Worse than one worker by more than the noise: {counts} workers{self._at_what(worse[-1])}; predicted "
                "times say nothing about accuracy."
            )
        return texts

    def _at_what(self, last: ScalingPoint) -> str:
        alone = next((point.score for point in self.strong if point.workers == 1 and point.score is not None), None)
        if last.score is None or alone is None:
            return ""
        values = metric_value(self.metric, last.score), metric_value(self.metric, alone)
        return f", with {self.metric} {values[0]} (one worker: {values[1]})"

    def notes(self) -> list[str]:
        return [
            "strong: the same data for all workers together; speedup = T1/Tn, efficiency = speedup / workers",
            f"weak: {self.samples:,} training samples per worker; efficiency = T1/Tn",
            *(
                [f"{WORSE.strip()} the model is worse than that of one worker by more than the noise"]
                * any(point.is_worse for point in (*self.strong, *self.weak))
            ),
            "times are training only; each is compared with one worker on the same clock",
            *self.doubts.values(),
            *(f"failed: {label}: {why}" for label, why in self.failed.items()),
        ]

    def records(self) -> list[dict[str, Any]]:
        return [
            {"scaling": name} | asdict(point)
            for name, points in (("strong", self.strong), ("weak", self.weak))
            for point in points
        ]

    def extra_json(self) -> dict[str, Any]:
        return {"samples_per_worker": self.samples, "link": self.link, "sentences": self.sentences()}

    def lines(self) -> list[str]:
        return [*self.sentences(), *self.notes()]

    def report(self, path: str | Path) -> Path:
        from tenfold.reports.pages.page import save_page
        from tenfold.reports.pages.run_pages import render_scaling

        return save_page(render_scaling(self), path)

    def __repr__(self) -> str:
        return f"<ScalingStudy to {plural(max(point.workers for point in self.strong), 'worker')}>"
