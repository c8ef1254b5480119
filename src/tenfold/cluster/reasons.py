"""Sentences that explain why a setting makes no difference to a prediction."""

import numpy as np

from tenfold.cluster.clock_records import Timing
from tenfold.cluster.hardware import Hardware
from tenfold.cluster.workload import Workload
from tenfold.mixing.collectives import Server

LITTLE = 0.01
"""Shares of the time below this are not worth changing the topology for."""
NOTHING = 1e-6
LONGEST_PATTERN = 64
"""Longest period for which all rounds of a pattern are examined."""


def find_reasons(workload: Workload, hardware: Hardware, timing: Timing) -> tuple[str, ...]:
    """Return why some settings do not change the predicted time, one sentence each."""
    found = _about_schedule(workload)
    if workload.workers == 1 and not workload.strategy.has_centre:
        return (
            *found,
            "With one worker there is no communication: strategy, sync_every, compression and links have no effect.",
        )
    if workload.has_rounds and workload.rounds:
        found += _about_topology(workload)
        found += _about_price(workload, hardware, float(timing.seconds.mean()))
    if workload.rounds or not workload.has_rounds:
        found += _about_shares(timing)
    if hardware.is_steady(workload.workers):
        found.append("Step times were given without any spread, so the interval has no width.")
    return tuple(found)


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


def _about_price(workload: Workload, hardware: Hardware, seconds: float) -> list[str]:
    n, strategy, price = workload.workers, workload.strategy, hardware.round_price
    round_ = strategy.round(0, n)
    if round_.is_idle or not workload.compressed_bytes:
        return []
    found = []
    whole = float(np.max(price(round_, workload.compressed_bytes)))
    latency = float(np.max(price(round_, 1)))
    if whole and latency / whole > 1 - 5 * LITTLE:
        found.append(
            f"A round is bound by latency ({latency / whole:.0%} of {whole:.3g} s): compression or more bandwidth "
            "would help little; fewer rounds (a larger sync_every) would help."
        )
    more = workload.rounds * (float(np.max(price(strategy.final(n), workload.compressed_bytes))) - whole) / seconds
    if not strategy.always_exact and 0 < more < LITTLE:
        found.append(f"All-reduce instead of {strategy.name} would cost only {more:.2%} more, not counting waiting.")
    return found


def _about_shares(timing: Timing) -> list[str]:
    times = {kind: float(timing.times[kind].sum()) for kind in ("compute", "wait", "communicate")}
    training = sum(times.values())
    wait, talk = (times[kind] / training if training else 0.0 for kind in ("wait", "communicate"))
    if NOTHING < wait + talk < LITTLE:
        return [
            f"Computing takes {1 - wait - talk:.1%} of the time: no other strategy, link or compression can save more "
            f"than {wait + talk:.1%}."
        ]
    if NOTHING < talk < LITTLE:
        return [
            f"Communication takes {talk:.1%} of the time: a faster link or compression can save no more. Waiting takes "
            f"{wait:.1%}, because steps do not take the same time on all workers."
        ]
    return []
