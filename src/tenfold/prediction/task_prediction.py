"""The clock's inputs, workload and hardware, made from a task and a profile of this machine."""

import math
import os
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import torch

from tenfold.cluster.cluster import HERE, Cluster, ClusterOrHere, cluster_of
from tenfold.cluster.event_clock import clock_events
from tenfold.cluster.hardware import ExchangeCost, Floats, Hardware, RoundCost, StepTime
from tenfold.cluster.round_clock import ClockSpan
from tenfold.cluster.time_prediction import TimePrediction, predict_time
from tenfold.cluster.workload import Workload
from tenfold.data import Part
from tenfold.machine.cores import running_elsewhere
from tenfold.machine.metadata import load_per_core
from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.compression import row_lengths
from tenfold.mixing.round import exact_round
from tenfold.mixing.strategies import NoMixing, ParameterServer
from tenfold.prediction.calibration import complete_profile, round_extras, silent, step_key, work_of
from tenfold.prediction.divided_models import predict_divided, undivided_task
from tenfold.prediction.ledger import USUAL_ERROR, Ledger
from tenfold.prediction.measurements import Step
from tenfold.prediction.probes import Burst, ReportProgress, describe_workers, step_burst, step_entry
from tenfold.prediction.profile import Profile
from tenfold.training.flat_weights import ALIGNMENT
from tenfold.training.optimizers import ASSUMED, state_bytes
from tenfold.workers.process import bytes_to_share
from tenfold.workers.rounds import largest_share, shared_stacks, stacked_bytes
from tenfold.workers.task import Task, make_network

LEAST_FACTOR, MOST_FACTOR = 0.5, 3.0
"""Limits of how much rounds between real steps may differ from those measured alone; beyond, one was disturbed."""


EVALUATIONS = 1.25
"""Evaluations of the loss in an iteration of L-BFGS: what torch allows for, and about what line searches need."""
FRESH_EVALUATIONS = 2.1
"""Where each iteration has other samples, whose gradient is not known yet: with mini-batches and in calibrations."""


def workload_and_hardware(task: Task, profile: Profile, cluster: ClusterOrHere) -> tuple[Workload, Hardware]:
    """Return both inputs of the clock: the work of a task, and the hardware that does it."""
    workload = workload_of(task, compressed=cluster is not HERE)
    if cluster is HERE:
        return workload, hardware_here(task, profile, workload)
    return workload, hardware_of_cluster(task, profile, workload, cluster)


def workload_of(task: Task, *, compressed: bool = False) -> Workload:
    """Return the steps, rounds and bytes of a task; in shared memory weights are not compressed, and what averaging
    the optimizer's state costs was measured (see `round_extras`).
    """
    parallel = task.parallel
    nbytes, share = task.metadata.nbytes, 1.0
    if compressed:
        size = task.metadata.numel
        compressor = task.mixing.make_compressor(size, row_lengths(task.metadata.shapes, ALIGNMENT))
        share = compressor.encode(torch.linspace(-1, 1, size, dtype=task.metadata.dtype)).nbytes / nbytes
    workload = Workload(
        workers=task.workers,
        steps_per_epoch=task.steps_per_epoch,
        epochs=task.experiment.training.epochs,
        strategy=task.strategy,
        sync_every=parallel.steps_between_rounds,
        local_after=parallel.local_after,
        average="gradients" if parallel.average == "gradients" else "weights",
        nbytes=nbytes,
        compression=share,
        state_bytes=_averaged_state_bytes(task) if compressed else (),
        batch_sizes=task.batch_sizes,
    )
    return replace(workload, **_divided_steps(task, measured=not compressed))


def _averaged_state_bytes(task: Task) -> tuple[int, ...]:
    """Return the bytes of each vector of the optimizer's state that a round averages."""
    if not task.parallel.averages_state:
        return ()
    try:
        return tuple(state_bytes(task.experiment.training, make_network(task)).values())
    except Exception:  # a user's own optimizer may need more than gradients of zero
        return (task.metadata.nbytes,) * ASSUMED


def _divided_steps(task: Task, *, measured: bool) -> dict[str, Any]:
    """Return how a workload differs whose steps all workers take together; measured steps have the exchange in them.

    Every worker fetches the weights and sends a gradient, to and from all others, each of which has a part of them.
    """
    rows = task.vector_rows
    if rows is None:
        return {}
    if measured:
        return {"strategy": NoMixing(), "average": "weights"}
    servers = ParameterServer(servers=task.workers)
    return {"strategy": servers, "sync_every": 1, "average": "gradients", "portions": rows[1]}


def hardware_here(task: Task, profile: Profile, workload: Workload) -> Hardware:
    """Return the step, round and startup times that were measured on this machine; one worker starts no process."""
    setting = (*work_of(task), task.threads, task.workers)
    nearest = profile.nearest_step(*setting)
    cost = _cost_here(profile, workload, nearest)
    step_time, shares = _step_time(task, profile, *setting), nearest.round_shares or (0.0, 1.0)
    if workload.average == "gradients":  # they are copied into shared memory, which counts as computing
        adding, plain = profile.costs.adding, cost
        copies, moved = workload.nbytes * adding, float(plain(exact_round(task.workers), workload.nbytes))
        if whole := moved + copies:
            shares = (shares[0] * moved + copies) / whole, shares[1] * moved / whole

        step_time, cost = _divided(
            task, profile, step_time, lambda r, nbytes: plain(r, nbytes) + nbytes * adding, plain
        )
    return Hardware(
        step_time=step_time,
        round_cost=cost,
        round_shares=shares,
        start=profile.start_seconds(task.workers, bytes_to_share(task.splits)) if task.workers > 1 else 0.0,
        exchange_cost=_cost_of_center_here(profile, workload),
        model_error=nearest.standard_error,
        calibrated=True,
        **_other_costs(task, profile, workload),
    )


def hardware_of_cluster(task: Task, profile: Profile, workload: Workload, cluster: Cluster) -> Hardware:
    """Return a cluster's times; a node steps as described by hand, else as its own profile or this machine's says."""
    measured, standard_error = {}, 0.0
    for group, used in zip(cluster.groups, cluster.placed(task.workers), strict=True):
        if group.step_seconds is None and used:
            own = Profile.load(group.profile) if group.profile is not None else profile
            setting = (*work_of(task), group.threads, min(used, group.workers))
            measured[group.name] = _step_time(task, own, *setting)
            standard_error = max(standard_error, own.nearest_step(*setting).standard_error)
    costs = _other_costs(task, profile, workload)
    computing, _ = costs["overhead_shares"]  # the links say what the rest costs there
    costs |= {"overhead": computing * costs["overhead"], "overhead_shares": (1.0, 0.0)}
    made = cluster.hardware(task.workers, measured, start=profile.start_seconds(1), model_error=standard_error, **costs)
    if not workload.portions:
        return made
    cost, evaluations = made.round_cost, EVALUATIONS if task.steps_per_epoch == 1 else FRESH_EVALUATIONS
    return replace(made, round_cost=lambda round_, nbytes: evaluations * cost(round_, nbytes))


def _step_time(task: Task, profile: Profile, work: str, batch_size: int, threads: int, workers: int) -> StepTime:
    """Return how long a step takes: an iteration of L-BFGS on always the same samples evaluates the loss less often."""
    measured = profile.step_time(work, batch_size, threads, workers)
    if task.vector_rows is None or task.steps_per_epoch > 1:
        return measured
    factor = EVALUATIONS / FRESH_EVALUATIONS
    return replace(measured, mean=factor * measured.mean, fixed=factor * measured.fixed)


def _other_costs(task: Task, profile: Profile, workload: Workload) -> dict[str, Any]:
    """Return the cost of rounds beyond their messages, and of the evaluations and the checkpoint of an epoch.

    The evaluation of the test part after the last epoch is counted as a share of each. A checkpoint holds the
    optimizer's state, too.
    """

    def evaluation(part: Part | None) -> float:
        samples = len(part) if part is not None else 0
        return profile.evaluation_seconds(work_of(task)[0], samples, task.threads, task.workers)

    training = task.experiment.training
    in_epoch = (len(task.evaluation_steps) + 1) * evaluation(task.evaluation_part)
    saved = task.workers * workload.nbytes * (1 + (training.optimizer_traits.state_vectors or 0))
    overhead, shares = profile.round_overhead(list(round_extras(task.experiment)), workload.nbytes)
    return {
        "overhead": overhead,
        "overhead_shares": shares,
        "evaluation": in_epoch + evaluation(task.splits.test) / training.epochs,
        "save": profile.save_seconds(saved),
    }


def _cost_of_center_here(profile: Profile, workload: Workload) -> ExchangeCost | None:
    """Return the cost of exchanges with a center in shared memory: no messages, only what is computed with vectors."""
    strategy = workload.strategy
    if not isinstance(strategy, AsynchronousStrategy) or not strategy.has_center:
        return None
    adding, additions = profile.costs.adding, strategy.center_additions
    return lambda _worker, _other, there, back: adding * (additions * there + back)


def _cost_here(profile: Profile, workload: Workload, nearest: Step) -> RoundCost:
    """Return the cost of rounds in shared memory.

    Rounds of all sizes and kinds were measured between steps that do almost nothing. How much longer a round takes
    between the steps of this work was measured for one kind, and is assumed for the others.
    """
    if workload.workers == 1:
        return lambda _round, _nbytes: 0.0
    cost = profile.round_cost()
    if nearest.round is None or nearest.workers != workload.workers:
        return cost
    factor = nearest.round / float(cost(exact_round(workload.workers), workload.nbytes))
    return profile.round_cost(factor=min(MOST_FACTOR, max(LEAST_FACTOR, factor)))


def _divided(
    task: Task, profile: Profile, step_time: StepTime, cost: RoundCost, plain: RoundCost
) -> tuple[StepTime, RoundCost]:
    """Return the times of a step and its round where workers divide the orthogonalization.

    To pass its part on, a worker does about half of what it does in a `plain` round: it writes, and meets the others
    once. The orthogonalization, which may have been measured at another batch size, takes at most a whole step.
    """
    stacks, whole = shared_stacks(task), profile.orthogonalization_seconds(*work_of(task), task.threads, task.workers)
    if not stacks or not whole:
        return step_time, cost
    saved = min(whole, step_time.mean) * (1 - largest_share(stacks, task.workers))
    nbytes = stacked_bytes(stacks)
    return (
        replace(step_time, mean=step_time.mean - saved, fixed=max(0.0, step_time.fixed - saved)),
        lambda round_, sent: cost(round_, sent) + plain(round_, nbytes) / 2,
    )


PROBE_SECONDS, LONGEST = 1.0, 2.0
"""Seconds of steps that a probe should time, and its longest duration with the start of its processes."""
VALID_SECONDS = 60.0
"""Seconds for which a probe is used for further predictions."""

_seen: dict[tuple[str, int, int, int], tuple[float, Step]] = {}


def profile_now(
    task: Task, profile: Profile, report: ReportProgress | None = None, *, spread: float = USUAL_ERROR
) -> tuple[Profile, float]:
    """Return the profile as this machine is now, and how fast that is relative to the calibration (1: as fast).

    The task's own steps are timed briefly, with its number of workers. If they differ by more than the `spread` of one
    run to the next, twice in a row, they replace the calibrated ones, and all other times are scaled by the smaller of
    the two changes. On a slower machine rounds are scaled by how much they themselves differ: each waits for the
    slowest worker and then for all to notice. A smaller difference says little about the next run: it only widens the
    interval.
    """
    work, batch = step_key(task.experiment, task.splits), task.experiment.training.samples_per_step
    setting = (work, batch, task.threads, task.workers)
    usual = profile.step_time(*setting).mean
    now = _measured(task, setting, usual, spread, report)
    factor = now.mean / usual
    if abs(math.log(factor)) <= spread:
        nearest = profile.nearest_step(*setting)
        error = math.hypot(nearest.standard_error, math.log(factor))
        return profile.add(steps=[nearest.model_copy(update={"standard_error": error})]), 1.0
    rounds = None
    if now.round is not None and factor > 1:
        usual_round = float(profile.round_cost()(exact_round(task.workers), task.metadata.nbytes))
        rounds = max(factor, now.round / usual_round)
    return profile.slowed(factor, rounds=rounds).add(steps=[now]), 1 / factor


def _measured(
    task: Task, setting: tuple[str, int, int, int], usual: float, spread: float, report: ReportProgress | None
) -> Step:
    """Return the steps as they are now; of two measurements, where the first differs, the one that differs less."""
    seen = _seen.get(setting)
    if seen is not None and perf_counter() - seen[0] < VALID_SECONDS:
        return seen[1]
    if report is not None:
        report(f"measuring how fast this machine is now: {describe_workers(task.workers, task.threads)}")
    entry = _timed(task, setting, usual)
    if abs(math.log(entry.mean / usual)) > spread:
        entry = min(entry, _timed(task, setting, usual), key=lambda step: abs(math.log(step.mean / usual)))
    _seen[setting] = perf_counter(), entry
    return entry


def _timed(task: Task, setting: tuple[str, int, int, int], usual: float) -> Step:
    slowdown = max(1.0, ((running_elsewhere() or 0.0) + task.workers * task.threads) / (os.cpu_count() or 1))
    steps = max(1, round(PROBE_SECONDS / (usual * slowdown)))
    bursts = list(_bursts(task, setting[1:], steps))
    rounds = [burst.delay for burst in bursts if burst.delay is not None]
    entry = step_entry(setting[0], setting[1:], bursts)
    return entry.model_copy(update={"round": statistics.mean(rounds) if rounds else None})


def _bursts(task: Task, setting: tuple[int, int, int], steps: int) -> Iterator[Burst]:
    """Time this number of steps: in several bursts, where steps are so short that the longest burst is brief."""
    began = last = perf_counter()
    while steps > 0:
        burst = step_burst(task.experiment, task.splits, setting, steps)
        yield burst
        now = perf_counter()
        if now - began + (now - last) > LONGEST:
            return
        steps, last = steps - len(burst.steps), now


def predict_task(task: Task, report: ReportProgress = silent) -> TimePrediction:
    """Predict a task's times on its virtual cluster; step times that are not known yet are measured first.

    Times of this machine are those of its calibration, scaled by how fast it is now. `report` is called with a line
    about each measurement. For strategies without rounds the prediction also says in which order the workers exchange
    weights.
    """
    cluster, whole = cluster_of(task.experiment), undivided_task(task)
    if cluster is not HERE and cluster.has_given_times:
        profile = Profile(made="", machine={})
    else:
        profile = complete_profile(_on_cpu(whole), report=report, cluster=cluster)
    epoch, epochs, seed = task.steps_per_epoch, task.experiment.training.epochs, task.experiment.training.seed
    logged = [step for step in range(1, epoch + 1) if task.logs_after(step)]
    marks = tuple(first + step for first in range(0, epoch * epochs, epoch) for step in logged)
    now, speed, typical_error = profile, 1.0, 0.0
    if cluster is HERE:
        ledger = Ledger.load()
        now, speed = profile_now(_on_cpu(whole), profile, report, spread=ledger.spread)
        typical_error = ledger.typical_error
    if whole is task:
        prediction = predict_from_profile(task, now, cluster, seed=seed, marks=marks, typical_error=typical_error)
    else:
        workload, hardware = workload_and_hardware(whole, now, cluster)
        hardware = replace(hardware, model_error=math.hypot(hardware.model_error, typical_error))
        if cluster is HERE:
            hardware = replace(hardware, start=now.start_seconds(task.workers, bytes_to_share(task.splits)))
        prediction = predict_divided(task, workload, hardware, cluster, report, marks=marks)
        measured = 0.0 if cluster is not HERE and cluster.has_given_times else load_per_core()  # its parts, just now
        prediction = replace(prediction, calibration_load=max(measured, _load(whole, profile, cluster)))
    prediction = replace(prediction, machine_speed=speed)
    if cluster is HERE and task is _on_cpu(task):
        Ledger.note(task.experiment, len(task.splits.train), prediction, typical_error)
    if not task.strategy.asynchronous:
        return prediction
    # By the calibrated times, not those of now: the order decides the weights, and these must be the same every time.
    times = _exchange_times(*workload_and_hardware(task, profile, cluster), seed)
    return replace(prediction, exchange_times=times)


def predict_from_profile(
    task: Task,
    profile: Profile,
    cluster: ClusterOrHere = HERE,
    *,
    seed: int = 0,
    marks: tuple[int, ...] = (),
    typical_error: float = 0.0,
) -> TimePrediction:
    """Predict how long a task takes: on a cluster, or on this machine by worker processes in shared memory.

    `marks` are the steps, counted from 1 over the run, whose times are predicted in addition to the ends of epochs. The
    interval also covers a `typical_error` of such predictions.
    """
    workload, hardware = workload_and_hardware(task, profile, cluster)
    hardware = replace(hardware, model_error=math.hypot(hardware.model_error, typical_error))
    prediction = predict_time(replace(workload, marks=marks), hardware, seed=seed)
    prediction = replace(prediction, calibration_load=_load(task, profile, cluster))
    if cluster is not HERE:
        return replace(prediction, reasons=(*prediction.reasons, *_about_threads(task, profile, cluster)))
    return _delayed(prediction, profile.nearest_step(*work_of(task), task.threads, task.workers).warmup)


def _load(task: Task, profile: Profile, cluster: ClusterOrHere) -> float:
    """Return the highest load under which anything was measured that a task's prediction rests on."""
    loads = [profile.load_of(work_of(task)[0])]
    if task.workers > 1:
        loads += [profile.costs.rounds_load] if cluster is HERE else []
        loads += [profile.costs.round_overhead_load] if round_extras(task.experiment) else []
    return max(loads)


def _about_threads(task: Task, profile: Profile, cluster: Cluster) -> Iterator[str]:
    """Yield a sentence for each number of threads whose steps were not measured."""
    own = [group for group in cluster.groups if group.step_seconds is None and group.profile is None]
    measured = profile.measured_threads(work_of(task)[0])
    for threads in dict.fromkeys(group.threads for group in own):
        if threads not in measured:
            yield (
                f"Steps with {threads} threads are calculated from those that were measured with "
                f"{' and '.join(map(str, measured))}: between them interpolated, beyond them as a + b / threads."
            )


def _delayed(prediction: TimePrediction, seconds: float) -> TimePrediction:
    """Return the prediction with the extra seconds that the first steps take on a cold machine."""
    return replace(
        prediction.with_computing(prediction.times["compute"] + seconds, seconds),
        marks={step: at + seconds for step, at in prediction.marks.items()},
        spans=tuple(_stretched(prediction.spans, seconds)),
    )


def _stretched(spans: Iterable[ClockSpan], seconds: float) -> Iterator[ClockSpan]:
    """Yield the spans with each worker's first step `seconds` longer, and all later ones `seconds` later."""
    begun: set[int] = set()
    for span in sorted(spans, key=lambda span: span.start):
        if span.worker in begun:
            yield span._replace(start=span.start + seconds)
        elif span.kind == "compute":
            begun.add(span.worker)
            yield span._replace(seconds=span.seconds + seconds)
        else:
            yield span


def _on_cpu(task: Task) -> Task:
    """Return the task as the nodes run it: on CPU, even where a GPU of this machine does the training."""
    if task.experiment.machine.device == "cpu":
        return task
    return replace(task, resolved=task.resolved.replace(device="cpu"), splits=task.splits.to("cpu"))


def _exchange_times(workload: Workload, hardware: Hardware, seed: int) -> Floats:
    times = np.zeros((workload.steps, workload.workers))
    for event in clock_events(workload, hardware, seed=seed):
        times[event.step - 1, event.worker] = event.time  # an exchange comes after its step
    return times
