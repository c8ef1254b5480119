"""The times of a task, predicted from a profile of this machine."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tenfold.cluster.cluster import Cluster
from tenfold.cluster.experiment_cluster import HERE, ClusterOrHere
from tenfold.cluster.time_prediction import Prediction, predict_time
from tenfold.cluster.timing import ClockSpan
from tenfold.prediction.calibration.cost_keys import work_of
from tenfold.prediction.clock_inputs import workload_and_hardware
from tenfold.prediction.profile import Profile
from tenfold.workers.task import Task


def predict_from_profile(
    task: Task, profile: Profile, cluster: ClusterOrHere = HERE, *, seed: int = 0, marks: tuple[int, ...] = ()
) -> Prediction:
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


def _delayed(prediction: Prediction, seconds: float) -> Prediction:
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
