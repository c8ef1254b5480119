"""A burst: a short run of the real process engine, whose spans give the times of steps and rounds."""

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from tenfold.cluster.hardware import Floats
from tenfold.data import Splits
from tenfold.engines.prepare import assign_cores
from tenfold.engines.processes import Processes
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.machine.metadata import clock_mhz, load_per_core
from tenfold.mixing import Strategy
from tenfold.prediction.measurements import (
    Averaging,
    Evaluating,
    Step,
    burst_statistics,
    tiny_regression,
    utc_now,
    write_trace,
)
from tenfold.runs.events import Event, Span, Stopwatch
from tenfold.transport import SharedTensor
from tenfold.workers.task import Resolved, Task

SYNC_EVERY = 3
"""A round in every third step: one step with the round, one right after it, and one that it does not affect."""
MOST_STEPS = 150
"""Steps of a worker that are certainly recorded one by one (see `SINGLE_SPANS` in workers/worker.py)."""
WARMUP_STEPS, WARMUP_SHARE = 3, 4
"""First steps of a process, in which torch prepares its kernels: at least this many, or 1/4 of a longer burst."""
EVALUATED, MOST_EVALUATED, EVALUATED_SHARE = 128, 1024, 4
"""Samples that each worker evaluates after each epoch: the minimum, the maximum, and the divisor that limits them to a
part of its training samples."""
MOST_BYTES = 1 << 26
"""Bytes of training data made for a burst: more than the caches hold, but quick to make."""


@dataclass(frozen=True, kw_only=True)
class Burst:
    """The times of a few steps of the real engine, in seconds."""

    steps: Floats
    """Data and compute of each step [steps, workers], without the cost of rounds."""
    warmup: float
    """Extra seconds that the first steps took."""
    round: float | None
    """One round from the arrival of the last partner, including its cost to adjacent steps; None without rounds."""
    round_shares: tuple[float, float] = (0.0, 1.0)
    """The shares of that round recorded as computing and as communicating; the rest is waiting for others."""
    delay: float | None = None
    """The mean time of a round until the last worker continues. It is much longer on a busy machine, where a waiting
    worker may not be running when the others arrive."""
    start: float
    evaluate: float
    """One evaluation."""
    evaluated: int = 0
    """The samples of an evaluation."""
    save: float
    """One checkpoint."""


def run(experiment: Experiment, splits: Splits, steps: int, checkpoints: Path | None = None) -> Burst:
    """Train for `steps` steps in worker processes, like any experiment, and read the spans."""
    task = burst_task(experiment, splits, steps, checkpoints)
    events: list[Event] = []
    result = Processes().run(task, Stopwatch(), events.append).result
    spans = [event for event in events if isinstance(event, Span) and event.count == 1]
    burst = read(spans, task.workers, task.strategy, result)
    return replace(burst, evaluated=len(task.evaluation_part) if task.evaluation_part is not None else 0)


def read(spans: Sequence[Span], workers: int, strategy: Strategy, result: dict[str, Any]) -> Burst:
    """Put the workers' single spans together into steps and rounds."""
    by_worker = [StepSpans([span for span in spans if span.worker == worker]) for worker in range(workers)]
    count = min(len(item.own) for item in by_worker)
    own, arrived, left, communicated = (
        np.column_stack([getattr(item, what)[:count] for item in by_worker]) for what in StepSpans.__slots__
    )
    cost = delay = None
    shares = (0.0, 1.0)
    if not strategy.round(0, workers).is_idle:
        own, in_rounds = _without_rounds(own)
        rounds = slice(SYNC_EVERY - 1, None, SYNC_EVERY)
        cost = in_rounds + round_seconds(arrived[rounds], left[rounds], strategy)
        delay = in_rounds + _delay(arrived[rounds], left[rounds])
        shares = _shares(in_rounds, float(np.median(communicated[rounds].mean(axis=1))), cost)
    begun = max(WARMUP_STEPS, len(own) // WARMUP_SHARE)
    warm = own[begun:]
    times = result["times"]
    return Burst(
        steps=warm,
        warmup=max(0.0, _slowest(own[:begun]) - _usual(warm, begun)),
        round=cost,
        delay=delay,
        round_shares=shares,
        start=times["start"],
        evaluate=times["evaluate"] / (result["epochs"] + 1),
        save=times["save"] / result["epochs"],
    )


def _slowest(stretch: Floats) -> float:
    return float(stretch.sum(axis=0).max())


def _usual(warm: Floats, length: int) -> float:
    """Return the typical time of the slowest worker for this number of steps: some worker is always behind."""
    stretches = [warm[at : at + length] for at in range(0, max(1, len(warm) - length + 1), length)]
    return float(np.mean([_slowest(stretch) / len(stretch) for stretch in stretches])) * length


class StepSpans:
    """One worker's steps: the time of each, when its own work and its round were done, and how long it communicated."""

    __slots__ = ("own", "arrived", "left", "communicated")  # noqa: RUF023 - in this order they are unpacked

    def __init__(self, spans: Sequence[Span]) -> None:
        own, arrived, left, communicated = [], [], [], []
        data, begun = 0.0, False
        for span in spans:
            if span.kind == "data":
                data = span.seconds
            elif span.kind == "compute":
                own.append(data + span.seconds)
                arrived.append(span.at + span.seconds)
                left.append(span.at + span.seconds)
                communicated.append(0.0)
                begun = True
            elif begun and span.kind in ("wait", "communicate"):
                left[-1] += span.seconds
                communicated[-1] += span.seconds if span.kind == "communicate" else 0.0
        self.own, self.arrived, self.left = np.array(own), np.array(arrived), np.array(left)
        self.communicated = np.array(communicated)


def _shares(computing: float, communicating: float, whole: float) -> tuple[float, float]:
    """Return the shares of a round's cost that are computing and communicating."""
    if whole <= 0:
        return 0.0, 1.0
    computing_share = min(1.0, max(0.0, computing) / whole)
    return computing_share, min(1.0 - computing_share, communicating / whole)


def _without_rounds(own: Floats) -> tuple[Floats, float]:
    """Return the steps without the cost of rounds, and that cost.

    The step before a round includes its bookkeeping; the one after finds its weights in another core's cache.
    """
    place = np.arange(len(own)) % SYNC_EVERY
    usual, before, after = (own[WARMUP_STEPS:][place[WARMUP_STEPS:] == at] for at in (1, SYNC_EVERY - 1, 0))
    extra = [_beyond_chance(before, usual), _beyond_chance(after, usual)]
    without = own - np.select([place == SYNC_EVERY - 1, place == 0], extra, 0.0)[:, None]
    return np.maximum(without, own.min()), sum(extra)


def _beyond_chance(some: Floats, others: Floats) -> float:
    """Return the difference of the two medians if it is positive and more than chance, else 0."""
    difference = float(np.median(some) - np.median(others))
    deviation = 1.48 * float(np.median(np.abs(others - np.median(others))))
    error = 1.25 * deviation * np.sqrt(1 / some.size + 1 / others.size)
    return difference if difference > 2 * error else 0.0


def round_seconds(arrived: Floats, left: Floats, strategy: Strategy) -> float:
    """Return the median over rounds of the workers' mean time since the last of their partners arrived."""
    n, costs = arrived.shape[1], []
    for r, (came, went) in enumerate(zip(arrived, left, strict=True)):
        round_ = strategy.round(r, n)
        last = [came[[rank, *round_.partners(rank)]].max() for rank in range(n)]
        costs.append(np.mean(went - last))
    return float(np.median(costs[1:] or costs))


def _delay(arrived: Floats, left: Floats) -> float:
    """Return the mean, over rounds of all workers, of the time from the last arrival until the last one continues."""
    delays = left.max(axis=1) - arrived.max(axis=1)
    return float(np.mean(delays[1:] if len(delays) > 1 else delays))


def burst_task(experiment: Experiment, splits: Splits, steps: int, checkpoints: Path | None = None) -> Task:
    """Return a task of about this number of steps on some of the data, which only trains."""
    parallel, batch = experiment.parallel, experiment.training.samples_per_step
    steps = max(SYNC_EVERY, steps // SYNC_EVERY * SYNC_EVERY)
    sample = next(splits.train.batches([[0]]))[0]
    affordable = MOST_BYTES // max(1, getattr(sample, "nbytes", 1)) // (batch * parallel.workers)
    each = max(SYNC_EVERY, min(steps, affordable) // SYNC_EVERY * SYNC_EVERY)
    wanted = torch.arange(each * batch * parallel.workers) % len(splits.train)
    part = splits.validation or splits.test
    evaluated = parallel.workers * max(EVALUATED, min(MOST_EVALUATED, each * batch // EVALUATED_SHARE))
    few = part.subset(torch.arange(min(len(part), evaluated))) if part is not None else None
    some = replace(splits, train=splits.train.subset(wanted), validation=None, test=few)
    calm = experiment.replace(
        epochs=-(-steps // each),
        sync_every=SYNC_EVERY,
        evaluate_every=1,
        target=None,
        local_after=0,
        shards="iid",
        fractions=None,
        folds=None,
        patience=None,
        engine="processes",
        oversubscribe=True,
        # steps so small that no weight diverges; a line search would need many trials from there
        lr=experiment.training.lr if experiment.training.optimizer_traits.steps_with_all_workers else 1e-6,
    )
    return Task.of(Resolved.of(calm), some, *assign_cores(calm.machine, parallel.workers, cores.budget()), checkpoints)


ReportProgress = Callable[[str], None]
"""Called with a line of text about each measurement; not a listener of events."""
Setting = TypeVar("Setting")

TURNS, MOST_TURNS, BURSTS = 5, 9, 18
"""Turns in which a setting is measured; the median is used. With few settings, there are more turns."""
BURST_SECONDS, FEWEST_STEPS = 0.6, 12
SIZES = {1 << 18: MOST_STEPS, 1 << 22: 90, 1 << 25: 24}
"""Bytes of weights, and steps of a burst."""
PLAIN: dict[str, Any] = {
    "divide": "data",
    "stages": None,
    "strategy_options": {},
    "average": "weights",
    "outer": "none",
    "outer_options": {},
    "compression": "none",
    "compression_options": {},
    "optimizer_state": "local",
    "oversubscribe": True,
}
"""The settings of `[parallel]` that a burst replaces with the simplest choice."""


class Kind(NamedTuple):
    """A kind of rounds."""

    fields: dict[str, Any]
    """The fields of an experiment with such rounds."""
    kind: Literal["group", "neighbors"]
    fan: int | None
    """None: all workers."""
    fits: Callable[[int], bool]
    """Returns whether this number of workers has such rounds, and they are not equal to another kind."""


ROUNDS = {
    "all": Kind({"strategy": "allreduce"}, "group", None, lambda _: True),
    "pairs": Kind({"strategy": "butterfly"}, "group", 2, lambda n: n > 2 and n.bit_count() == 1),
    "both neighbors": Kind({"strategy": "ring"}, "neighbors", 3, lambda n: n > 3),
    "one neighbor": Kind({"strategy": "ring", "strategy_options": {"sides": 1}}, "neighbors", 2, lambda n: n > 2),
}


def describe_workers(workers: int, threads: int) -> str:
    """Return "2 workers with 1 thread each"."""
    each = f"{threads} thread{'' if threads == 1 else 's'}"
    return f"1 worker with {each}" if workers == 1 else f"{workers} workers with {each} each"


def steps(
    work: str,
    experiment: Experiment,
    splits: Splits,
    settings: Sequence[tuple[int, int, int]],
    report: ReportProgress,
    turns: int | None = None,
) -> tuple[list[Step], list[Evaluating]]:
    """Measure steps in settings (batch size, threads, workers), interleaved, each in `turns` turns if given."""
    lengths: dict[tuple[int, int, int], int] = {}
    batch = experiment.training.samples_per_step

    def measure(setting: tuple[int, int, int], length: int | None = None) -> Burst:
        batch_size, threads, workers = setting
        report(f"measuring steps of {work}: batch {batch_size}, {describe_workers(workers, threads)}")
        burst = step_burst(experiment, splits, setting, length or lengths.get(setting, lengths[settings[0]]))
        lengths[setting] = burst_length(burst)
        return burst

    measure(settings[0], FEWEST_STEPS)  # determines the length of a burst
    whole, smaller = ([setting for setting in settings if (setting[0] == batch) == usual] for usual in (True, False))
    measured = measure_interleaved(whole, measure, turns or min(MOST_TURNS, max(TURNS, BURSTS // len(whole))))
    measured |= measure_interleaved(smaller, measure, (turns or TURNS) // 2 + 1)
    return (
        [step_entry(work, setting, bursts) for setting, bursts in measured.items()],
        [evaluating_entry(work, setting, bursts) for setting, bursts in measured.items() if bursts[0].evaluated],
    )


def step_burst(experiment: Experiment, splits: Splits, setting: tuple[int, int, int], steps: int) -> Burst:
    """Time about `steps` steps in one setting (batch size, threads, workers)."""
    batch_size, threads, workers = setting
    chosen = experiment.replace(batch_size=batch_size, threads=threads, workers=workers, strategy="allreduce", **PLAIN)
    return run(chosen, splits, min(MOST_STEPS, max(FEWEST_STEPS, steps)))


def measure_averaging(
    counts: Sequence[int], report: ReportProgress, turns: int | None = None
) -> tuple[list[Averaging], dict[int, float]]:
    """Measure rounds in shared memory, of every kind and size, for these numbers of workers, and their startup."""
    splits = tiny_regression()
    kinds = [(n, kind) for n in counts for kind, about in ROUNDS.items() if about.fits(n)]
    start: dict[int, list[float]] = {}

    def measure(setting: tuple[int, str, int]) -> float:
        n, kind, nbytes = setting
        report(f"rounds of {n} workers, {kind}, {nbytes / 1e6:.2g} MB")
        burst = run(vector_experiment(nbytes, workers=n, **ROUNDS[kind].fields), splits, SIZES[nbytes])
        start.setdefault(n, []).append(burst.start)
        return max(burst.round or 0.0, 1e-7)

    measured = measure_interleaved([(n, kind, nbytes) for n, kind in kinds for nbytes in SIZES], measure, turns)
    entries = [
        Averaging.of(
            {nbytes: statistics.median(measured[n, kind, nbytes]) for nbytes in SIZES},
            transport="shared-memory",
            workers=n,
            kind=ROUNDS[kind].kind,
            fan=ROUNDS[kind].fan or n,
        )
        for n, kind in kinds
    ]
    return entries, {n: statistics.median(seconds) for n, seconds in start.items()}


def round_overhead(
    experiment: Experiment, splits: Splits, threads: int, added: dict[str, dict[str, Any]], report: ReportProgress
) -> dict[str, tuple[float, tuple[float, float]]]:
    """Measure the time that compression and other extras add to rounds between an experiment's steps.

    Returns the seconds, and the shares recorded as computing and as communicating.
    """

    def measure(name: str, length: int) -> Burst:
        report(f"rounds of 2 workers, {name or 'no extras'}")
        fields = PLAIN | added.get(name, {}) | {"strategy": "allreduce", "workers": 2, "threads": threads}
        return run(experiment.replace(**fields), splits, length)

    length = burst_length(measure("", FEWEST_STEPS))
    measured = measure_interleaved(["", *added], lambda name: _round_parts(measure(name, length)))
    parts = {name: np.median(bursts, axis=0) for name, bursts in measured.items()}
    longer = {name: (parts[name] - parts[""]).tolist() for name in added}
    return {
        name: (max(0.0, whole), _shares(computing, max(0.0, communicating), whole))
        for name, (whole, computing, communicating) in longer.items()
    }


def _round_parts(burst: Burst) -> tuple[float, float, float]:
    """Return the seconds of a round: in all, computing, communicating."""
    whole, (computing, communicating) = burst.round or 0.0, burst.round_shares
    return whole, computing * whole, communicating * whole


def measure_saving(report: ReportProgress) -> tuple[dict[int, float], float]:
    """Measure the checkpoints of one worker by the bytes of its weights, and its startup."""
    seconds, start = {}, []
    for nbytes in SIZES:
        report(f"checkpoints of {nbytes / 1e6:.2g} MB")
        with tempfile.TemporaryDirectory() as folder:
            burst = run(vector_experiment(nbytes), tiny_regression(), FEWEST_STEPS, Path(folder))
        seconds[nbytes] = burst.save
        start.append(burst.start)
    return seconds, statistics.median(start)


def measure_adding() -> float:
    total, other = np.zeros(1 << 20, np.float32), np.ones(1 << 20, np.float32)
    return _seconds(50, lambda: np.add(total, other, out=total)) / total.nbytes


def measure_sharing() -> float:
    data = torch.ones(1 << 24)
    return _seconds(5, lambda: SharedTensor(data).close()) / data.nbytes


def vector_experiment(nbytes: int, **fields: Any) -> Experiment:
    return Experiment(
        model="tenfold.models.networks:Vector",
        model_options={"numel": nbytes // 4},
        batch_size=2,
        optimizer="sgd",
        momentum=0.0,
        loss="mse",
        threads=1,
        oversubscribe=True,
        **fields,
    )


def measure_interleaved(
    settings: Iterable[Setting], measure: Callable[[Setting], Any], turns: int | None = None
) -> dict[Setting, list[Any]]:
    """Measure all settings in turn, several times, so a disturbance does not affect one setting alone."""
    settings = list(settings)
    measured: dict[Setting, list[Any]] = {setting: [] for setting in settings}
    for _ in range(turns or TURNS):
        for setting in settings:
            measured[setting].append(measure(setting))
    return measured


def burst_length(before: Burst) -> int:
    """Return the number of steps of a burst, given the step times of an earlier one."""
    return int(min(MOST_STEPS, max(FEWEST_STEPS, BURST_SECONDS / float(np.median(before.steps)))))


def _seconds(calls: int, call: Callable[[], object]) -> float:
    seconds = []
    for _ in range(calls):
        started = perf_counter()
        call()
        seconds.append(perf_counter() - started)
    return statistics.median(seconds)


def step_entry(work: str, setting: tuple[int, int, int], bursts: Sequence[Burst]) -> Step:
    """Return the profile entry for the steps of one setting (batch size, threads, workers), from its bursts."""
    batch_size, threads, workers = setting
    rounds = [burst.round for burst in bursts if burst.round is not None]
    relative = np.concatenate([burst.steps / burst.steps.mean() for burst in bursts])
    return Step(
        work=work,
        batch_size=batch_size,
        threads=threads,
        workers=workers,
        **burst_statistics([burst.steps for burst in bursts]),
        samples=relative.size,
        load=load_per_core(),
        at=utc_now(),
        clock_mhz=clock_mhz(),
        warmup=statistics.median(burst.warmup for burst in bursts),
        round=statistics.median(rounds) if rounds else None,
        round_shares=tuple(np.median([burst.round_shares for burst in bursts], axis=0).tolist()) if rounds else None,
        trace=write_trace(relative),
    )


def evaluating_entry(work: str, setting: tuple[int, int, int], bursts: Sequence[Burst]) -> Evaluating:
    """Return the profile entry for an evaluation in one setting (batch size, threads, workers), from its bursts."""
    _, threads, workers = setting
    return Evaluating(
        work=work,
        threads=threads,
        workers=workers,
        samples=bursts[0].evaluated,
        seconds=statistics.median(burst.evaluate for burst in bursts),
    )


def counts_up_to(most: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and `most`."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most
