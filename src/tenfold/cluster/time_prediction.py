"""The predicted time of a run, with an interval."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tenfold.cluster.event_clock import run_event_clock
from tenfold.cluster.hardware import Floats, Hardware
from tenfold.cluster.round_clock import ClockSpan, TimeKind, Timing, run_round_clock
from tenfold.cluster.workload import Workload
from tenfold.errors import ExperimentError
from tenfold.mixing.round import Server

REPEATS, FEWEST = 20, 3
BUDGET, HEAP_BUDGET = 100_000_000, 1_000_000
"""Limits on the worker steps drawn in all repeats; the event clock takes a hundred times longer per step."""
LEVEL = 0.8
"""The share of runs that should fall into the interval."""


@dataclass(frozen=True, eq=False)
class TimePrediction:
    """The predicted times of a workload on some hardware."""

    seconds: float
    """Training time of the slowest worker, without startup, evaluation and saving, as a run measures it."""
    interval: tuple[float, float]
    """80% of runs should fall between these."""
    total: float
    """Time of the whole run, including startup, evaluation and saving."""
    times: dict[TimeKind, Floats]
    """For each kind of time, each worker's seconds."""
    bytes_per_worker: Floats
    """The bytes that each worker sends."""
    marks: dict[int, float]
    """Training time until the ends of epochs and the marked steps."""
    spans: tuple[ClockSpan, ...]
    """The first steps, one by one, for a timeline."""
    reasons: tuple[str, ...]
    """Sentences that explain why some settings make no difference."""
    calibrated: bool
    """Whether the step times were measured; otherwise they were described by hand."""
    calibration_load: float = 0.0
    """The load per core of the machine while its step times were measured; above 1.25 they are unreliable."""
    machine_speed: float = 1.0
    """How fast this machine was when the prediction was made, relative to its calibration."""
    exchange_times: Floats | None = None
    """The time at which each worker's step takes effect [steps, workers]; only for strategies without rounds."""

    def with_computing(self, compute: Floats, added: float) -> "TimePrediction":
        """Return the prediction with `compute` as the computing times, which make it `added` seconds longer."""
        low, high = self.interval
        return replace(
            self,
            seconds=self.seconds + added,
            interval=(low + added, high + added),
            total=self.total + added,
            times=self.times | {"compute": compute},
        )

    def result(self, samples: int, seconds: float | None = None) -> dict[str, Any]:
        """Return the predicted part of a run's result; `seconds` is the training time of a run that stopped early."""
        seconds = self.seconds if seconds is None else seconds
        share = seconds / self.seconds
        times = {kind: float(np.mean(each)) for kind, each in self.times.items()}
        return {
            "clock": "predicted",
            "seconds": seconds,
            "interval": [share * end for end in self.interval],
            "times": {kind: time if kind == "start" else share * time for kind, time in times.items()},
            "samples_per_second": samples / seconds,
            "calibrated": self.calibrated,
            "calibration_load": self.calibration_load,
            "machine_speed": self.machine_speed,
            "reasons": list(self.reasons),
        }


def predict_time(
    workload: Workload, hardware: Hardware, *, seed: int = 0, repeats: int | None = None
) -> TimePrediction:
    """Predict how long a workload takes on hardware; deterministic for a given seed.

    The run is drawn `repeats` times, by default 20 or fewer if that would take long. The interval contains
    a further draw with a probability of 80%, by Student's t in the logarithm of the seconds, widened by the hardware's
    `model_error`.
    """
    if repeats is not None and repeats < 1:
        raise ExperimentError(f"repeats is {repeats}; it must be at least 1")
    draws = repeats or _affordable(workload, hardware)
    timing = (run_round_clock if workload.has_rounds else run_event_clock)(workload, hardware, seed=seed, repeats=draws)
    return TimePrediction(
        seconds=float(timing.seconds.mean()),
        interval=prediction_interval(timing.seconds, hardware.model_error),
        total=float(timing.total.mean()),
        times=timing.times,
        bytes_per_worker=bytes_sent(workload) if timing.sent is None else timing.sent,
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


def prediction_interval(seconds: Floats | Sequence[float], model_error: float) -> tuple[float, float]:
    """Return exp(m -+ t sqrt(s^2 (1 + 1/k) + error^2)) with m, s the mean and spread of log seconds in k draws."""
    from scipy.special import stdtrit

    k, logs = len(seconds), np.log(np.maximum(seconds, 1e-300))
    spread = float(logs.std(ddof=1)) if k > 1 else 0.0
    drawn = float(stdtrit(k - 1, (1 + LEVEL) / 2)) * spread * np.sqrt(1 + 1 / k) if spread else 0.0
    modelled = float(stdtrit(1e9, (1 + LEVEL) / 2)) * np.log1p(model_error)
    half = float(np.hypot(drawn, modelled))
    middle = float(logs.mean())
    return float(np.exp(middle - half)), float(np.exp(middle + half))


def bytes_sent(workload: Workload) -> Floats:
    n, strategy = workload.workers, workload.strategy
    sent = np.zeros(n)
    for turn, times in _turns(workload.rounds, strategy.period(n)).items():
        for nbytes in workload.round_messages:
            sent += times * np.asarray(strategy.round(turn, n).bytes_per_worker(nbytes), dtype=float)
    return sent


def _turns(rounds: int, period: int | None) -> dict[int, int]:
    """Return the number of occurrences of each round of a pattern; without a pattern, all count as the first."""
    full, rest = divmod(rounds, period or 1)
    return {turn: full + (turn < rest) for turn in range(min(period or 1, rounds))}


NEGLIGIBLE_SHARE = 0.01
"""Shares of the time below this are not worth changing the topology for."""
NOTHING = 1e-6
LONGEST_PATTERN = 64
"""Longest period for which all rounds of a pattern are examined."""


def find_reasons(workload: Workload, hardware: Hardware, timing: Timing) -> tuple[str, ...]:
    """Return one sentence for each setting that does not change the predicted time."""
    reasons = _about_schedule(workload)
    if workload.workers == 1 and not workload.strategy.has_center:
        return (
            *reasons,
            "With one worker there is no communication: strategy, sync_every, compression and links have no effect.",
        )
    if workload.has_rounds and workload.rounds:
        reasons += _about_topology(workload)
        reasons += _about_cost(workload, hardware, float(timing.seconds.mean()))
    if workload.rounds or not workload.has_rounds:
        reasons += _about_shares(timing)
    if hardware.is_steady(workload.workers) and not hardware.model_error:
        reasons.append("Step times were given without any spread, so the interval has no width.")
    return tuple(reasons)


def _about_schedule(workload: Workload) -> list[str]:
    if not workload.has_rounds:
        return [f"Workers exchange at {workload.strategy.name}'s own pace, not in rounds."]
    if workload.average == "gradients":
        return ["Gradients are averaged at every step, not in rounds."]
    if not workload.rounds:
        steps = f"{workload.steps} step{'' if workload.steps == 1 else 's'}"
        return [
            f"The run has {steps} and a round comes every {workload.sync_every}: there is none before the end, so the "
            "strategy has no effect."
        ]
    return []


def _about_topology(workload: Workload) -> list[str]:
    n, strategy = workload.workers, workload.strategy
    period = strategy.period(n)
    if period is None or period > LONGEST_PATTERN:
        return []
    pattern = [strategy.round(r, n) for r in range(period)]
    if all(round_.is_idle for round_ in pattern):
        return [f"Strategy {strategy.name} has no rounds: links matter only at the end of an epoch."]
    if not all(round_.is_exact for round_ in pattern) or isinstance(pattern[0].collective, Server):
        return []
    if n == 2:
        return [
            "Two workers swap their weights in every round: all-reduce (by any algorithm but a server), butterfly, "
            "ring, hopping ring and gossip are the same exchange."
        ]
    if strategy.always_exact:
        return []
    return [f"With {n} workers every round of {strategy.name} is an all-reduce over all of them."]


def _about_cost(workload: Workload, hardware: Hardware, seconds: float) -> list[str]:
    n, strategy, cost = workload.workers, workload.strategy, hardware.round_cost
    round_ = strategy.round(0, n)
    if round_.is_idle or not workload.compressed_bytes:
        return []
    reasons = []
    whole = float(np.max(cost(round_, workload.compressed_bytes)))
    latency = float(np.max(cost(round_, 1)))
    if whole and latency / whole > 1 - 5 * NEGLIGIBLE_SHARE:
        reasons.append(
            f"A round is bound by latency ({latency / whole:.0%} of {1e3 * whole:.3g} ms): compression or more "
            "bandwidth would help little; fewer rounds (a larger sync_every) would help."
        )
    more = workload.rounds * (float(np.max(cost(strategy.final(n), workload.compressed_bytes))) - whole) / seconds
    if not strategy.always_exact and 0 < more < NEGLIGIBLE_SHARE:
        reasons.append(f"All-reduce instead of {strategy.name} would cost only {more:.2%} more, not counting waiting.")
    return reasons


def _about_shares(timing: Timing) -> list[str]:
    times = {kind: float(timing.times[kind].sum()) for kind in ("compute", "wait", "communicate")}
    training = sum(times.values())
    wait, talk = (times[kind] / training if training else 0.0 for kind in ("wait", "communicate"))
    if NOTHING < wait + talk < NEGLIGIBLE_SHARE:
        return [
            f"Computing takes {1 - wait - talk:.1%} of the time: no other strategy, link or compression can save more "
            f"than {wait + talk:.1%}."
        ]
    if NOTHING < talk < NEGLIGIBLE_SHARE:
        return [
            f"Communication takes {talk:.1%} of the time: a faster link or compression can save no more. Waiting takes "
            f"{wait:.1%}, because steps do not take the same time on all workers."
        ]
    return []
