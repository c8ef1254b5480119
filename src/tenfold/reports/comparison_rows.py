"""One row for each setting of a comparison: its metrics, times and speedups over all repeats."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from statistics import fmean, stdev
from typing import Any, Literal

from tenfold.common import PARTS
from tenfold.common.metric_traits import describe_direction, loss_last, main_metric
from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS, Experiment
from tenfold.machine.metadata import MOST_LOAD_PER_CORE
from tenfold.registry import suggest
from tenfold.reports import summary
from tenfold.reports.differences import (
    MIXING_FIELDS,
    comparable_fields,
    describe_settings,
    group_repeats,
    label_runs,
    varied_settings,
)
from tenfold.reports.formatting import grouped, metric_value, one_line
from tenfold.reports.summary import KIND_NAMES, OTHER_KINDS, TRAINING_KINDS
from tenfold.runs import Run
from tenfold.runs.run import as_asked
from tenfold.runs.store import CROSSVAL

MIXING_KINDS = ("wait", "communicate")
SECONDS = {
    "seconds": "training time",
    "seconds_without_averaging": "time without averaging",
    "seconds_with_evaluation": "time with evaluation",
    "seconds_in_all": "time in all",
    "seconds_to_target": "time to target",
}
"""Times that a table can show, with their headings."""
KIND_SECONDS = {f"{kind}_seconds": name for kind, name in KIND_NAMES.items()}
"""The times of single kinds, with their headings: compute_seconds, communicate_seconds, evaluate_seconds."""
TIMES = SECONDS | KIND_SECONDS
EXPLAINED = {
    "seconds_without_averaging": "data, copies to a GPU and computing, without averaging; mean over the workers",
    "seconds_with_evaluation": "training and evaluation",
    "seconds_in_all": "startup, training, evaluation and saving",
}
NUMBERS = (
    *("workers", "threads", "cores", "seconds", "clock", "calibrated", "accuracy", "loss", "bytes_per_worker"),
    *("speedup", "speedup_deviation", "efficiency", "improvement", "gain"),
    *("factor_against_cpu", "factor_against_cpu_deviation"),
)
"""The attributes of each row that JSON and CSV contain."""


@dataclass(frozen=True)
class RatioFormat:
    """The format of a ratio's column."""

    field: str
    """The attribute of a row with its value."""
    heading: str
    short: str
    form: str
    factor: float = 1


RATIOS = {
    "speedup": RatioFormat("speedup", "speedup", "speedup", ".2f"),
    "efficiency": RatioFormat("efficiency", "efficiency %", "eff %", ".0f", 100),
    "PI": RatioFormat("improvement", "PI %", "PI %", ".1f"),
    "gain": RatioFormat("gain", "gain %", "gain %", ".0f"),
}
"""The ratios of times, by the names of their columns."""


def is_time(column: str) -> bool:
    return column in TIMES


def is_timed(column: str) -> bool:
    """Return whether a column holds seconds, or a ratio of seconds."""
    return is_time(column) or column in RATIOS


def known_columns(metrics: Iterable[str]) -> list[str]:
    """Return the names of all columns, given those of the metrics; each metric also on a part, as in test_accuracy."""
    names = list(dict.fromkeys(metrics))
    on_parts = [f"{part}_{name}" for name in names for part in PARTS]
    return [*SECONDS, *RATIOS, *names, *on_parts, *KIND_SECONDS]


def require_columns(columns: Sequence[str], metrics: Iterable[str]) -> None:
    """Raise an error with the names of all columns if a column does not exist."""
    existing = known_columns(metrics)
    for name in columns:
        if name not in existing:
            raise ExperimentError(f"unknown column '{name}'; {suggest(name, existing)}")


def run_value(run: Run, column: str) -> float | None:
    """Return a number of one run; None if it was not measured, and for ratios, which need several runs.

    A run that copied nothing, as on a CPU, has no seconds of copying.
    """
    if column == "seconds":
        return run.seconds
    if column == "seconds_to_target":
        return run.seconds_to_target
    if column in KIND_SECONDS:
        if not run.times:
            return None
        seconds = run.times.get(column.removesuffix("_seconds"), 0.0)
        at_start: float = run.result.get("start_copy_seconds", 0.0)
        return (seconds + at_start or None) if column == "copy_seconds" else seconds
    if column in SECONDS:
        if run.seconds is None or not run.times:
            return None
        if column == "seconds_without_averaging":
            return sum(run.times.get(kind, 0.0) for kind in TRAINING_KINDS if kind not in MIXING_KINDS)
        others = ("evaluate",) if column == "seconds_with_evaluation" else OTHER_KINDS
        return run.seconds + sum(run.times.get(kind, 0.0) for kind in others)
    if column in run.metrics:
        return run.metrics[column]
    part, _, metric = column.partition("_")
    return run.metrics_on(part).get(metric) if part in PARTS else None


MACHINE_FIELDS = (
    *("threads", "pin", "oversubscribe", "engine", "transport", "stacking", "fold_mode", "link"),
    *("distribute", "loader_workers", "loader", "on_failure", "log_every", "save_predictions"),
)
"""Fields that say how and where to train, without effect on the weights: a baseline may differ in them."""
MOST_SPEEDUP_PER_CORE = 1.15
"""A speedup per core above this cannot come from dividing the work, even if one worker's threads gain nothing."""
CPU = "cpu"
Interval = tuple[float, float]
Doubt = Literal["speedup", "load", "jobs"]
DOUBTS: dict[Doubt, str] = {
    "speedup": "the speedup exceeds 115% of the cores: other programs or spinning threads probably slowed down the run "
    "with one worker; repeat it on an idle machine",
    "load": "other programs were running (a load above the number of cores) when this, or the steps that it is "
    "predicted from, was measured, so the time is unreliable",
    "jobs": "the folds were jobs of an executor, which decided how many ran at once, so the time does not show what "
    "the workers gain; --on local measures that",
}


@dataclass(frozen=True)
class Spread:
    """The values of a repeated measurement."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation; None for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None

    def written(self, write: Callable[[float | None], str]) -> str:
        """Return "mean ± deviation", both as a function such as `duration` writes them."""
        return write(self.mean) + (f" ± {write(self.deviation)}" if self.deviation is not None else "")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting over its repeats, or a prediction for it. Its times are all measured or all predicted."""

    label: str
    settings: dict[str, Any]
    """The fields in which the settings differ."""
    experiment: Experiment
    runs: tuple[Run, ...] = ()
    workers: int
    threads: int | None = None
    cores: int
    """The divisor of the speedup for the efficiency: the cores in use, or the worker nodes of a virtual cluster."""
    seconds: Spread
    clock: str = summary.MEASURED
    """Either "measured" or "predicted"."""
    interval: Interval | None = None
    """The range that should contain 80% of runs; None for measured times."""
    calibrated: bool = True
    """Whether predicted times come from measured step times, not from hardware described by hand."""
    seconds_to_target: Spread = Spread()
    """Training time to the target, of the runs that reached it."""
    target_speedup: float | None = None
    """T1 / Tn of the training times to the target; None unless all runs of both settings reached it."""
    metrics: dict[str, Spread] = field(default_factory=dict)
    """The final measurements on `part`, the loss last."""
    part: str = "test"
    """The part of the data on which `metrics` were measured: test or validation."""
    selected: bool | None = None
    """Whether it is the best setting on the validation part; None unless one was selected."""
    test_metrics: dict[str, Spread] = field(default_factory=dict)
    """The measurements on the test part, of a selected row alone."""
    bytes_per_worker: float
    times: dict[str, float]
    """Mean seconds of training by kind: data, copy, compute, wait, communicate."""
    speedup: float | None = None
    """T1 / Tn, against one worker with the same settings otherwise."""
    per_sample: bool = False
    """Whether speedup, efficiency and PI compare times per sample, as not all runs trained on as many samples."""
    speedup_deviation: float | None = None
    """S sqrt((s1 / T1)^2 + (sn / Tn)^2): the standard deviations s of both times, propagated to the speedup S."""
    efficiency: float | None = None
    """Speedup per core (per worker node of a virtual cluster), relative to the baseline."""
    improvement: float | None = None
    """PI = (T1 - Tn) / T1 x 100."""
    gain: float | None = None
    """Tslowest / Tn x 100."""
    factor_against_cpu: float | None = None
    """Tcpu / T, against the same settings on cpu; None on cpu itself."""
    factor_against_cpu_deviation: float | None = None
    """The deviations of both times, propagated as for the speedup."""
    factor_per_sample: bool = False
    """Whether the factor against cpu compares times per sample."""
    reused: int = 0
    """The number of its runs that were recorded earlier and reused by a comparison."""
    doubts: tuple[Doubt, ...] = ()
    """Why the time or the speedup should not be trusted: see DOUBTS."""
    shares: dict[str, float] = field(init=False)
    """Shares of the training time by kind."""

    def __post_init__(self) -> None:
        whole = sum(self.times.values()) or 1.0
        object.__setattr__(self, "shares", {kind: seconds / whole for kind, seconds in self.times.items()})

    @cached_property
    def comparable(self) -> dict[str, Any]:
        """All fields except those that follow from other fields."""
        return comparable_fields(self.experiment)

    def describe_without(self, field: str) -> str:
        return describe_settings({name: value for name, value in self.settings.items() if name != field})

    @property
    def accuracy(self) -> Spread:
        """The accuracy; empty if there are no classes."""
        return self.metrics.get("accuracy", Spread())

    @property
    def loss(self) -> Spread:
        return self.metrics.get("loss", Spread())


def make_rows(runs: Sequence[Run]) -> list[Row]:
    """Return one row for each setting, in the order of their first runs."""
    groups = group_repeats(runs)
    settings = varied_settings([group[0] for group in groups])
    firsts = label_runs([group[0] for group in groups])
    if len(groups) == 1 and len(runs) > 1:
        firsts = ["all runs"]
    return with_ratios([_row(*item) for item in zip(firsts, groups, settings, strict=True)])


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with speedup, gain and the like; a measured time is never compared with a predicted one."""
    slowest: dict[str, float] = {}
    for row in rows:
        slowest[row.clock] = max(slowest.get(row.clock, 0.0), row.seconds.mean or 0.0)
    return [_with_ratios(row, baseline_row(row, rows), cpu_row(row, rows), slowest[row.clock]) for row in rows]


def spread_of(values: Iterable[float | None]) -> Spread:
    return Spread(tuple(value for value in values if value is not None and math.isfinite(value)))


def _row(label: str, group: Sequence[Run], settings: dict[str, Any]) -> Row:
    first = group[0]
    workers = first.result.get("workers", first.experiment.parallel.workers)
    threads = summary.worker_threads(first)
    times = [run.times for run in group if run.times]
    kinds = [kind for kind in TRAINING_KINDS if kind != "copy" or any(kind in seconds for seconds in times)]
    has_fold_jobs = any(run.kind == CROSSVAL and "executor" in run.metadata for run in group)
    intervals = [run.interval for run in group if run.interval]
    return Row(
        label=label,
        settings=settings,
        experiment=as_asked(first.experiment, first.metadata),
        runs=tuple(group),
        workers=workers,
        threads=threads,
        cores=_cores(first, workers, threads),
        seconds=spread_of(run.seconds for run in group),
        clock=first.clock,
        interval=(fmean(low for low, _ in intervals), fmean(high for _, high in intervals)) if intervals else None,
        calibrated=not any(summary.is_uncalibrated(run) for run in group),
        seconds_to_target=spread_of(run.seconds_to_target for run in group),
        metrics=metrics_of(group),
        part=next((summary.evaluated_part(run) for run in group if run.metrics), "test"),
        bytes_per_worker=spread_of(run.result.get("bytes_moved") for run in group).mean or 0.0,
        times={kind: fmean(seconds.get(kind, 0.0) for seconds in times) for kind in kinds} if times else {},
        doubts=(*load_doubts_of(group), *(("jobs",) if has_fold_jobs else ())),
    )


def metrics_of(runs: Sequence[Run], part: str | None = None) -> dict[str, Spread]:
    """Return the final metrics of runs on a part of the data; by default, on the part that was evaluated last."""
    metrics = [loss_last(run.metrics if part is None else run.metrics_on(part)) for run in runs]
    names = dict.fromkeys(name for item in metrics for name in item)
    return {name: spread_of(item.get(name) for item in metrics) for name in names}


def _with_ratios(row: Row, alone: Row | None, cpu: Row | None, slowest: float) -> Row:
    if not row.seconds.mean:
        return row
    row = replace(row, gain=slowest / row.seconds.mean * 100)
    if cpu is not None and cpu.seconds.mean:
        on_cpu, own = _times_for_equal_work(cpu, row)
        factor, deviation = _ratio(on_cpu, own)
        row = replace(
            row,
            factor_against_cpu=factor,
            factor_against_cpu_deviation=deviation,
            factor_per_sample=own is not row.seconds,
        )
    if alone is None or not alone.seconds.mean:
        return row
    single, own = _times_for_equal_work(alone, row)
    speedup, deviation = _ratio(single, own)
    efficiency = speedup * alone.cores / row.cores
    incredible = row.workers > 1 and speedup > MOST_SPEEDUP_PER_CORE * row.cores
    both = all(item.runs and len(item.seconds_to_target.values) == len(item.runs) for item in (alone, row))
    return replace(
        row,
        doubts=(*row.doubts, "speedup") if incredible else row.doubts,
        target_speedup=_ratio(alone.seconds_to_target, row.seconds_to_target)[0] if both else None,
        speedup=speedup,
        speedup_deviation=deviation,
        per_sample=own is not row.seconds,
        efficiency=efficiency,
        improvement=(1 - 1 / speedup) * 100,
    )


def _times_for_equal_work(other: Row, row: Row) -> tuple[Spread, Spread]:
    """Return the times of two rows; the times per sample if a run among them stopped early, or lost samples."""
    both = (other, row)
    samples = {run.result.get("samples") for item in both for run in item.runs}
    if len(samples) < 2 or not all(samples):
        return other.seconds, row.seconds
    first, second = (
        spread_of(run.seconds and run.seconds / run.result["samples"] for run in item.runs) for item in both
    )
    return first, second


def _ratio(other: Spread, own: Spread) -> tuple[float, float | None]:
    """Return the ratio of the mean times, other / own, and its deviation where both times have one."""
    ratio = (other.mean or 0.0) / (own.mean or 1.0)
    parts = [item.deviation / item.mean for item in (own, other) if item.deviation is not None and item.mean]
    return ratio, ratio * math.hypot(*parts) if len(parts) == 2 and own is not other else None


def baseline_row(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row of one worker with the same settings and clock; of several, the one run most similarly."""
    return _closest_row(row, [other for other in rows if other.workers == 1], (*MIXING_FIELDS, "workers"))


def cpu_row(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row on the CPU with the same settings and clock; None for a row on the CPU."""
    if row.experiment.machine.device == CPU:
        return None
    there = [other for other in rows if other.experiment.machine.device == CPU and other.workers == row.workers]
    return _closest_row(row, there, ("device", *(MIXING_FIELDS if row.workers == 1 else ())))


def _closest_row(row: Row, rows: Sequence[Row], except_for: Sequence[str]) -> Row | None:
    """Return the row that agrees in clock and fields but for some; of several, the one run most similarly."""
    matters = [name for name in FIELDS if name not in (*except_for, *MACHINE_FIELDS, "seed")]

    def agreeing(other: Row, names: Sequence[str]) -> int:
        return sum(other.comparable[name] == row.comparable[name] for name in names)

    timed = [other for other in rows if other.seconds.values and other.clock == row.clock]
    agreeing_rows = [other for other in timed if agreeing(other, matters) == len(matters)]
    return max(agreeing_rows, key=lambda other: agreeing(other, MACHINE_FIELDS), default=None)


def _cores(run: Run, workers: int, threads: int | None) -> int:
    if run.clock == summary.PREDICTED:
        return workers
    threads_in_all = workers * (threads or 1)
    return min(threads_in_all, run.metadata.get("machine", {}).get("cpu", {}).get("budget") or threads_in_all)


def load_doubts_of(group: Sequence[Run]) -> tuple[Doubt, ...]:
    """Return the doubt about times that were measured, or calibrated, while other programs kept the machine busy."""
    return load_doubts(max(map(_load_per_core, group), default=0.0))


def load_doubts(load_per_core: float) -> tuple[Doubt, ...]:
    """Return the doubt about times that were measured, or predicted from measurements, under a load."""
    return ("load",) if load_per_core > MOST_LOAD_PER_CORE else ()


def _load_per_core(run: Run) -> float:
    if run.clock == summary.PREDICTED:
        return float(run.result.get("calibration_load") or 0.0)
    load: dict[str, float] = run.result.get("load") or {}
    return max(load.get("before", 0.0), load.get("after", 0.0)) / (load.get("cores") or 1)


def rows_metric(rows: Sequence[Row]) -> str:
    """Return the metric by which the models of these rows are compared."""
    return main_metric(name for row in rows for name, spread in row.metrics.items() if spread.values) or "loss"


def quality(row: Row, metric: str) -> float:
    """Return the metric of the trained model, negated if lower is better; -inf if unknown."""
    mean = row.metrics[metric].mean if metric in row.metrics else None
    lower = row.experiment.training.prefers_lower(metric)
    if mean is None or lower is None:
        return -math.inf
    return -mean if lower else mean


def direction(rows: Sequence[Row], metric: str) -> str:
    """Return "higher is better" or "lower is better"; "" if this is unknown or the rows disagree."""
    directions = {row.experiment.training.prefers_lower(metric) for row in rows}
    return describe_direction(directions.pop()) if len(directions) == 1 else ""


def mean_seconds(row: Row) -> float:
    return row.seconds.mean if row.seconds.mean is not None else math.inf


def idle_share(row: Row) -> float:
    return row.shares.get("wait", 0.0) + row.shares.get("communicate", 0.0)


def is_clearly_faster(row: Row, other: Row) -> bool:
    """Return whether one training time is shorter than another by more than their spread can explain.

    Without repeats there is no spread: then a difference below a millisecond, or below 2%, says nothing.
    """
    difference = mean_seconds(other) - mean_seconds(row)
    spreads = [item.seconds.deviation for item in (row, other) if item.seconds.deviation is not None]
    noise = math.hypot(*spreads) if len(spreads) == 2 else max(1e-3, 0.02 * mean_seconds(other))
    return difference > noise


LEAST_LOSS = 0.005
"""The share of a metric by which one without repeats has to be worse than another to count as worse."""


def is_clearly_worse(row: Row, other: Row, metric: str) -> bool:
    """Return whether a model is worse than another by more than their spread, or half a percent, can explain."""
    ours, theirs = quality(row, metric), quality(other, metric)
    if not (math.isfinite(ours) and math.isfinite(theirs)):
        return False
    spreads = [item.metrics[metric].deviation for item in (row, other)]
    noise = math.hypot(*(spread or 0.0 for spread in spreads)) if all(spreads) else LEAST_LOSS * abs(theirs)
    return theirs - ours > noise


def pareto_front(rows: Sequence[Row]) -> list[Row]:
    """Return the settings that no other setting beats in both training time and quality, fastest first.

    A setting counts as faster only if the difference is larger than the noise.
    """
    metric = rows_metric(rows)
    timed = sorted(rows, key=lambda row: (mean_seconds(row), -quality(row, metric)))
    timed = [row for row in timed if math.isfinite(mean_seconds(row)) and math.isfinite(quality(row, metric))]
    kept = []
    for at, row in enumerate(timed):
        as_good_and_faster = any(quality(other, metric) >= quality(row, metric) for other in timed[:at])
        better_and_as_fast = any(
            quality(other, metric) > quality(row, metric) and not is_clearly_faster(row, other)
            for other in timed[at + 1 :]
        )
        if not as_good_and_faster and not better_and_as_fast:
            kept.append(row)
    return kept


def choose_rows(rows: Sequence[Row], most: int) -> list[Row]:
    """Return at most this many rows: the first with one worker, then alternately the fastest and the best."""
    if len(rows) <= most:
        return list(rows)
    metric = rows_metric(rows)
    fastest = sorted(rows, key=mean_seconds)
    finest = sorted(rows, key=lambda row: (-quality(row, metric), mean_seconds(row)))
    turns = [row for pair in zip_longest(fastest, finest) for row in pair if row is not None]
    alone = [row for row in rows if row.workers == 1][:1]
    kept = {id(row) for row in list({id(row): row for row in (*alone, *turns)}.values())[:most]}
    return [row for row in rows if id(row) in kept]


def notable_rows(rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Return the fastest, the slowest and the most idle setting, each with the reason why it is shown."""
    timed = [row for row in rows if row.seconds.values]
    if not timed:
        return []
    notable = [("the fastest", min(timed, key=mean_seconds)), ("the slowest", max(timed, key=mean_seconds))]
    most = max(timed, key=idle_share)
    if idle_share(most):
        notable.append(("computes for the smallest share of its time", most))
    reasons = grouped((id(row), why) for why, row in notable)
    unique = {id(row): row for _, row in notable}
    return [(" and ".join(reasons[key]), row) for key, row in unique.items()]


NOT_VALIDATED = (
    "settings are selected on the validation part, but none of these runs has one; set validation_fraction, such as "
    "validation_fraction=0.1, or cross-validate with folds"
)


def select_by_validation(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with validation metrics; the best row is selected and also keeps its test metrics."""
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
