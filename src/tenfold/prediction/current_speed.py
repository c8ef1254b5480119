"""How fast this machine is now: other programs may be running that were not running during calibration."""

import math
import os
import statistics
from collections.abc import Iterator
from time import perf_counter

from tenfold.machine.cores import running_elsewhere
from tenfold.mixing.round import exact_round
from tenfold.prediction.calibration import ReportProgress, cost_keys
from tenfold.prediction.calibration.burst import Burst
from tenfold.prediction.calibration.probes import step_burst, step_entry
from tenfold.prediction.measurements import Step
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Task, weight_bytes

PROBE_SECONDS, LONGEST = 1.0, 2.0
"""Seconds of steps that a probe should time, and what it may take with the start of its processes."""
NOTABLE = 1.05
"""A machine within this factor of its calibration counts as equally fast."""
VALID_SECONDS = 60.0
"""Seconds for which a probe is used for further predictions."""

_seen: dict[tuple[str, int, int, int], tuple[float, Step]] = {}


def profile_now(task: Task, profile: Profile, report: ReportProgress | None = None) -> tuple[Profile, float]:
    """Return the profile as this machine is now, and how fast that is relative to the calibration (1: as fast).

    The task's own steps are timed briefly, with its number of workers. If they differ notably, they replace the
    calibrated ones, with their spread, and all other times are scaled likewise. On a slower machine rounds are
    scaled by how much they themselves differ: each waits for the slowest worker and then for all to notice.
    """
    work, batch = cost_keys.step_key(task.experiment, task.splits), task.experiment.training.samples_per_step
    usual = profile.step_time(work, batch, task.threads, task.workers).mean
    now = _measured(task, (work, batch, task.threads, task.workers), usual, report)
    factor = now.mean / usual
    if abs(math.log(factor)) <= math.log(NOTABLE):
        return profile, 1.0
    rounds = None
    if now.round is not None and factor > 1:
        usual_round = float(profile.round_price()(exact_round(task.workers), weight_bytes(task)))
        rounds = max(factor, now.round / usual_round)
    return profile.slowed(factor, rounds=rounds).add(steps=[now]), 1 / factor


def _measured(task: Task, setting: tuple[str, int, int, int], usual: float, report: ReportProgress | None) -> Step:
    known = _seen.get(setting)
    if known is not None and perf_counter() - known[0] < VALID_SECONDS:
        return known[1]
    if report is not None:
        report(f"how fast this machine is now: {task.workers} worker(s) x {task.threads} thread(s)")
    slowdown = max(1.0, ((running_elsewhere() or 0.0) + task.workers * task.threads) / (os.cpu_count() or 1))
    steps = max(1, round(PROBE_SECONDS / (usual * slowdown)))
    bursts = list(_bursts(task, setting[1:], steps))
    rounds = [one.delay for one in bursts if one.delay is not None]
    entry = step_entry(setting[0], setting[1:], bursts)
    entry = entry.model_copy(update={"round": statistics.mean(rounds) if rounds else None})
    _seen[setting] = perf_counter(), entry
    return entry


def _bursts(task: Task, setting: tuple[int, int, int], steps: int) -> Iterator[Burst]:
    """Time this number of steps: in several bursts, where steps are so short that the longest burst is brief."""
    began = last = perf_counter()
    while steps > 0:
        found = step_burst(task.experiment, task.splits, setting, steps)
        yield found
        now = perf_counter()
        if now - began + (now - last) > LONGEST:
            return
        steps, last = steps - len(found.steps), now
