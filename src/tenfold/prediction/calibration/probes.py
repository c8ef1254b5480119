"""What is measured, in short interleaved bursts."""

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch

from tenfold.data import Splits
from tenfold.experiment import Experiment
from tenfold.prediction import fit
from tenfold.prediction.calibration import burst
from tenfold.prediction.calibration.burst import MOST_STEPS, Burst
from tenfold.prediction.calibration.calibration_data import tiny_regression
from tenfold.prediction.measurements import Averaging, Evaluating, Step, write_trace
from tenfold.transport import SharedTensor

ReportProgress = Callable[[str], None]
"""Called with a line of text about each measurement; not a listener of events."""
Setting = TypeVar("Setting")

TURNS, MOST_TURNS, BURSTS = 5, 9, 18
"""The turns in which a setting is measured, whose median counts; more where few settings make few bursts."""
BURST_SECONDS, FEWEST_STEPS = 0.6, 12
SIZES = {1 << 18: MOST_STEPS, 1 << 22: 90, 1 << 25: 24}
"""Bytes of weights, and steps of a burst."""
PLAIN: dict[str, Any] = {
    "strategy_options": {},
    "average": "weights",
    "outer": "none",
    "outer_options": {},
    "compression": "none",
    "compression_options": {},
    "optimizer_state": "local",
    "oversubscribe": True,
}
"""The settings of a division that a burst replaces by the simplest."""


class Kind(NamedTuple):
    """A kind of rounds."""

    fields: dict[str, Any]
    """The experiment that has them."""
    kind: Literal["group", "neighbours"]
    fan: int | None
    """None: all workers."""
    fits: Callable[[int], bool]
    """Whether this number of workers has such rounds, and they are not of another kind."""


ROUNDS = {
    "all": Kind({"strategy": "allreduce"}, "group", None, lambda _: True),
    "pairs": Kind({"strategy": "butterfly"}, "group", 2, lambda n: n > 2 and n.bit_count() == 1),
    "both neighbours": Kind({"strategy": "ring"}, "neighbours", 3, lambda n: n > 3),
    "one neighbour": Kind({"strategy": "ring", "strategy_options": {"sides": 1}}, "neighbours", 2, lambda n: n > 2),
}


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
        report(f"steps of {work}: batch {batch_size}, {workers} worker(s) x {threads} thread(s)")
        found = step_burst(experiment, splits, setting, length or lengths.get(setting, lengths[settings[0]]))
        lengths[setting] = burst_length(found)
        return found

    measure(settings[0], FEWEST_STEPS)  # says how many steps make a burst
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
    asked = experiment.replace(batch_size=batch_size, threads=threads, workers=workers, strategy="allreduce", **PLAIN)
    return burst.run(asked, splits, min(MOST_STEPS, max(FEWEST_STEPS, steps)))


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
        found = burst.run(vector_experiment(nbytes, workers=n, **ROUNDS[kind].fields), splits, SIZES[nbytes])
        start.setdefault(n, []).append(found.start)
        return max(found.round or 0.0, 1e-7)

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
) -> dict[str, float]:
    """Measure how much longer rounds take with compressions and outer optimizers, between an experiment's steps."""

    def measure(name: str, length: int) -> Burst:
        report(f"rounds of 2 workers, {name or 'no extras'}")
        fields = PLAIN | added.get(name, {}) | {"strategy": "allreduce", "workers": 2, "threads": threads}
        return burst.run(experiment.replace(**fields), splits, length)

    length = burst_length(measure("", FEWEST_STEPS))
    measured = measure_interleaved(["", *added], lambda name: measure(name, length).round or 0.0)
    plain = statistics.median(measured[""])
    return {name: max(0.0, statistics.median(measured[name]) - plain) for name in added}


def measure_saving(report: ReportProgress) -> tuple[dict[int, float], float]:
    """Measure the checkpoints of one worker by the bytes of its weights, and its startup."""
    seconds, start = {}, []
    for nbytes in SIZES:
        report(f"checkpoints of {nbytes / 1e6:.2g} MB")
        with tempfile.TemporaryDirectory() as folder:
            found = burst.run(vector_experiment(nbytes), tiny_regression(), FEWEST_STEPS, Path(folder))
        seconds[nbytes] = found.save
        start.append(found.start)
    return seconds, statistics.median(start)


def measure_adding() -> float:
    """Measure the seconds of adding a byte of weights to another."""
    total, other = np.zeros(1 << 20, np.float32), np.ones(1 << 20, np.float32)
    return _seconds(50, lambda: np.add(total, other, out=total)) / total.nbytes


def measure_sharing() -> float:
    """Measure the seconds of putting a byte of data into shared memory."""
    data = torch.ones(1 << 24)
    return _seconds(5, lambda: SharedTensor(data).close()) / data.nbytes


def vector_experiment(nbytes: int, **fields: Any) -> Experiment:
    """Return an experiment with `nbytes` bytes of weights and almost no computing."""
    return Experiment(
        model="tenfold.models.vector:Vector",
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
    """Measure all settings in turn, several times, so that a disturbance does not affect one setting alone."""
    settings = list(settings)
    found: dict[Setting, list[Any]] = {setting: [] for setting in settings}
    for _ in range(turns or TURNS):
        for setting in settings:
            found[setting].append(measure(setting))
    return found


def burst_length(before: Burst) -> int:
    """Return how many steps make a burst, by what they took in an earlier one."""
    return int(min(MOST_STEPS, max(FEWEST_STEPS, BURST_SECONDS / float(np.median(before.steps)))))


def _seconds(calls: int, call: Callable[[], object]) -> float:
    """Return the median seconds of a call."""
    found = []
    for _ in range(calls):
        started = perf_counter()
        call()
        found.append(perf_counter() - started)
    return statistics.median(found)


def step_entry(work: str, setting: tuple[int, int, int], bursts: Sequence[Burst]) -> Step:
    """Return what bursts in one setting (batch size, threads, workers) say about its steps."""
    batch_size, threads, workers = setting
    found = fit.burst_statistics([one.steps for one in bursts])
    rounds = [one.round for one in bursts if one.round is not None]
    relative = np.concatenate([one.steps / one.steps.mean() for one in bursts])
    return Step(
        work=work,
        batch_size=batch_size,
        threads=threads,
        workers=workers,
        mean=found.mean,
        standard_error=found.standard_error,
        between_workers=found.between_workers,
        between_steps=found.between_steps,
        samples=relative.size,
        warmup=statistics.median(one.warmup for one in bursts),
        round=statistics.median(rounds) if rounds else None,
        quantiles={f"{level:.1%}": value for level, value in zip(fit.LEVELS, found.quantiles, strict=True)},
        trace=write_trace(relative),
    )


def evaluating_entry(work: str, setting: tuple[int, int, int], bursts: Sequence[Burst]) -> Evaluating:
    """Return what bursts in one setting (batch size, threads, workers) say about an evaluation."""
    _, threads, workers = setting
    return Evaluating(
        work=work,
        threads=threads,
        workers=workers,
        samples=bursts[0].evaluated,
        seconds=statistics.median(one.evaluate for one in bursts),
    )


def counts_up_to(most: int) -> Iterator[int]:
    """Yield 1, 2, 4, ... and `most`."""
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most
