"""One row for each setting, over its repeats: the numbers behind tables and plots of several runs."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, Literal

from tenfold.common.metric_table import loss_last
from tenfold.experiment import FIELDS, Experiment
from tenfold.report import clocks, summary
from tenfold.report.differences import (
    MIXING_FIELDS,
    comparable_fields,
    describe_settings,
    group_repeats,
    label_runs,
    varied_settings,
)
from tenfold.runs import Run

MACHINE_FIELDS = (
    *("threads", "pin", "oversubscribe", "engine", "transport", "fused", "fold_mode", "link"),
    *("distribute", "loader_workers", "loader", "on_failure", "log_every", "save_predictions"),
)
"""Fields that say how and where to train, not what is learned: a baseline may differ in them."""
MOST_SPEEDUP_PER_CORE = 1.15
"""A speedup per core above this cannot come from dividing the work, even if one worker's threads gain nothing."""
MOST_LOAD_PER_CORE = 1.25
"""A load average per core above this means that other programs were running; the run itself makes about 1."""
CPU = "cpu"
Interval = tuple[float, float]
Doubt = Literal["speedup", "load"]
DOUBTS: dict[Doubt, str] = {
    "speedup": "the speedup exceeds 115% of the cores: other programs or spinning threads probably slowed down the run "
    "with one worker; repeat it on an idle machine",
    "load": "the machine's load exceeded its number of cores: other programs were running, so the time is unreliable",
}


@dataclass(frozen=True)
class Spread:
    """The values of a repeated measurement."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean; None where there are no values."""
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
    """What the speedup is divided by for the efficiency: the cores in use, or the worker nodes of a virtual cluster."""
    seconds: Spread
    clock: str = clocks.MEASURED
    """Either "measured" or "predicted"."""
    interval: Interval | None = None
    """The range in which nine of ten runs should fall; None for measured times."""
    calibrated: bool = True
    """Whether predicted times come from measured step times, not from hardware described by hand."""
    seconds_to_target: Spread = Spread()
    """Training time to the target, of the runs that reached it."""
    target_speedup: float | None = None
    """T1 / Tn of the training times to the target; None unless all runs of both settings reached it."""
    metrics: dict[str, Spread] = field(default_factory=dict)
    """The final measurements on `part`, the loss last."""
    part: str = "test"
    """The part of the data that `metrics` are about: test, or validation."""
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
    """How many of its runs a comparison has not run again, because they were recorded before."""
    doubts: tuple[Doubt, ...] = ()
    """Why the time or the speedup should not be trusted: see DOUBTS."""
    shares: dict[str, float] = field(init=False)
    """Shares of the training time by kind."""

    def __post_init__(self) -> None:
        whole = sum(self.times.values()) or 1.0
        object.__setattr__(self, "shares", {kind: seconds / whole for kind, seconds in self.times.items()})

    @cached_property
    def comparable(self) -> dict[str, Any]:
        """All fields, without the values of those that follow from others."""
        return comparable_fields(self.experiment)

    def describe_without(self, field: str) -> str:
        """Return all settings but one as a phrase."""
        return describe_settings({name: value for name, value in self.settings.items() if name != field})

    @property
    def accuracy(self) -> Spread:
        """The accuracy; empty where there are no classes."""
        return self.metrics.get("accuracy", Spread())

    @property
    def loss(self) -> Spread:
        """The loss."""
        return self.metrics.get("loss", Spread())


def make_rows(runs: Sequence[Run]) -> list[Row]:
    """Return one row for each setting, in the order of their first runs."""
    groups = group_repeats(runs)
    settings = varied_settings([one[0] for one in groups])
    firsts = label_runs([one[0] for one in groups])
    if len(groups) == 1 and len(runs) > 1:
        firsts = ["all runs"]
    return with_ratios([_row(*one) for one in zip(firsts, groups, settings, strict=True)])


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with speedup, gain and the like; a measured time is never compared with a predicted one."""
    slowest: dict[str, float] = {}
    for row in rows:
        slowest[row.clock] = max(slowest.get(row.clock, 0.0), row.seconds.mean or 0.0)
    return [_with_ratios(row, baseline_row(row, rows), cpu_row(row, rows), slowest[row.clock]) for row in rows]


def spread_of(values: Iterable[float | None]) -> Spread:
    """Return the finite ones among some values."""
    return Spread(tuple(value for value in values if value is not None and math.isfinite(value)))


def _row(label: str, group: Sequence[Run], settings: dict[str, Any]) -> Row:
    first = group[0]
    workers = first.result.get("workers", first.experiment.division.workers)
    threads = first.result.get("threads", first.experiment.machine.threads)
    times = [run.times for run in group if run.times]
    intervals = [run.interval for run in group if run.interval]
    return Row(
        label=label,
        settings=settings,
        experiment=first.experiment,
        runs=tuple(group),
        workers=workers,
        threads=threads,
        cores=_cores(first, workers, threads),
        seconds=spread_of(run.seconds for run in group),
        clock=first.clock,
        interval=(fmean(low for low, _ in intervals), fmean(high for _, high in intervals)) if intervals else None,
        calibrated=not any(clocks.is_uncalibrated(run) for run in group),
        seconds_to_target=spread_of(run.seconds_to_target for run in group),
        metrics=metrics_of(group),
        part=next((summary.evaluated_part(run) for run in group if run.metrics), "test"),
        bytes_per_worker=spread_of(run.result.get("bytes_moved") for run in group).mean or 0.0,
        times=_mean_times(times),
        doubts=_load_doubts(group),
    )


def _mean_times(times: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean training time by kind; copies only where there were any, on a GPU."""
    kinds = [kind for kind in summary.TRAINING_KINDS if kind != "copy" or any(kind in one for one in times)]
    return {kind: fmean(one.get(kind, 0.0) for one in times) for kind in kinds} if times else {}


def metrics_of(runs: Sequence[Run], part: str | None = None) -> dict[str, Spread]:
    """Return the final metrics of runs on a part of the data; by default, on the part that was evaluated last."""
    found = [loss_last(run.metrics if part is None else run.metrics_on(part)) for run in runs]
    names = dict.fromkeys(name for one in found for name in one)
    return {name: spread_of(one.get(name) for one in found) for name in names}


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
    both = all(one.runs and len(one.seconds_to_target.values) == len(one.runs) for one in (alone, row))
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
    samples = {run.result.get("samples") for one in both for run in one.runs}
    if len(samples) < 2 or not all(samples):
        return other.seconds, row.seconds
    first, second = (spread_of(run.seconds and run.seconds / run.result["samples"] for run in one.runs) for one in both)
    return first, second


def _ratio(other: Spread, own: Spread) -> tuple[float, float | None]:
    """Return the ratio of the mean times, other / own, and its deviation where both times have one."""
    ratio = (other.mean or 0.0) / (own.mean or 1.0)
    parts = [one.deviation / one.mean for one in (own, other) if one.deviation is not None and one.mean]
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
    found = [other for other in timed if agreeing(other, matters) == len(matters)]
    return max(found, key=lambda other: agreeing(other, MACHINE_FIELDS), default=None)


def _cores(run: Run, workers: int, threads: int | None) -> int:
    if run.clock == clocks.PREDICTED:
        return workers
    asked = workers * (threads or 1)
    return min(asked, run.facts.get("machine", {}).get("cpu", {}).get("budget") or asked)


def _load_doubts(group: Sequence[Run]) -> tuple[Doubt, ...]:
    """Return the doubt about times that were measured while other programs kept the machine busy."""
    measured = [run for run in group if run.clock == clocks.MEASURED]
    return ("load",) if any(_load_per_core(run) > MOST_LOAD_PER_CORE for run in measured) else ()


def _load_per_core(run: Run) -> float:
    load: dict[str, float] = run.result.get("load") or {}
    return max(load.get("before", 0.0), load.get("after", 0.0)) / (load.get("cores") or 1)
