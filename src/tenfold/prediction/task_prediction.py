"""How long a task takes, on its virtual cluster or on this machine, predicted before it runs."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from tenfold.cluster.clock_records import ClockSpan
from tenfold.cluster.cluster import Cluster
from tenfold.cluster.event_clock import clock_events
from tenfold.cluster.experiment_cluster import HERE, ClusterOrHere, cluster_of
from tenfold.cluster.hardware import Floats, Hardware
from tenfold.cluster.time_prediction import TimePrediction, predict_time
from tenfold.cluster.workload import Workload
from tenfold.mixing.builders import make_strategy
from tenfold.prediction.calibration import ReportProgress, complete_profile
from tenfold.prediction.calibration.cost_keys import work_of
from tenfold.prediction.calibration.measure_machine import silent
from tenfold.prediction.clock_inputs import workload_and_hardware
from tenfold.prediction.current_speed import profile_now
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Task


def predict_task(task: Task, report: ReportProgress = silent) -> TimePrediction:
    """Predict a task's times on its virtual cluster; step times that are not known yet are measured first.

    Times of this machine are those of its calibration, scaled by how fast it is now. `report` is called with a line
    about each measurement. For strategies without rounds the prediction also says in which order the workers exchange
    weights.
    """
    cluster = cluster_of(task.experiment)
    if cluster is not HERE and cluster.has_given_times:
        profile = Profile(made="", machine={})
    else:
        profile = complete_profile(_on_cpu(task), report=report, cluster=cluster)
    seed = task.experiment.training.seed
    now, speed = profile_now(_on_cpu(task), profile, report) if cluster is HERE else (profile, 1.0)
    prediction = predict_from_profile(task, now, cluster, seed=seed, marks=_logged_steps(task))
    prediction = replace(prediction, machine_speed=speed)
    if not make_strategy(task.experiment.division).asynchronous:
        return prediction
    # By the calibrated times, not those of now: the order decides the weights, and these must be the same every time.
    times = _exchange_times(*workload_and_hardware(task, profile, cluster), seed)
    return replace(prediction, exchange_times=times)


def predict_from_profile(
    task: Task, profile: Profile, cluster: ClusterOrHere = HERE, *, seed: int = 0, marks: tuple[int, ...] = ()
) -> TimePrediction:
    """Predict how long a task takes: on a cluster, or on this machine by worker processes in shared memory.

    `marks` are the steps, counted from 1 over the run, whose times are predicted in addition to the ends of epochs.
    """
    workload, hardware = workload_and_hardware(task, profile, cluster)
    prediction = predict_time(replace(workload, marks=marks), hardware, seed=seed)
    if cluster is not HERE:
        return replace(prediction, reasons=(*prediction.reasons, *_about_threads(task, profile, cluster)))
    return _delayed(prediction, profile.nearest_step(*work_of(task), task.threads, task.workers).warmup)


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
    """Yield the spans with each worker's first step `seconds` longer, and what follows `seconds` later."""
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
    return replace(task, experiment=task.experiment.replace(device="cpu"), splits=task.splits.to("cpu"))


def _logged_steps(task: Task) -> tuple[int, ...]:
    """Return the steps after which workers log, counted from 1 over the run."""
    epoch = task.steps_per_epoch
    logged = [step for step in range(1, epoch + 1) if task.logs_after(step)]
    return tuple(first + step for first in range(0, epoch * task.experiment.training.epochs, epoch) for step in logged)


def _exchange_times(workload: Workload, hardware: Hardware, seed: int) -> Floats:
    times = np.zeros((workload.steps, workload.workers))
    for event in clock_events(workload, hardware, seed=seed):
        times[event.step - 1, event.worker] = event.time  # an exchange comes after its step
    return times
