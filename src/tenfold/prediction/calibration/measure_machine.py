"""Measuring this machine: all of it, or only what an experiment still lacks."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.experiment_cluster import HERE, ClusterOrHere
from tenfold.common.catalog import MODELS
from tenfold.data import Splits
from tenfold.engines.prepare import prepare, resolve_defaults
from tenfold.errors import MachineError, ModelError
from tenfold.experiment import Experiment
from tenfold.machine import cores, facts
from tenfold.prediction.calibration import cost_keys, library_averaging, probes
from tenfold.prediction.calibration.calibration_data import random_images
from tenfold.prediction.calibration.orthogonalization_share import measure_orthogonalization_share
from tenfold.prediction.calibration.probes import ReportProgress
from tenfold.prediction.profile import Profile, default_path
from tenfold.workers.pool.fork_server import start_server
from tenfold.workers.task import Task, make_network, weight_bytes
from tenfold.workers.trainers.shared_orthogonalization import shared_stacks

QUICK_TURNS = 2
FEW_TURNS = 3
"""Turns in which rounds are measured, where many numbers of workers make many kinds of them."""
SMALLER_BY = 4
"""The factor by which the second batch size is smaller; both together give the fixed cost of a step."""


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

    What else a given profile of the same machine contains is kept. `report` is called with a line about everything
    that is measured. `quick` measures everything fewer times, only with one worker and with as many as there are cores
    (or the experiment has), and only in shared memory: within seconds, but less exactly.
    """
    here = profile_facts()
    known = profile if profile is not None and profile.check(here) is None else Profile(made="", machine=here)
    several, turns = _several(), QUICK_TURNS if quick else None
    known = measure_rounds(known, report, turns=turns)
    counts = list(probes.counts_up_to(cores.budget()))
    if quick:
        counts = sorted({counts[0], counts[-1]})
    else:
        known = known.add(
            averaging=library_averaging.measure_library_averaging(sorted({several[0], several[-1]}), report)
        )
    if experiment is not None:
        workers = experiment.division.workers
        fits = workers <= cores.budget() or experiment.machine.oversubscribe
        return measure_steps(known, experiment, sorted({*counts, *[workers] * fits}), report, turns=turns)
    images = random_images()
    for name in MODELS:
        built_in = resolve_defaults(Experiment(model=name))
        if _takes(built_in, images):
            known = _with_steps(known, built_in, images, _shared(built_in, counts, few=quick), report, turns=turns)
    return known


def _takes(experiment: Experiment, splits: Splits) -> bool:
    """Return whether an experiment's model can be built for the samples of these data."""
    try:
        make_network(Task(experiment, splits, threads=1))
    except ModelError:
        return False
    return True


def complete_profile(task: Task, report: ReportProgress = silent, *, cluster: ClusterOrHere = HERE) -> Profile:
    """Return this machine's profile with all that a prediction of a task needs; what is missing is measured and saved.

    What is measured are the steps of its workers on this machine, in a few seconds, and rounds where none were measured
    yet; or the steps of the workers on one node of each group of a cluster; startup and checkpoints; and what its
    compression and its outer optimizer add to a round.
    """
    profile, place = load_profile()
    known = profile
    if cluster is HERE and task.workers > 1 and not known.averaging:
        known = measure_rounds(known, report)
    elif not (known.costs.start and known.costs.save):
        known = _with_start_and_save(known, report)
    asked = {(task.threads, task.workers)} if cluster is HERE else _on_nodes(cluster)
    name, batch = cost_keys.work_of(task)
    if missing := sorted(setting for setting in asked if not known.has_step(name, batch, *setting)):
        known = _with_steps(known, task.experiment, task.splits, missing, report)
    known = _with_round_overhead(known, task, report)
    if cluster is HERE:
        known = with_orthogonalization(known, task, {task.workers}, report)
    if known is not profile:
        known.save_changes(profile, place)
    return known


def load_profile() -> tuple[Profile, Path]:
    """Return the profile of this machine, a new one if there is none, and where it is kept.

    Raise MachineError for one of another machine.
    """
    place = default_path()
    profile = Profile.load(place) if place.exists() else Profile(made=_now(), machine=profile_facts())
    if (problem := profile.check(profile_facts())) is not None:
        raise MachineError(problem)
    return profile, place


def measure_rounds(profile: Profile, report: ReportProgress = silent, *, turns: int | None = None) -> Profile:
    """Measure what does not depend on an experiment: rounds in shared memory, start-up and checkpoints."""
    start_server()
    several = _several()
    save, start = probes.measure_saving(report)
    found, starts = probes.measure_averaging(several, report, turns=turns or (None if len(several) < 3 else FEW_TURNS))
    known = profile.model_copy(update={"made": _now(), "machine": profile_facts()}).add(averaging=found)
    adding, sharing = probes.measure_adding(), probes.measure_sharing()
    return known.with_costs(adding=adding, sharing=sharing, start={1: start} | starts, save=save)


def measure_steps(
    profile: Profile,
    experiment: Experiment,
    counts: Iterable[int],
    report: ReportProgress = silent,
    *,
    turns: int | None = None,
) -> Profile:
    """Measure an experiment's steps with each of these numbers of workers; they take turns."""
    experiment = resolve_defaults(experiment)
    splits = prepare(experiment.replace(workers=1, shards="iid", fractions=None)).splits
    return _with_steps(
        profile, experiment, splits, _shared(experiment, counts, few=turns is not None), report, turns=turns
    )


def profile_facts() -> dict[str, Any]:
    """Return the facts of this machine that are kept with a profile."""
    known = facts.facts()
    return {name: known[name] for name in ("host", "platform", "python", "cpu", "torch", "packages")}


def _with_start_and_save(profile: Profile, report: ReportProgress) -> Profile:
    """Measure the startup and the checkpoints of one worker; a startup that is known is kept."""
    save, start = probes.measure_saving(report)
    return profile.with_costs(start={1: start} | profile.costs.start, save=save)


def _with_round_overhead(profile: Profile, task: Task, report: ReportProgress) -> Profile:
    """Measure what compression and outer optimizer add to a task's rounds, unless known for a network of this size."""
    asked = cost_keys.round_extras(task.experiment.division) if task.workers > 1 else {}
    if not asked:
        return profile
    nbytes, known = weight_bytes(task), profile.costs.round_overhead
    added = {name: fields for name, fields in asked.items() if nbytes not in known.get(name, {})}
    if not added:
        return profile
    found = probes.round_overhead(task.experiment, task.splits, task.threads, added, report)
    return profile.with_costs(
        round_overhead=known | {name: known.get(name, {}) | {nbytes: found[name]} for name in found}
    )


def with_orthogonalization(profile: Profile, task: Task, counts: Iterable[int], report: ReportProgress) -> Profile:
    """Measure the share of a step that workers divide, where any of these numbers of workers does so."""
    (work, batch), known = cost_keys.work_of(task), profile.costs.orthogonalization
    if work in known or not any(shared_stacks(task, count) for count in counts):
        return profile
    report("the share of a step that workers divide")
    return profile.with_costs(orthogonalization=known | {work: {batch: measure_orthogonalization_share(task)}})


def _with_steps(
    profile: Profile,
    experiment: Experiment,
    splits: Splits,
    asked: Iterable[tuple[int, int]],
    report: ReportProgress,
    *,
    turns: int | None = None,
) -> Profile:
    """Measure an experiment's steps in settings (threads, workers), at its batch size.

    The first and the last of them are also measured at a smaller batch size.
    """
    if experiment.machine.device != "cpu":
        raise MachineError(f'machine.device = "{experiment.machine.device}": steps are measured on CPU only; use cpu')
    asked, batch = list(asked), experiment.training.samples_per_step
    smaller = {max(1, batch // SMALLER_BY)} - {batch}
    settings = [(batch, *setting) for setting in asked]
    settings += [(size, *setting) for size in smaller for setting in {asked[0], asked[-1]}]
    name = cost_keys.step_key(experiment, splits)
    steps, evaluating = probes.steps(name, experiment, splits, settings, report, turns)
    return profile.add(steps=steps, evaluating=evaluating)


def _several() -> list[int]:
    """Return the numbers of workers among which rounds are measured."""
    return list(probes.counts_up_to(cores.budget()))[1:] or [2]


def _shared(experiment: Experiment, counts: Iterable[int], *, few: bool) -> list[tuple[int, int]]:
    """Return (threads, workers) for these numbers of workers and, unless `few`, one worker with fewer threads.

    Where the experiment sets its threads, it has no others.
    """
    asked, budget = experiment.machine.threads, cores.budget()
    first, *rest = [(cores.share(budget, count, asked, oversubscribe=True), count) for count in counts]
    alone = [] if few or asked is not None else [(count, 1) for count in probes.counts_up_to(budget)]
    return [first, *(one for one in alone if one not in (first, *rest)), *rest]


def _on_nodes(cluster: Cluster) -> set[tuple[int, int]]:
    """Return (threads, workers) of the nodes that step as this machine does, as far as it has the cores.

    For more threads than that, one worker with every number of threads that it has cores for, to extrapolate from.
    """
    budget = cores.budget()
    alike = [group for group in cluster.groups if group.step_seconds is None and group.profile is None]
    fits = {(group.threads, min(group.workers, budget // group.threads)) for group in alike if group.threads <= budget}
    beyond = any(group.threads > budget for group in alike)
    return fits | ({(count, 1) for count in probes.counts_up_to(budget)} if beyond else set())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
