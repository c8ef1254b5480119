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
"""Limits for the ratio of a round's time between real steps to its time measured alone. A ratio outside them means that
one of the two measurements was disturbed."""


EVALUATIONS = 1.25
"""Evaluations of the loss per iteration of L-BFGS: torch's default limit, and about the number a line search needs."""
FRESH_EVALUATIONS = 2.1
"""The same when each iteration has new samples, so their gradient must be computed first: with mini-batches and in
calibrations."""


def workload_and_hardware(task: Task, profile: Profile, cluster: ClusterOrHere) -> tuple[Workload, Hardware]:
    """Return the clock's two inputs: the workload of a task and the hardware it runs on."""
    workload = workload_of(task, compressed=cluster is not HERE)
    if cluster is HERE:
        return workload, hardware_here(task, profile, workload)
    return workload, hardware_of_cluster(task, profile, workload, cluster)


def workload_of(task: Task, *, compressed: bool = False) -> Workload:
    """Return the steps, rounds and bytes of a task.

    In shared memory, weights are not compressed, and the cost of averaging the optimizer's state is measured instead
    (see `round_extras`).
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
    except Exception:  # a user's optimizer may not work with zero gradients
        return (task.metadata.nbytes,) * ASSUMED


def _divided_steps(task: Task, *, measured: bool) -> dict[str, Any]:
    """Return the fields of a workload that differ when all workers take each step together.

    Each worker holds a part of the weights, so every worker fetches weights from all others and sends them gradients.
    Measured steps already include this exchange.
    """
    rows = task.vector_rows
    if rows is None:
        return {}
    if measured:
        return {"strategy": NoMixing(), "average": "weights"}
    servers = ParameterServer(servers=task.workers)
    return {"strategy": servers, "sync_every": 1, "average": "gradients", "portions": rows[1]}


def hardware_here(task: Task, profile: Profile, workload: Workload) -> Hardware:
    """Return the step, round and startup times measured on this machine; a single worker starts no process."""
    setting = (*work_of(task), task.threads, task.workers)
    nearest = profile.nearest_step(*setting)
    cost = _cost_here(profile, workload, nearest)
    step_time, shares = _step_time(task, profile, *setting), nearest.round_shares or (0.0, 1.0)
    if workload.average == "gradients":  # copying them into shared memory counts as computing
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
    """Return the step, round and startup times of a cluster.

    A node's step time is given in the cluster's description, or else comes from the node's own profile or, if it has
    none, from this machine's profile.
    """
    measured, standard_error = {}, 0.0
    for group, used in zip(cluster.groups, cluster.placed(task.workers), strict=True):
        if group.step_seconds is None and used:
            own = Profile.load(group.profile) if group.profile is not None else profile
            setting = (*work_of(task), group.threads, min(used, group.workers))
            measured[group.name] = _step_time(task, own, *setting)
            standard_error = max(standard_error, own.nearest_step(*setting).standard_error)
    costs = _other_costs(task, profile, workload)
    computing, _ = costs["overhead_shares"]  # the rest is communication, whose cost the links determine
    costs |= {"overhead": computing * costs["overhead"], "overhead_shares": (1.0, 0.0)}
    made = cluster.hardware(task.workers, measured, start=profile.start_seconds(1), model_error=standard_error, **costs)
    if not workload.portions:
        return made
    cost, evaluations = made.round_cost, EVALUATIONS if task.steps_per_epoch == 1 else FRESH_EVALUATIONS
    return replace(made, round_cost=lambda round_, nbytes: evaluations * cost(round_, nbytes))


def _step_time(task: Task, profile: Profile, work: str, batch_size: int, threads: int, workers: int) -> StepTime:
    """Return the time of a step; an L-BFGS iteration evaluates the loss less often if the samples never change."""
    measured = profile.step_time(work, batch_size, threads, workers)
    if task.vector_rows is None or task.steps_per_epoch > 1:
        return measured
    factor = EVALUATIONS / FRESH_EVALUATIONS
    return replace(measured, mean=factor * measured.mean, fixed=factor * measured.fixed)


def _other_costs(task: Task, profile: Profile, workload: Workload) -> dict[str, Any]:
    """Return the cost of rounds beyond their messages, and of the evaluations and the checkpoint of an epoch.

    The evaluation of the test part after the last epoch is spread evenly over all evaluations. A checkpoint also
    holds the optimizer's state.
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
    """Return the cost of exchanges with a center in shared memory: no messages, only vector arithmetic."""
    strategy = workload.strategy
    if not isinstance(strategy, AsynchronousStrategy) or not strategy.has_center:
        return None
    adding, additions = profile.costs.adding, strategy.center_additions
    return lambda _worker, _other, there, back: adding * (additions * there + back)


def _cost_here(profile: Profile, workload: Workload, nearest: Step) -> RoundCost:
    """Return the cost of rounds in shared memory.

    Rounds of all sizes and kinds were measured between steps that do almost nothing. Between the steps of a real
    workload they take longer; the factor was measured for one kind of round and is used for all kinds.
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
    """Return the times of a step and its round when workers divide the orthogonalization.

    Sharing the results costs a worker about half of a `plain` round: it writes its part and waits for the others once.
    The time of the orthogonalization is limited to a whole step, since it may come from another batch size.
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
"""Seconds of steps that a probe should time, and its longest duration including the start of its processes."""
VALID_SECONDS = 60.0
"""Seconds for which a probe is used for further predictions."""

_seen: dict[tuple[str, int, int, int], tuple[float, Step]] = {}


def profile_now(
    task: Task, profile: Profile, report: ReportProgress | None = None, *, spread: float = USUAL_ERROR
) -> tuple[Profile, float]:
    """Return the profile adjusted to the machine's current speed, and that speed relative to the calibration.

    The speed is 1 if nothing has changed. The task's own steps are timed briefly, with its number of workers. If they
    differ from the calibrated steps by more than `spread`, the variation between runs, twice in a row, they replace the
    calibrated steps, and all other times are scaled by the smaller of the two changes. On a slower machine, rounds are
    scaled by their own measured change, because each round waits for the slowest worker and then for all workers to
    notice. A smaller difference says little about the next run and only widens the interval.
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
    """Return the current step times.

    If the first measurement differs from the calibration, measure again and return the one that differs less.
    """
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
    """Time this number of steps, in several bursts if the steps are very short."""
    began = last = perf_counter()
    while steps > 0:
        burst = step_burst(task.experiment, task.splits, setting, steps)
        yield burst
        now = perf_counter()
        if now - began + (now - last) > LONGEST:
            return
        steps, last = steps - len(burst.steps), now


def predict_task(task: Task, report: ReportProgress = silent) -> TimePrediction:
    """Predict a task's times on its virtual cluster; missing step times are measured first.

    The calibrated times of this machine are scaled to its current speed. `report` is called with a line about each
    measurement. For strategies without rounds, the prediction also contains the order in which the workers exchange
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
    # The order comes from the calibrated times, not the current ones: it determines the weights, which must be
    # reproducible.
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
    """Predict how long a task takes, on a cluster or by worker processes in shared memory on this machine.

    `marks` are steps, counted from 1 over the whole run, whose times are predicted in addition to the ends of epochs.
    The interval also allows for the `typical_error` of such predictions.
    """
    workload, hardware = workload_and_hardware(task, profile, cluster)
    hardware = replace(hardware, model_error=math.hypot(hardware.model_error, typical_error))
    prediction = predict_time(replace(workload, marks=marks), hardware, seed=seed)
    prediction = replace(prediction, calibration_load=_load(task, profile, cluster))
    if cluster is not HERE:
        return replace(prediction, reasons=(*prediction.reasons, *_about_threads(task, profile, cluster)))
    return _delayed(prediction, profile.nearest_step(*work_of(task), task.threads, task.workers).warmup)


def _load(task: Task, profile: Profile, cluster: ClusterOrHere) -> float:
    """Return the highest load during any of the measurements that a task's prediction uses."""
    loads = [profile.load_of(work_of(task)[0])]
    if task.workers > 1:
        loads += [profile.costs.rounds_load] if cluster is HERE else []
        loads += [profile.costs.round_overhead_load] if round_extras(task.experiment) else []
    return max(loads)


def _about_threads(task: Task, profile: Profile, cluster: Cluster) -> Iterator[str]:
    """Yield a sentence for each number of threads without measured steps."""
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
    """Return the task as the nodes run it: on CPU, even if a GPU of this machine does the training."""
    if task.experiment.machine.device == "cpu":
        return task
    return replace(task, resolved=task.resolved.replace(device="cpu"), splits=task.splits.to("cpu"))


def _exchange_times(workload: Workload, hardware: Hardware, seed: int) -> Floats:
    times = np.zeros((workload.steps, workload.workers))
    for event in clock_events(workload, hardware, seed=seed):
        times[event.step - 1, event.worker] = event.time  # an exchange comes after its step
    return times
