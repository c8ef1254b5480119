"""The clock's inputs, workload and hardware, made from a task and a profile of this machine."""

from dataclasses import replace
from typing import Any

import torch

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.experiment_cluster import HERE, ClusterOrHere
from tenfold.cluster.hardware import Hardware, RoundPrice, StepTime
from tenfold.cluster.workload import Workload
from tenfold.mixing.builders import make_compressor, make_strategy
from tenfold.mixing.round import exact_round
from tenfold.prediction.calibration.cost_keys import round_extras, work_of
from tenfold.prediction.measurements import Step
from tenfold.prediction.profile import Profile
from tenfold.workers.pool.snapshot import bytes_to_share
from tenfold.workers.task import Task, weight_bytes
from tenfold.workers.trainers.shared_orthogonalization import largest_share, shared_stacks, stacked_bytes

LEAST_FACTOR, MOST_FACTOR = 0.5, 3.0
"""Limits of how much rounds between real steps may differ from those measured alone; beyond, one was disturbed."""


def workload_and_hardware(task: Task, profile: Profile, cluster: ClusterOrHere) -> tuple[Workload, Hardware]:
    """Return both inputs of the clock: what a task does, and the hardware that does it."""
    workload = workload_of(task, compressed=cluster is not HERE)
    if cluster is HERE:
        return workload, hardware_here(task, profile, workload)
    return workload, hardware_of_cluster(task, profile, workload, cluster)


def workload_of(task: Task, *, compressed: bool = False) -> Workload:
    """Return the steps, rounds and bytes of a task; shared memory moves whole weights, whatever the compression."""
    division = task.division
    nbytes = weight_bytes(task)
    return Workload(
        workers=task.workers,
        steps_per_epoch=task.steps_per_epoch,
        epochs=task.experiment.training.epochs,
        strategy=make_strategy(division),
        sync_every=division.steps_between_rounds,
        local_after=division.local_after,
        overlap=division.overlap,
        average="gradients" if division.average == "gradients" else "weights",
        nbytes=nbytes,
        compression=_compressed_share(task, nbytes) if compressed else 1.0,
        batch_sizes=task.batch_sizes,
    )


def hardware_here(task: Task, profile: Profile, workload: Workload) -> Hardware:
    """Return the step, round and startup times that were measured on this machine."""
    setting = (*work_of(task), task.threads, task.workers)
    nearest = profile.nearest_step(*setting)
    price = _price_here(profile, workload, nearest)
    step_time = profile.step_time(*setting)
    if workload.average == "gradients":
        step_time, price = _divided(task, profile, step_time, _with_copies(price, profile.costs.adding), price)
    return Hardware(
        step_time=step_time,
        round_price=price,
        start=profile.start_seconds(task.workers, bytes_to_share(task.splits)),
        model_error=nearest.standard_error,
        calibrated=True,
        **_other_costs(task, profile, workload),
    )


def hardware_of_cluster(task: Task, profile: Profile, workload: Workload, cluster: Cluster) -> Hardware:
    """Return a cluster's times; a node steps as described by hand, else as its own profile or this machine's says."""
    measured, standard_error = {}, 0.0
    for group in cluster.groups:
        if group.step_seconds is None:
            own = Profile.load(group.profile) if group.profile is not None else profile
            setting = (*work_of(task), group.threads, group.workers)
            measured[group.name] = own.step_time(*setting)
            standard_error = max(standard_error, own.nearest_step(*setting).standard_error)
    return cluster.hardware(
        task.workers,
        measured,
        start=profile.start_seconds(1),
        model_error=standard_error,
        **_other_costs(task, profile, workload),
    )


def _other_costs(task: Task, profile: Profile, workload: Workload) -> dict[str, Any]:
    samples = len(task.evaluation_part) if task.evaluation_part is not None else 0
    per_epoch = len(task.evaluation_steps) + 1
    return {
        "overhead": profile.round_overhead_seconds(round_extras(task.experiment.division), workload.nbytes),
        "evaluation": profile.evaluation_seconds(work_of(task)[0], samples, task.workers) * per_epoch,
        "save": profile.save_seconds(workload.nbytes * task.workers),
    }


def _price_here(profile: Profile, workload: Workload, nearest: Step) -> RoundPrice:
    """Return what rounds cost in shared memory.

    Rounds of all sizes and kinds were measured between steps that do almost nothing. How much longer a round takes
    between the steps of this work was measured for one kind, and is assumed for the others.
    """
    if workload.workers == 1:
        return lambda _round, _nbytes: 0.0
    price = profile.round_price()
    if nearest.round is None or nearest.workers != workload.workers:
        return price
    factor = nearest.round / float(price(exact_round(workload.workers), workload.nbytes))
    return profile.round_price(factor=min(MOST_FACTOR, max(LEAST_FACTOR, factor)))


def _divided(
    task: Task, profile: Profile, step_time: StepTime, price: RoundPrice, plain: RoundPrice
) -> tuple[StepTime, RoundPrice]:
    """Return the times of a step and its round where workers divide the orthogonalization.

    To pass its part on, a worker does about half of what it does in a `plain` round: it writes, and meets the others
    once. The orthogonalization, which may have been measured at another batch size, takes at most a whole step.
    """
    stacks, whole = shared_stacks(task), profile.orthogonalization_seconds(*work_of(task), task.threads, task.workers)
    if not stacks or not whole:
        return step_time, price
    saved = min(whole, step_time.mean) * (1 - largest_share(stacks, task.workers))
    nbytes = stacked_bytes(stacks)
    return (
        replace(step_time, mean=step_time.mean - saved, fixed=max(0.0, step_time.fixed - saved)),
        lambda round_, sent: price(round_, sent) + plain(round_, nbytes) / 2,
    )


def _with_copies(price: RoundPrice, adding: float) -> RoundPrice:
    """Return what rounds of gradients cost, which are copied into shared memory and out of it."""
    return lambda round_, nbytes: price(round_, nbytes) + 2 * nbytes * adding


def _compressed_share(task: Task, nbytes: int) -> float:
    """Return the share of `nbytes` bytes that is sent."""
    size = nbytes // 4
    compressor = make_compressor(task.experiment.division, size)
    return compressor.encode(torch.linspace(-1, 1, size)).nbytes / nbytes
