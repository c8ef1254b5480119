"""How long a run would take, and how certain that is."""

from dataclasses import dataclass

import numpy as np

from tenfold.cluster.clock_records import ClockSpan, TimeKind
from tenfold.cluster.event_clock import run_event_clock
from tenfold.cluster.hardware import Floats, Hardware
from tenfold.cluster.reasons import find_reasons
from tenfold.cluster.round_clock import run_round_clock
from tenfold.cluster.workload import Workload
from tenfold.errors import ExperimentError

REPEATS, FEWEST = 20, 3
BUDGET, HEAP_BUDGET = 100_000_000, 1_000_000
"""Steps of workers up to which more repeats are drawn; the event clock takes a hundred times longer for each."""
LEVEL = 0.9
"""How many of all runs should fall into the interval."""


@dataclass(frozen=True, eq=False)
class TimePrediction:
    """The predicted times of a workload on some hardware."""

    seconds: float
    """Training time: of the slowest worker, without start, evaluation and saving, as a run measures it."""
    interval: tuple[float, float]
    """90% of runs should fall between these."""
    total: float
    """From the start to the end, everything included."""
    times: dict[TimeKind, Floats]
    """For each kind of time, each worker's seconds."""
    bytes_per_worker: Floats
    """What each worker sends."""
    marks: dict[int, float]
    """Training time until the ends of epochs and the marked steps."""
    spans: tuple[ClockSpan, ...]
    """The first steps, one by one, for a timeline."""
    reasons: tuple[str, ...]
    """Sentences that explain where a setting makes no difference."""
    calibrated: bool
    """Whether the step times were measured; otherwise they were described by hand."""
    machine_speed: float = 1.0
    """How fast this machine was when the prediction was made, relative to its calibration."""
    exchange_times: Floats | None = None
    """When each worker's step takes effect [steps, workers]; known only for strategies without rounds."""


def predict_time(
    workload: Workload, hardware: Hardware, *, seed: int = 0, repeats: int | None = None
) -> TimePrediction:
    """Predict how long a workload takes on hardware; the same for the same seed.

    The run is drawn `repeats` times, by default 20 and fewer where that would take long. The interval contains
    a further draw with a probability of 90%, by Student's t in the logarithm of the seconds, widened by the hardware's
    `model_error`.
    """
    if repeats is not None and repeats < 1:
        raise ExperimentError(f"repeats is {repeats}; it must be at least 1")
    draws = repeats or _affordable(workload, hardware)
    timing = (run_round_clock if workload.has_rounds else run_event_clock)(workload, hardware, seed=seed, repeats=draws)
    return TimePrediction(
        seconds=float(timing.seconds.mean()),
        interval=_interval(timing.seconds, hardware.model_error),
        total=float(timing.total.mean()),
        times=timing.times,
        bytes_per_worker=_sent(workload) if timing.sent is None else timing.sent,
        marks={step: float(seconds.mean()) for step, seconds in timing.marks.items()},
        spans=timing.spans,
        reasons=find_reasons(workload, hardware, timing),
        calibrated=hardware.calibrated,
    )


def _affordable(workload: Workload, hardware: Hardware) -> int:
    if hardware.is_steady(workload.workers):
        return 1
    budget = BUDGET if workload.has_rounds else HEAP_BUDGET
    return max(FEWEST, min(REPEATS, budget // (workload.workers * workload.steps)))


def _interval(seconds: Floats, model_error: float) -> tuple[float, float]:
    """Return exp(m -+ t sqrt(s^2 (1 + 1/k) + error^2)) with m, s the mean and spread of log seconds in k draws."""
    from scipy.special import stdtrit

    k, logs = len(seconds), np.log(np.maximum(seconds, 1e-300))
    spread = float(logs.std(ddof=1)) if k > 1 else 0.0
    drawn = float(stdtrit(k - 1, (1 + LEVEL) / 2)) * spread * np.sqrt(1 + 1 / k) if spread else 0.0
    modelled = float(stdtrit(1e9, (1 + LEVEL) / 2)) * np.log1p(model_error)
    half = float(np.hypot(drawn, modelled))
    middle = float(logs.mean())
    return float(np.exp(middle - half)), float(np.exp(middle + half))


def _sent(workload: Workload) -> Floats:
    n, strategy = workload.workers, workload.strategy
    sent = np.zeros(n)
    for turn, times in _turns(workload.rounds, strategy.period(n)).items():
        sent += times * np.asarray(strategy.round(turn, n).bytes_per_worker(workload.compressed_bytes), dtype=float)
    return sent


def _turns(rounds: int, period: int | None) -> dict[int, int]:
    """Return how often each round of a pattern comes; without a pattern all count as the first."""
    full, rest = divmod(rounds, period or 1)
    return {turn: full + (turn < rest) for turn in range(min(period or 1, rounds))}
