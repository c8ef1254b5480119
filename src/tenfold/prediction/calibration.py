"""Calibration: measures this machine for predictions, and keeps the results in a profile."""

import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

import torch

from tenfold.cluster.cluster import HERE, Cluster, ClusterOrHere
from tenfold.data import Splits, Tensors
from tenfold.data.part import describe_shape
from tenfold.engines.prepare import prepare
from tenfold.errors import MachineError, ModelError
from tenfold.experiment import Experiment
from tenfold.experiment.values import PythonObject
from tenfold.machine import cores
from tenfold.machine.cores import using_threads
from tenfold.machine.metadata import MOST_LOAD_PER_CORE, collect_metadata, load_per_core, profile_path
from tenfold.models.networks import build, parameter_count
from tenfold.prediction import probes
from tenfold.prediction.library_averaging import measure_library_averaging
from tenfold.prediction.measurements import Averaging, random_images, utc_now
from tenfold.prediction.probes import (
    FEWEST_STEPS,
    Burst,
    ReportProgress,
    burst_length,
    describe_workers,
    evaluating_entry,
    step_burst,
    step_entry,
)
from tenfold.prediction.profile import Profile
from tenfold.registry import MODELS
from tenfold.training import Replica, choose_loss
from tenfold.training.flat_weights import flat_dtype
from tenfold.training.muon import Muon
from tenfold.workers.fork_server import start_server
from tenfold.workers.rounds import large_stacks, shared_stacks
from tenfold.workers.task import Resolved, Task, make_network, resolve_defaults


def step_key(experiment: Experiment, splits: Splits) -> str:
    """Return a key that experiments with equal step costs share.

    For example "mlp hidden=[128, 64], 1x28x28 -> 10, sgd, fp32".
    """
    model, training = experiment.model.model_dump(mode="json"), experiment.training.model_dump(mode="json")
    network = [model.pop("name"), *_settings(model | model.pop("options"))]
    given = experiment.model.name
    if isinstance(given, PythonObject) and given.import_path is None:  # its name does not identify it
        built = build(experiment.model, splits.shape, splits.outputs, seed=0)
        network.append(f"weights={parameter_count(built)}")
        network += ["float64"] if flat_dtype(built) == torch.float64 else []
    shape = describe_shape(splits.shape)
    optimizer = [training["optimizer"], *_settings({"clip": training["clip"]} | training["optimizer_options"])]
    if training["optimizer"] == "sgd" and not training["momentum"]:
        optimizer.append("momentum=0")
    parts = [" ".join(network), f"{shape} -> {splits.outputs}", " ".join(optimizer), training["precision"]]
    if training["accumulate"] > 1:
        parts.append(f"accumulate={training['accumulate']}")
    if training["activation_checkpointing"]:
        parts.append(f"activation_checkpointing={training['activation_checkpointing']}")
    if training["loss"] is not None:
        parts.append(training["loss"])
    if not isinstance(splits.train, Tensors):
        parts.append(f"data {splits.name}")
    return ", ".join(parts)


def work_of(task: Task) -> tuple[str, int]:
    """Return the key under which a profile keeps the step times of a task, and its batch size."""
    return step_key(task.experiment, task.splits), task.experiment.training.samples_per_step


def round_extras(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return the extra operations of a round: compression, the outer optimizer, averaging the optimizer's state.

    The values are fields of an experiment; the keys include the options.
    """
    parallel, extras = experiment.parallel, {}
    if parallel.averages_state:
        optimizer = experiment.training.model_dump(mode="json")["optimizer"]
        extras[f"optimizer_state average {optimizer}"] = {"optimizer_state": "average"}
    for field in ("compression", "outer"):
        name, options = getattr(parallel, field), getattr(parallel, f"{field}_options")
        if name != "none":
            extras[" ".join([field, name, *_settings(options)])] = {field: name, f"{field}_options": options}
    return extras


def _settings(fields: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in fields.items() if value is not None]


REPEATS, WARMUP = 20, 5
"""Timed steps of each kind, and untimed steps before them."""


def measure_orthogonalization_share(task: Task) -> float:
    """Return the share of a step's CPU time spent on orthogonalizing large matrices, with one thread."""
    training = task.experiment.training
    replica = Replica(
        make_network(task),
        training,
        choose_loss(training, task.splits.classes, task.splits.loss_unit),
        steps_per_epoch=10**6,
    )
    assert isinstance(replica.optimizer, Muon)
    nothing = dict.fromkeys(large_stacks(replica.optimizer), slice(0, 0))
    rows = torch.arange(training.samples_per_step) % len(task.splits.train)
    [(x, y)] = task.splits.train.batches([rows])
    times: dict[bool, list[float]] = {True: [], False: []}
    with using_threads(1), torch.random.fork_rng(devices=[]):
        for whole in (True, False) * REPEATS:
            replica.optimizer.own = {} if whole else nothing
            started = thread_time()
            replica.step(x, y)
            times[whole].append(thread_time() - started)
    step, rest = (statistics.median(times[whole][WARMUP:]) for whole in (True, False))
    return max(0.0, 1 - rest / step)


TURNS = 3
"""Number of times each setting is measured, if there is time."""

Setting = tuple[int, int, int]


def measure_until(
    deadline: float, task: Task, settings: Iterable[tuple[int, int]], report: ReportProgress
) -> tuple[Profile, set[tuple[int, int]]]:
    """Return a profile with a task's steps in settings (threads, workers), and the settings measured just now.

    Steps missing from this machine's profile are measured at two batch sizes, in turns, until a deadline of
    `perf_counter`. The extreme settings come first and are always measured; settings between them may be omitted. If
    every setting got all its turns, the steps are saved for other predictions. If the profile has no rounds or startup,
    they are taken from the same bursts. If workers divide the orthogonalization, its share of a step is measured, too.
    """
    profile, place = load_profile()
    settings = list(settings)
    if perf_counter() < deadline:
        counts = {workers for threads, workers in settings if threads == 1 and workers > 1}
        with_share = with_orthogonalization(profile, replace(task, threads=1), counts, report)
        if with_share is not profile:
            with_share.save(place)
        profile = with_share
    name, batch = work_of(task)
    sizes = sorted({batch, max(1, batch // SMALLER_BY)}, reverse=True)
    nbytes = task.metadata.nbytes

    def lack(current: Profile) -> list[tuple[int, int]]:
        return [setting for setting in settings if not all(current.has_step(name, size, *setting) for size in sizes)]

    if not lack(profile):
        return _with_rounds(profile, name, nbytes), set()
    profile = profile.without_steps_of_another_hour(name)
    # one worker with all threads, then the most workers, then the settings between them
    alone, *others = sorted(lack(profile), key=lambda setting: (setting[1], -setting[0]))
    wanted = [(size, *item) for size in sizes for item in (alone, *reversed(others))]
    bursts = _measure(wanted, task, deadline, report)
    entries = {setting: step_entry(name, setting, timed) for setting, timed in bursts.items()}
    evaluating = [evaluating_entry(name, setting, timed) for setting, timed in bursts.items() if timed[0].evaluated]
    profile = _with_startup(profile, bursts)
    whole = [entries[setting] for setting, timed in bursts.items() if len(timed) == TURNS]
    if len(whole) == len(wanted):
        measured = profile.add(steps=whole, evaluating=evaluating)
        measured.save(place)
        profile = measured
    extended = profile.add(steps=entries.values(), evaluating=evaluating)
    return _with_rounds(extended, name, nbytes), {setting[1:] for setting in bursts}


def _measure(
    settings: list[Setting], task: Task, deadline: float, report: ReportProgress
) -> dict[Setting, list[Burst]]:
    """Measure settings (batch size, threads, workers) in turns; the first two are always measured."""
    bursts: dict[Setting, list[Burst]] = {}
    longest, lengths = 0.0, {settings[0]: FEWEST_STEPS}
    for turn in range(TURNS):
        for at, setting in enumerate(settings):
            if perf_counter() + longest > deadline and (turn or at > 1):
                return bursts
            size, threads, workers = setting
            report(f"measuring steps: batch {size}, {describe_workers(workers, threads)}")
            began = perf_counter()
            fewer = threads / settings[0][1]  # step time grows at most in inverse proportion to the threads
            length = lengths.get(setting, int(fewer * lengths[settings[0]]))
            burst = step_burst(task.experiment, task.splits, setting, length)
            lengths[setting] = burst_length(burst)
            longest = max(longest, perf_counter() - began)
            bursts.setdefault(setting, []).append(burst)
    return bursts


def _with_startup(profile: Profile, bursts: dict[Setting, list[Burst]]) -> Profile:
    """Return the profile with startup times from bursts, for numbers of workers without one."""
    starts: dict[int, list[float]] = {}
    for (_, _, workers), some in bursts.items():
        starts.setdefault(workers, []).extend(item.start for item in some)
    start = {workers: statistics.median(seconds) for workers, seconds in starts.items()} | profile.costs.start
    return profile.with_costs(start=start)


def _with_rounds(profile: Profile, work: str, nbytes: int) -> Profile:
    """Return the profile with the rounds measured between the steps of this work, unless it already has rounds."""
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


QUICK_TURNS = 2
FEW_TURNS = 3
"""Turns in which rounds are measured when many numbers of workers mean many kinds of rounds."""
SMALLER_BY = 4
"""The first batch size divided by the second; the two give the fixed cost of a step."""


def silent(_: str) -> None:
    """Report no progress."""


def measure_all(
    experiment: Experiment | None = None,
    profile: Profile | None = None,
    report: ReportProgress = silent,
    *,
    quick: bool = False,
) -> Profile:
    """Measure this machine, and the steps of an experiment (default: of the built-in networks), in about a minute.

    All other entries of a given profile of the same machine are kept. `report` is called with a line about each
    measurement. `quick` takes seconds but is less accurate: it repeats less, measures only shared memory, and uses only
    one worker and the full number of workers (the experiment's, or one per core).
    """
    here = profile_metadata()
    measured = profile if profile is not None and profile.check(here) is None else Profile(made="", machine=here)
    several, turns = _several(), QUICK_TURNS if quick else None
    measured = measure_rounds(measured, report, turns=turns)
    counts = list(probes.counts_up_to(cores.budget()))
    if quick:
        counts = sorted({counts[0], counts[-1]})
    else:
        measured = measured.add(averaging=measure_library_averaging(sorted({several[0], several[-1]}), report))
    if experiment is not None:
        workers = experiment.parallel.workers
        fits = workers <= cores.budget() or experiment.machine.oversubscribe
        return measure_steps(measured, experiment, sorted({*counts, *[workers] * fits}), report, turns=turns)
    images = random_images()
    for name in MODELS:
        built_in = resolve_defaults(Experiment(model=name))
        try:
            Task.of(Resolved.of(built_in), images, threads=1)
        except ModelError:  # the model does not take images
            continue
        settings = _shared(built_in, counts, few=quick)
        measured = _with_steps(measured, built_in, images, settings, report, turns=turns)
    return measured


def complete_profile(task: Task, report: ReportProgress = silent, *, cluster: ClusterOrHere = HERE) -> Profile:
    """Return this machine's profile with everything needed to predict a task; missing parts are measured and saved.

    This takes a few seconds. It measures the steps of the workers on this machine, or on one node of each group of a
    cluster; rounds, startup and checkpoints; and the cost that compression and the outer optimizer add to a round.
    Steps and rounds measured while other programs were running are measured again if the machine is idle now. If any
    steps are missing, steps of the same work measured more than an hour ago are dropped, to avoid comparing a quiet
    hour with a busy one.
    """
    profile, place = load_profile()
    measured = profile
    is_idle = load_per_core() <= MOST_LOAD_PER_CORE
    rounds_were_busy = measured.costs.rounds_load > MOST_LOAD_PER_CORE
    if cluster is HERE and task.workers > 1 and (not measured.averaging or (is_idle and rounds_were_busy)):
        measured = measure_rounds(measured, report)
    elif not (measured.costs.start and measured.costs.save):
        save, start = probes.measure_saving(report)
        measured = measured.with_costs(start={1: start} | measured.costs.start, save=save)
    wanted = {(task.threads, task.workers)} if cluster is HERE else _on_nodes(cluster, task.workers)
    name, batch = work_of(task)
    if is_idle:
        measured = measured.without_busy_steps(name)
    if any(not measured.has_step(name, batch, *setting) for setting in wanted):
        measured = measured.without_steps_of_another_hour(name)
        missing = sorted(setting for setting in wanted if not measured.has_step(name, batch, *setting))
        measured = _with_steps(measured, task.experiment, task.splits, missing, report)
    measured = _with_round_overhead(measured, task, report)
    if cluster is HERE:
        measured = with_orthogonalization(measured, task, {task.workers}, report)
    if measured is not profile:
        measured.save(place)
    return measured


def load_profile() -> tuple[Profile, Path]:
    """Return the profile of this machine, or a new one if there is none, and its path.

    Raise MachineError if the profile was measured on another machine.
    """
    place = profile_path()
    profile = Profile.load(place) if place.exists() else Profile(made=utc_now(), machine=profile_metadata())
    if (problem := profile.check(profile_metadata())) is not None:
        raise MachineError(problem)
    return profile, place


def measure_rounds(profile: Profile, report: ReportProgress = silent, *, turns: int | None = None) -> Profile:
    """Measure everything that does not depend on an experiment: rounds in shared memory, start-up and checkpoints."""
    start_server()
    several = _several()
    save, start = probes.measure_saving(report)
    rounds, starts = probes.measure_averaging(several, report, turns=turns or (None if len(several) < 3 else FEW_TURNS))
    measured = profile.model_copy(update={"made": utc_now(), "machine": profile_metadata()}).add(averaging=rounds)
    adding, sharing = probes.measure_adding(), probes.measure_sharing()
    return measured.with_costs(
        adding=adding, sharing=sharing, start={1: start} | starts, save=save, rounds_load=load_per_core()
    )


def measure_steps(
    profile: Profile,
    experiment: Experiment,
    counts: Iterable[int],
    report: ReportProgress = silent,
    *,
    turns: int | None = None,
) -> Profile:
    """Measure an experiment's steps with each of these numbers of workers, in turns."""
    resolved = Resolved.of(experiment)
    experiment = resolved.experiment
    task = prepare(resolved.replace(workers=1, shards="iid", fractions=None))
    settings = _shared(experiment, counts, few=turns is not None)
    profile = _with_steps(profile, experiment, task.splits, settings, report, turns=turns)
    return _with_round_overhead(profile, replace(task, resolved=resolved, threads=settings[-1][0]), report)


def profile_metadata() -> dict[str, Any]:
    metadata = collect_metadata()
    return {name: metadata[name] for name in ("host", "platform", "python", "cpu", "torch", "packages")}


def _with_round_overhead(profile: Profile, task: Task, report: ReportProgress) -> Profile:
    """Measure the cost that compression and the outer optimizer add to a round, unless known for this network size."""
    extras = round_extras(task.experiment) if task.workers > 1 else {}
    if not extras:
        return profile
    was_busy = profile.costs.round_overhead_load > MOST_LOAD_PER_CORE
    if was_busy and load_per_core() <= MOST_LOAD_PER_CORE:
        profile = profile.with_costs(round_overhead={}, round_overhead_load=0.0)
    nbytes, overheads = task.metadata.nbytes, profile.costs.round_overhead
    added = {name: fields for name, fields in extras.items() if nbytes not in overheads.get(name, {})}
    if not added:
        return profile
    longer = probes.round_overhead(task.experiment, task.splits, task.threads, added, report)
    seconds = {name: overheads.get(name, {}) | {nbytes: whole} for name, (whole, _) in longer.items()}
    earlier = profile.costs.round_overhead_shares
    shares = {name: earlier.get(name, {}) | {nbytes: parts} for name, (_, parts) in longer.items()}
    return profile.with_costs(
        round_overhead=overheads | seconds,
        round_overhead_shares=earlier | shares,
        round_overhead_load=max(profile.costs.round_overhead_load, load_per_core()),
    )


def with_orthogonalization(profile: Profile, task: Task, counts: Iterable[int], report: ReportProgress) -> Profile:
    """Measure the orthogonalization's share of a step, if workers divide it for any of these numbers of workers."""
    (work, batch), shares = work_of(task), profile.costs.orthogonalization
    if work in shares or not any(shared_stacks(task, count) for count in counts):
        return profile
    report("the share of a step that workers divide")
    return profile.with_costs(orthogonalization=shares | {work: {batch: measure_orthogonalization_share(task)}})


def _with_steps(
    profile: Profile,
    experiment: Experiment,
    splits: Splits,
    wanted: Iterable[tuple[int, int]],
    report: ReportProgress,
    *,
    turns: int | None = None,
) -> Profile:
    """Measure an experiment's steps in settings (threads, workers), at its batch size.

    The first and the last of them are also measured at a smaller batch size.
    """
    if experiment.machine.device != "cpu":
        raise MachineError(f'machine.device = "{experiment.machine.device}": steps are measured on CPU only; use cpu')
    wanted, batch = list(wanted), experiment.training.samples_per_step
    smaller = {max(1, batch // SMALLER_BY)} - {batch}
    settings = [(batch, *setting) for setting in wanted]
    settings += [(size, *setting) for size in smaller for setting in {wanted[0], wanted[-1]}]
    name = step_key(experiment, splits)
    profile = profile.without_steps_of_another_hour(name)
    steps, evaluating = probes.steps(name, experiment, splits, settings, report, turns)
    return profile.add(steps=steps, evaluating=evaluating)


def _several() -> list[int]:
    """Return the numbers of workers for which rounds are measured."""
    return list(probes.counts_up_to(cores.budget()))[1:] or [2]


def _shared(experiment: Experiment, counts: Iterable[int], *, few: bool) -> list[tuple[int, int]]:
    """Return (threads, workers) for these numbers of workers and, unless `few`, one worker with fewer threads.

    If the experiment sets its number of threads, only that number is used.
    """
    fixed, budget = experiment.machine.threads, cores.budget()
    first, *rest = [(cores.share(budget, count, fixed, oversubscribe=True), count) for count in counts]
    alone = [] if few or fixed is not None else [(count, 1) for count in probes.counts_up_to(budget)]
    return [first, *(item for item in alone if item not in (first, *rest)), *rest]


def _on_nodes(cluster: Cluster, workers: int) -> set[tuple[int, int]]:
    """Return (threads, workers) of the nodes that this machine stands for, limited to its cores.

    If a node has more threads than this machine has cores, include one worker with each possible number of threads, to
    extrapolate from.
    """
    budget = cores.budget()
    placed = zip(cluster.groups, cluster.placed(workers), strict=True)
    alike = [(group, used) for group, used in placed if used and group.step_seconds is None and group.profile is None]
    fits = {
        (group.threads, min(group.workers, used, budget // group.threads))
        for group, used in alike
        if group.threads <= budget
    }
    beyond = any(group.threads > budget for group, _ in alike)
    return fits | ({(count, 1) for count in probes.counts_up_to(budget)} if beyond else set())
