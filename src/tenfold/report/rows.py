"""What each setting gains and what it costs, over its repeats: the numbers behind tables and plots of several runs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from tenfold.experiment import FIELDS, Experiment
from tenfold.report import clocks, summary
from tenfold.report.differences import MIXING, labels, repeats, varied
from tenfold.runs import Run

OF_THE_MACHINE = ("threads", "pin", "engine", "transport", "fold_mode")
CPU = "cpu"
Interval = tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """A repeated measurement."""

    values: tuple[float, ...] = ()

    @property
    def mean(self) -> float | None:
        """The mean; None of nothing."""
        return fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation; None for fewer than two."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting, over its repeats; or one that was only predicted. All its times were told by one clock."""

    label: str
    settings: dict[str, Any]
    """The fields in which the settings differ."""
    experiment: Experiment
    runs: tuple[Run, ...] = ()
    workers: int
    threads: int | None = None
    cores: int
    """Cores in use: workers x threads, as far as there are so many."""
    seconds: Spread
    clock: str = clocks.MEASURED
    """Who told the times: measured or predicted."""
    interval: Interval | None = None
    """Between which times nine of ten runs should lie; None where they were measured."""
    calibrated: bool = True
    """Predicted times follow from measured ones; else from hardware described by hand."""
    metrics: dict[str, Spread] = field(default_factory=dict)
    """The final measurements, the accuracy first and the loss last."""
    bytes_per_worker: float
    times: dict[str, float]
    """Mean seconds of training by kind: data, compute, wait, communicate."""
    speedup: float | None = None
    """T1 / Tn, against one worker with the same settings otherwise."""
    speedup_deviation: float | None = None
    """S sqrt((s1 / T1)^2 + (sn / Tn)^2): the spreads s of both times, carried over to the speedup S."""
    efficiency: float | None = None
    """Speedup for each core that is used more."""
    improvement: float | None = None
    """PI = (T1 - Tn) / T1 x 100."""
    gain: float | None = None
    """Tslowest / Tn x 100."""
    factor_against_cpu: float | None = None
    """Tcpu / T, against the same settings on cpu; None on cpu itself."""
    factor_against_cpu_deviation: float | None = None
    """The spreads of both times, carried over as the speedup's are."""
    shares: dict[str, float] = field(init=False)
    """Of the training time, by kind."""

    def __post_init__(self) -> None:
        whole = sum(self.times.values()) or 1.0
        object.__setattr__(self, "shares", {kind: seconds / whole for kind, seconds in self.times.items()})

    @property
    def accuracy(self) -> Spread:
        """The accuracy; of nothing where there are no classes."""
        return self.metrics.get("accuracy", Spread())

    @property
    def loss(self) -> Spread:
        """The loss."""
        return self.metrics.get("loss", Spread())


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """Return one row for each setting, in the order of their first runs."""
    names, groups = varied(runs), repeats(runs)
    firsts = labels([one[0] for one in groups])
    if len(groups) == 1 and len(runs) > 1:
        firsts = ["all runs"]
    return rated([_row(label, group, names) for label, group in zip(firsts, groups, strict=True)])


def rated(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with what needs others to be said; a measured time is never held against a predicted one."""
    slowest: dict[str, float] = {}
    for row in rows:
        slowest[row.clock] = max(slowest.get(row.clock, 0.0), row.seconds.mean or 0.0)
    return [_rated(row, baseline(row, rows), on_cpu(row, rows), slowest[row.clock]) for row in rows]


def _row(label: str, group: Sequence[Run], names: Sequence[str]) -> Row:
    first = group[0]
    flat = first.experiment.flat()
    workers = first.result.get("workers", first.experiment.division.workers)
    threads = first.result.get("threads", first.experiment.machine.threads)
    times = [run.times for run in group if run.times]
    intervals = [run.interval for run in group if run.interval]
    return Row(
        label=label,
        settings={name: flat[name] for name in names},
        experiment=first.experiment,
        runs=tuple(group),
        workers=workers,
        threads=threads,
        cores=_cores(first, workers * (threads or 1)),
        seconds=_spread(run.seconds for run in group),
        clock=first.clock,
        interval=(fmean(low for low, _ in intervals), fmean(high for _, high in intervals)) if intervals else None,
        calibrated=not any(clocks.is_uncalibrated(run) for run in group),
        metrics=_metrics(group),
        bytes_per_worker=_spread(run.result.get("bytes_moved") for run in group).mean or 0.0,
        times={kind: fmean(one.get(kind, 0.0) for one in times) for kind in summary.TRAINING_KINDS} if times else {},
    )


def _metrics(group: Sequence[Run]) -> dict[str, Spread]:
    names = dict.fromkeys(name for run in group for name in summary.scores(run))
    return {name: _spread(run.metrics.get(name) for run in group) for name in names}


def _spread(values: Iterable[float | None]) -> Spread:
    return Spread(tuple(value for value in values if value is not None and math.isfinite(value)))


def _rated(row: Row, alone: Row | None, cpu: Row | None, slowest: float) -> Row:
    """Return the row with what needs others to be said."""
    seconds, single = row.seconds.mean, alone.seconds.mean if alone else None
    if not seconds:
        return row
    row = replace(row, gain=slowest / seconds * 100)
    if cpu is not None and cpu.seconds.mean:
        factor, deviation = _ratio(cpu.seconds, row.seconds)
        row = replace(row, factor_against_cpu=factor, factor_against_cpu_deviation=deviation)
    if alone is None or not single:
        return row
    speedup, deviation = _ratio(alone.seconds, row.seconds)
    return replace(
        row,
        speedup=speedup,
        speedup_deviation=deviation,
        efficiency=speedup * alone.cores / row.cores,
        improvement=(single - seconds) / single * 100,
    )


def _ratio(other: Spread, own: Spread) -> tuple[float, float | None]:
    """Return how many times as long the other takes, and its spread where both have one and are not the same."""
    ratio = (other.mean or 0.0) / (own.mean or 1.0)
    parts = [one.deviation / one.mean for one in (own, other) if one.deviation is not None and one.mean]
    return ratio, ratio * math.hypot(*parts) if len(parts) == 2 and own is not other else None


def baseline(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row of one worker with the same settings and clock; of several, the one on the most alike machine."""
    return _twin(row, [other for other in rows if other.workers == 1], (*MIXING, "workers"))


def on_cpu(row: Row, rows: Sequence[Row]) -> Row | None:
    """Return the row on cpu with the same settings and clock, chosen as the baseline is; None for a row on cpu."""
    if row.experiment.machine.device == CPU:
        return None
    there = [other for other in rows if other.experiment.machine.device == CPU and other.workers == row.workers]
    return _twin(row, there, ("device", *(MIXING if row.workers == 1 else ())))


def _twin(row: Row, rows: Sequence[Row], but: Sequence[str]) -> Row | None:
    """Return the row with the same clock and settings but for some; of several, the one on the most alike machine."""
    ours = row.experiment.flat()
    matters = [name for name in FIELDS if name not in (*but, *OF_THE_MACHINE, "seed")]
    best, alike = None, -1
    for other in rows:
        theirs = other.experiment.flat()
        usable = other.seconds.values and other.clock == row.clock
        if usable and all(theirs[name] == ours[name] for name in matters):
            same = sum(theirs[name] == ours[name] for name in OF_THE_MACHINE)
            if same > alike:
                best, alike = other, same
    return best


def _cores(run: Run, asked: int) -> int:
    return min(asked, run.facts.get("machine", {}).get("cpu", {}).get("budget") or asked)
