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
from tenfold.cluster.hardware import Floats, Hardware, RoundPrice, StepTime
from tenfold.cluster.round_clock import ClockSpan
from tenfold.cluster.time_prediction import TimePrediction, predict_time
from tenfold.cluster.workload import Workload
from tenfold.machine.cores import running_elsewhere
from tenfold.machine.liveness import MEMORY_METRICS
from tenfold.mixing.builders import make_compressor, make_strategy
from tenfold.mixing.compression import row_lengths
from tenfold.mixing.round import exact_round
from tenfold.prediction.calibration import complete_profile, round_extras, silent, step_key, work_of
from tenfold.prediction.measurements import Step
from tenfold.prediction.probes import Burst, ReportProgress, step_burst, step_entry
from tenfold.prediction.profile import Profile
from tenfold.runs import Emit, EpochEnded, Event, Lifecycle, Metric, Span, Started
from tenfold.training.flat import ALIGNMENT, state_shapes
from tenfold.workers.process import bytes_to_share
from tenfold.workers.rounds import largest_share, shared_stacks, stacked_bytes
from tenfold.workers.task import Task, make_network, weight_bytes

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
    parallel = task.parallel
    nbytes = weight_bytes(task)
    return Workload(
        workers=task.workers,
        steps_per_epoch=task.steps_per_epoch,
        epochs=task.experiment.training.epochs,
        strategy=make_strategy(parallel),
        sync_every=parallel.steps_between_rounds,
        local_after=parallel.local_after,
        average="gradients" if parallel.average == "gradients" else "weights",
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
        round_cost=price,
        start=profile.start_seconds(task.workers, bytes_to_share(task.splits)),
        model_error=nearest.standard_error,
        calibrated=True,
        **_other_costs(task, profile, workload),
    )


def hardware_of_cluster(task: Task, profile: Profile, workload: Workload, cluster: Cluster) -> Hardware:
    """Return a cluster's times; a node steps as described by hand, else as its own profile or this machine's says."""
    measured, standard_error = {}, 0.0
    for group, taken in zip(cluster.groups, cluster.placed(task.workers), strict=True):
        if group.step_seconds is None and taken:
            own = Profile.load(group.profile) if group.profile is not None else profile
            setting = (*work_of(task), group.threads, min(taken, group.workers))
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
        "overhead": profile.round_overhead_seconds(round_extras(task.experiment.parallel), workload.nbytes),
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
    price = profile.round_cost()
    if nearest.round is None or nearest.workers != workload.workers:
        return price
    factor = nearest.round / float(price(exact_round(workload.workers), workload.nbytes))
    return profile.round_cost(factor=min(MOST_FACTOR, max(LEAST_FACTOR, factor)))


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
    rows = row_lengths(state_shapes(make_network(task)), ALIGNMENT)
    compressor = make_compressor(task.experiment.parallel, size, rows)
    return compressor.encode(torch.linspace(-1, 1, size)).nbytes / nbytes


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
    work, batch = step_key(task.experiment, task.splits), task.experiment.training.samples_per_step
    usual = profile.step_time(work, batch, task.threads, task.workers).mean
    now = _measured(task, (work, batch, task.threads, task.workers), usual, report)
    factor = now.mean / usual
    if abs(math.log(factor)) <= math.log(NOTABLE):
        return profile, 1.0
    rounds = None
    if now.round is not None and factor > 1:
        usual_round = float(profile.round_cost()(exact_round(task.workers), weight_bytes(task)))
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
    rounds = [burst.delay for burst in bursts if burst.delay is not None]
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
    if not make_strategy(task.experiment.parallel).asynchronous:
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
    has_extras = task.workers > 1 and bool(round_extras(task.experiment.parallel))
    load = max(profile.load_of(work_of(task)[0]), profile.costs.round_overhead_load if has_extras else 0.0)
    prediction = replace(prediction, calibration_load=load)
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


class PredictedEvents:
    """Replaces the measured times of events by predicted ones, and passes the events on."""

    def __init__(self, task: Task, prediction: TimePrediction, origin: float, emit: Emit) -> None:
        self.task = task
        self.origin = origin
        self.prediction = prediction
        self.emit = emit
        self._steps = sorted(prediction.marks)
        self._seconds = [prediction.marks[step] for step in self._steps]

    def __call__(self, event: Event) -> None:
        """Pass an event on with its time on the virtual cluster.

        Measured spans are dropped, because the prediction has its own.
        """
        if isinstance(event, Metric) and event.name in MEMORY_METRICS:
            return  # that of this machine, not of the cluster
        if isinstance(event, Metric):
            self.emit(replace(event, at=self._at(event.step, event.epoch), seconds=self._training(event.step)))
        elif isinstance(event, Lifecycle):
            last = (event.epoch + 1) * self.task.steps_per_epoch if isinstance(event, EpochEnded) else 0
            self.emit(replace(event, at=self._at(last, event.epoch)))
            if isinstance(event, Started) and not event.resumed:
                for span in self.prediction.spans:
                    self.emit(
                        Span(at=self.origin + span.start, kind=span.kind, seconds=span.seconds, worker=span.worker)
                    )

    def result(self, trained: dict[str, Any]) -> dict[str, Any]:
        """Return the predicted times of a run, given its result; it may have stopped before its last epoch."""
        prediction, last = self.prediction, trained.get("steps_to_target")
        steps = trained["epochs"] * self.task.steps_per_epoch if last is None else last
        if trained.get("stopped_by"):
            steps = min(steps, trained["steps"])
        whole = steps >= self.task.experiment.training.epochs * self.task.steps_per_epoch
        seconds = prediction.seconds if whole else self._training(steps)
        share = seconds / prediction.seconds
        times = {kind: float(np.mean(each)) for kind, each in prediction.times.items()}
        return {
            "clock": "predicted",
            "seconds": seconds,
            "interval": [share * end for end in prediction.interval],
            "times": {kind: time if kind == "start" else share * time for kind, time in times.items()},
            "samples_per_second": trained["samples"] / seconds,
            **({"seconds_to_target": seconds} if last is not None else {}),
            "calibrated": prediction.calibrated,
            "calibration_load": prediction.calibration_load,
            "machine_speed": prediction.machine_speed,
            "reasons": list(prediction.reasons),
        }

    def _training(self, step: int) -> float:
        """Return the training seconds until the end of a step."""
        return float(np.interp(step, [0, *self._steps], [0.0, *self._seconds]))

    def _at(self, step: int, epoch: int) -> float:
        """Return when a step ends, counted from the start of the run, with the startup and evaluations before it."""
        times = {kind: float(np.max(seconds)) for kind, seconds in self.prediction.times.items()}
        between = (times.get("evaluate", 0.0) + times.get("save", 0.0)) / self.task.experiment.training.epochs
        return self.origin + times.get("start", 0.0) * (step > 0) + self._training(step) + epoch * between
