"""From an experiment's task and a profile to what the clock asks for, and the clock's answer."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from tenfold.cluster.clock import ClockSpan
from tenfold.cluster.cluster import Cluster
from tenfold.cluster.hardware import Hardware, RoundPrice
from tenfold.cluster.prediction import Prediction, predict
from tenfold.cluster.workload import Workload
from tenfold.mixing import Round
from tenfold.mixing.builders import make_compressor, make_strategy
from tenfold.mixing.round import exact_round
from tenfold.prediction.calibration import work
from tenfold.prediction.measurements import Step
from tenfold.prediction.profile import Profile
from tenfold.workers.snapshot import bytes_to_share
from tenfold.workers.task import Task, weight_bytes

LEAST_FACTOR, MOST_FACTOR = 0.5, 3.0
"""How far rounds amid real steps may differ from those measured by themselves; beyond, a measurement was disturbed."""


def forecast(
    task: Task,
    profile: Profile,
    cluster: Cluster | None = None,
    *,
    seed: int = 0,
    repeats: int | None = None,
    marks: tuple[int, ...] = (),
) -> Prediction:
    """Predict how long a task takes: on a cluster, or (None) on this machine by worker processes in shared memory.

    `marks` are steps, counted from 1 over the run, whose time is asked for besides the ends of epochs.
    """
    plan, hardware = clockwork(task, profile, cluster)
    prediction = predict(replace(plan, marks=marks), hardware, seed=seed, repeats=repeats)
    if cluster is not None:
        return prediction
    return _later(prediction, profile.nearest_step(*_work(task), task.threads, task.workers).cold)


def clockwork(task: Task, profile: Profile, cluster: Cluster | None) -> tuple[Workload, Hardware]:
    """Return what the clock asks for."""
    plan = plan_of(task, compressed=cluster is not None)
    if cluster is None:
        return plan, hardware_here(task, profile, plan)
    return plan, hardware_there(task, profile, plan, cluster)


def plan_of(task: Task, *, compressed: bool = False) -> Workload:
    """Return the run as the clock sees it; shared memory moves whole weights, whatever the compression."""
    division = task.experiment.division
    nbytes = weight_bytes(task)
    return Workload(
        workers=task.workers,
        steps_per_epoch=task.steps_per_epoch,
        epochs=task.experiment.training.epochs,
        strategy=make_strategy(division),
        sync_every=division.pace,
        local_after=division.local_after,
        average=division.average,
        nbytes=nbytes,
        compression=_travelling(task, nbytes) if compressed else 1.0,
        batch_sizes=task.batch_sizes,
    )


def hardware_here(task: Task, profile: Profile, plan: Workload) -> Hardware:
    """Return this machine, as it was measured."""
    setting = (*_work(task), task.threads, task.workers)
    nearest = profile.nearest_step(*setting)
    price = _price_here(profile, plan, nearest)
    return Hardware(
        step_time=profile.step_time(*setting),
        round_price=_with_copies(price, profile.costs.adding) if plan.average == "gradients" else price,
        start=profile.start_seconds(task.workers, bytes_to_share(task.splits)),
        model_error=nearest.doubt,
        calibrated=True,
        **_other_costs(task, profile, plan),
    )


def hardware_there(task: Task, profile: Profile, plan: Workload, cluster: Cluster) -> Hardware:
    """Return a cluster whose nodes step as this machine does, or as their own profile says, or as described by hand."""
    measured, doubt = {}, 0.0
    for group in cluster.groups:
        if group.step_seconds is None:
            own = Profile.load(group.profile) if group.profile is not None else profile
            setting = (*_work(task), group.threads, group.workers)
            measured[group.name] = own.step_time(*setting)
            doubt = max(doubt, own.nearest_step(*setting).doubt)
    return cluster.hardware(
        task.workers,
        measured,
        start=profile.start_seconds(1),
        model_error=doubt,
        calibrated=len(measured) == len(cluster.groups),
        **_other_costs(task, profile, plan),
    )


def _work(task: Task) -> tuple[str, int]:
    return work.describe(task.experiment, task.splits), task.experiment.training.batch_size


def _other_costs(task: Task, profile: Profile, plan: Workload) -> dict[str, Any]:
    watched = len(task.watched) if task.watched is not None else 0
    return {
        "overhead": profile.besides_seconds(work.besides(task.experiment.division), plan.nbytes),
        "evaluation": profile.evaluation_seconds(_work(task)[0], watched, task.workers),
        "save": profile.save_seconds(plan.nbytes * task.workers),
    }


def _price_here(profile: Profile, plan: Workload, nearest: Step) -> RoundPrice:
    """Return what rounds cost in shared memory.

    Those of all sizes and kinds were measured amid steps that do next to nothing. How much longer one takes amid the
    steps of this work was measured for one kind, and holds for the others.
    """
    if plan.workers == 1:
        return _free
    price = profile.round_price("shared-memory")
    if nearest.round is None or nearest.together != plan.workers:
        return price
    factor = nearest.round / float(price(exact_round(plan.workers), plan.nbytes))
    return profile.round_price("shared-memory", factor=min(MOST_FACTOR, max(LEAST_FACTOR, factor)))


def _later(prediction: Prediction, seconds: float) -> Prediction:
    """Return the prediction with what the first steps take more than the clock knows of."""
    low, high = prediction.interval
    return replace(
        prediction,
        seconds=prediction.seconds + seconds,
        interval=(low + seconds, high + seconds),
        total=prediction.total + seconds,
        times=prediction.times | {"compute": prediction.times["compute"] + seconds},
        marks={step: at + seconds for step, at in prediction.marks.items()},
        spans=tuple(_stretched(prediction.spans, seconds)),
    )


def _stretched(spans: Iterable[ClockSpan], seconds: float) -> Iterator[ClockSpan]:
    """Yield the spans with each worker's first step so much longer, and what follows so much later."""
    begun: set[int] = set()
    for span in sorted(spans, key=lambda span: span.start):
        if span.worker in begun:
            yield span._replace(start=span.start + seconds)
        elif span.kind == "compute":
            begun.add(span.worker)
            yield span._replace(seconds=span.seconds + seconds)
        else:
            yield span


def _free(_round: Round, _nbytes: int) -> float:
    return 0.0


def _with_copies(price: RoundPrice, adding: float) -> RoundPrice:
    """Return what rounds of gradients cost, which are copied into shared memory and out of it."""
    return lambda round_, nbytes: price(round_, nbytes) + 2 * nbytes * adding


def _travelling(task: Task, nbytes: int) -> float:
    """Return what is sent of so many bytes, as a share."""
    size = nbytes // 4
    compressor = make_compressor(task.experiment.division, size)
    return compressor.encode(torch.linspace(-1, 1, size)).nbytes / nbytes
