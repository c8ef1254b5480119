"""The step times of many settings, measured within a limited time."""

import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from tenfold.prediction.calibration import ReportProgress, cost_keys
from tenfold.prediction.calibration.burst import Burst
from tenfold.prediction.calibration.measure_machine import SMALLER_BY, load_profile, with_orthogonalization
from tenfold.prediction.calibration.probes import FEWEST_STEPS, burst_length, evaluating_entry, step_burst, step_entry
from tenfold.prediction.measurements import Averaging
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Task, weight_bytes

TURNS = 3
"""How often each setting is measured, if there is time."""

Setting = tuple[int, int, int]


def measure_until(
    deadline: float, task: Task, settings: Iterable[tuple[int, int]], report: ReportProgress
) -> tuple[Profile, set[tuple[int, int]]]:
    """Return a profile with a task's steps in settings (threads, workers), and those that were measured just now.

    What this machine's own profile lacks is measured at two batch sizes, in turns, until a deadline of `perf_counter`;
    the extremes come first and are measured in any case, what is left out lies between them. If all of them had all
    their turns, they are saved for other predictions. Rounds and startup are those of the same bursts, where the
    profile has none. Where settings divide the steps of their workers, the share that they divide is measured, too.
    """
    profile, place = load_profile()
    settings = list(settings)
    if perf_counter() < deadline:
        profile = _with_orthogonalization_share(profile, place, task, settings, report)
    name, batch = cost_keys.work_of(task)
    sizes = sorted({batch, max(1, batch // SMALLER_BY)}, reverse=True)
    lacking = [one for one in settings if not all(profile.has_step(name, size, *one) for size in sizes)]
    nbytes = weight_bytes(task)
    if not lacking:
        return _with_rounds(profile, name, nbytes), set()
    asked = [(size, *one) for size in sizes for one in _extremes_first(lacking)]
    bursts = _measure(asked, task, deadline, report)
    entries = {setting: step_entry(name, setting, found) for setting, found in bursts.items()}
    evaluating = [evaluating_entry(name, setting, found) for setting, found in bursts.items() if found[0].evaluated]
    before, profile = profile, _with_startup(profile, bursts)
    whole = [entries[setting] for setting, found in bursts.items() if len(found) == TURNS]
    if len(whole) == len(asked):
        measured = profile.add(steps=whole, evaluating=evaluating)
        measured.save_changes(before, place)
        profile = measured
    found = profile.add(steps=entries.values(), evaluating=evaluating)
    return _with_rounds(found, name, nbytes), {setting[1:] for setting in bursts}


def _with_orthogonalization_share(
    profile: Profile, place: Path, task: Task, settings: Iterable[tuple[int, int]], report: ReportProgress
) -> Profile:
    """Return the profile with the share of a step that workers with one thread each divide; it is saved."""
    counts = {workers for threads, workers in settings if threads == 1 and workers > 1}
    found = with_orthogonalization(profile, replace(task, threads=1), counts, report)
    if found is not profile:
        found.save_changes(profile, place)
    return found


def _measure(asked: list[Setting], task: Task, deadline: float, report: ReportProgress) -> dict[Setting, list[Burst]]:
    """Measure settings (batch size, threads, workers) in turns; the first two in any case."""
    bursts: dict[Setting, list[Burst]] = {}
    longest, lengths = 0.0, {asked[0]: FEWEST_STEPS}
    for turn in range(TURNS):
        for at, setting in enumerate(asked):
            if perf_counter() + longest > deadline and (turn or at > 1):
                return bursts
            size, threads, workers = setting
            report(f"step times: batch {size}, {workers} worker(s) x {threads} thread(s)")
            began = perf_counter()
            fewer = threads / asked[0][1]  # with fewer threads, steps take at most as much longer
            length = lengths.get(setting, int(fewer * lengths[asked[0]]))
            found = step_burst(task.experiment, task.splits, setting, length)
            lengths[setting] = burst_length(found)
            longest = max(longest, perf_counter() - began)
            bursts.setdefault(setting, []).append(found)
    return bursts


def _extremes_first(settings: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return settings (threads, workers): one worker with all threads, most workers, then what lies between."""
    listed = sorted(settings, key=lambda one: (one[1], -one[0]))
    return [listed[0], *listed[:0:-1]] if len(listed) > 1 else listed


def _with_startup(profile: Profile, bursts: dict[Setting, list[Burst]]) -> Profile:
    """Return the profile with the startup of bursts, for numbers of workers of which it has none."""
    starts: dict[int, list[float]] = {}
    for (_, _, workers), some in bursts.items():
        starts.setdefault(workers, []).extend(one.start for one in some)
    start = {workers: statistics.median(seconds) for workers, seconds in starts.items()} | profile.costs.start
    return profile.with_costs(start=start)


def _with_rounds(profile: Profile, work: str, nbytes: int) -> Profile:
    """Return the profile with the rounds that were measured between the steps of this work, if it has no others."""
    if profile.averaging:
        return profile
    rounds: dict[int, list[float]] = {}
    for step in profile.steps:
        if step.work == work and step.round is not None:
            rounds.setdefault(step.workers, []).append(max(step.round, 1e-7))
    measured = {workers: statistics.median(seconds) for workers, seconds in rounds.items()}
    return profile.add(
        averaging=[
            Averaging.of({nbytes: seconds}, transport="shared-memory", workers=workers, kind="group", fan=workers)
            for workers, seconds in measured.items()
        ]
    )
