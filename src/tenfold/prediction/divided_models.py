"""Predict the times of models that are divided among workers: pipelines of stages, and shares of neurons.

The parts are timed in this process, one after another, with the code that trains them. On a cluster, the links carry
activations and gradients; on this machine, a short run of the real workers measures how much longer the parts take when
they run together. Averaging between replicas is then predicted as usual, with the step time of the pipeline.
"""

import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tenfold.cluster.cluster import HERE, Cluster, ClusterOrHere
from tenfold.cluster.event_clock import PipelineStep, StageTime, round_of_parts, time_pipeline
from tenfold.cluster.hardware import LINKS, Floats, Hardware, StepTime
from tenfold.cluster.round_clock import LANES, ClockSpan, TimeKind
from tenfold.cluster.time_prediction import TimePrediction, predict_time
from tenfold.cluster.workload import Workload
from tenfold.data.part import select_rows
from tenfold.engines.processes import Processes
from tenfold.machine.cores import using_threads
from tenfold.mixing.round import balance, exact_round
from tenfold.prediction.probes import ReportProgress, StepSpans, burst_task
from tenfold.runs.events import Event, Span, Stopwatch
from tenfold.training import choose_loss
from tenfold.training.randomness import keep_rng_state
from tenfold.workers.divided import GroupReplica, PipelineReplica, make_part, take_part
from tenfold.workers.task import Task, make_network

MEASURE_SECONDS, FEWEST_REPEATS, MOST_REPEATS = 1.0, 3, 30
BURST_STEPS, WARMUP_STEPS = 24, 6
LANE_STEPS = 3
"""Number of pipeline steps whose operations are shown one by one."""


@dataclass
class _Rehearsal:
    """A group whose workers are all in this process: it stores messages, and the shares of other workers are zeros."""

    rank: int
    size: int
    mail: dict[tuple[int, int], deque[list[Any]]]
    collectives: list[tuple[str, int]] = field(default_factory=list)
    """Kind and bytes of each collective operation."""
    sent: dict[int, int] = field(default_factory=dict)
    """Bytes of the last message to each receiver."""

    def send(self, values: Sequence[Any], receiver: int) -> None:
        tensors = [value for value in values if isinstance(value, Tensor)]
        self.sent[receiver] = sum(tensor.nbytes for tensor in tensors)
        copies = [
            value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value
            for value in values
        ]
        self.mail.setdefault((self.rank, receiver), deque()).append(copies)

    def receive(self, sender: int) -> list[Any]:
        return self.mail[sender, self.rank].popleft()

    def flush(self) -> None:
        pass

    def all_gather(self, tensor: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        gathered = [torch.zeros(tuple(shape), dtype=tensor.dtype) for shape in shapes]
        gathered[self.rank] = tensor
        self.collectives.append(("gather", sum(part.nbytes for part in gathered)))
        return gathered

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.collectives.append(("reduce", tensor.nbytes))
        return tensor


@dataclass(frozen=True)
class PartTimes:
    """The measured times of the parts of a replica, each by itself."""

    stages: tuple[StageTime, ...]
    """With a division by layers, each stage; by neurons, one worker, whose `update` is its whole step."""
    nbytes: tuple[int, ...] = ()
    """With a division by layers, the bytes of a micro-batch's activations from each stage to the next."""
    collectives: tuple[tuple[str, int], ...] = ()
    """With a division by neurons, the kinds and bytes of the collective operations of a step."""


def measure_parts(task: Task) -> PartTimes:
    """Time the parts of a replica, one after another in this process."""
    division, training = task.division, task.experiment.training
    assert division is not None
    mail: dict[tuple[int, int], deque[list[Any]]] = {}
    count = division.size if division.kind == "layers" else 1
    loss = choose_loss(training, task.splits.classes, task.splits.loss_unit)
    groups = [_Rehearsal(rank, division.size, mail) for rank in range(count)]
    with using_threads(task.threads), keep_rng_state():
        parts = []
        for group in groups:
            network = take_part(make_network(task), division, group, task.splits)
            parts.append(make_part(network, training, loss, parallel=task.parallel, group=group, steps_per_epoch=10**6))
            network.train()
        rows = torch.arange(training.samples_per_step) % len(task.splits.train)
        [(x, y)] = task.splits.train.batches([rows])
        if division.kind == "neurons":
            parts[0].step(x, y)
            collectives = tuple(groups[0].collectives)
            seconds = _repeat(lambda: [_timed(lambda: parts[0].step(x, y))])
            return PartTimes((StageTime(0.0, 0.0, seconds[0]),), collectives=collectives)
        seconds = _repeat(lambda: _time_stages(parts, x, y))
    stages = tuple(StageTime(*seconds[3 * place : 3 * place + 3]) for place in range(count))
    return PartTimes(stages, tuple(group.sent[group.rank + 1] for group in groups[:-1]))


def _time_stages(parts: Sequence[GroupReplica], x: Any, y: Any) -> list[float]:
    pipeline = [part for part in parts if isinstance(part, PipelineReplica)]
    rows, targets, share = pipeline[0].pieces(y, pipeline[0].micro_batches)[0]
    forward, backward, update, passes = [], [], [], []
    for stage in pipeline:
        started = perf_counter()
        passes.append(stage.forward_piece(select_rows(x, rows) if stage.network.is_first else None, targets, share))
        forward.append(perf_counter() - started)
    for stage, passed in zip(reversed(pipeline), reversed(passes), strict=True):
        backward.append(_timed(lambda stage=stage, passed=passed: stage.backward_piece(passed)))  # type: ignore[misc]
    update = [_timed(stage.optimizer.step) for stage in pipeline]
    return [seconds for place in zip(forward, reversed(backward), update, strict=True) for seconds in place]


def count_micro_batches(task: Task) -> int:
    return task.parallel.count_micro_batches(task.experiment.training.samples_per_step)


def _timed(call: Callable[[], object]) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started


def _repeat(measure: Callable[[], list[float]]) -> list[float]:
    """Return the medians over several calls of `measure`, without the first, in which torch prepares its kernels."""
    deadline, measured = perf_counter() + MEASURE_SECONDS, [measure()]
    while len(measured) <= FEWEST_REPEATS or (perf_counter() < deadline and len(measured) <= MOST_REPEATS):
        measured.append(measure())
    return [statistics.median(values) for values in zip(*measured[1:], strict=True)]


@dataclass(frozen=True)
class SideBySide:
    """The seconds of a step when all parts run together on this machine."""

    busy: Floats
    """The computing and copying of each worker."""
    whole: float
    """From the start of a step to its end."""
    spread: float
    """The variation of `whole` from step to step, relative to its value."""


def measure_here(task: Task) -> SideBySide:
    """Let the real workers take some steps, and return how long they take."""
    short = burst_task(task.experiment, task.splits, BURST_STEPS)
    events: list[Event] = []
    Processes().run(short, Stopwatch(), events.append)
    spans = [event for event in events if isinstance(event, Span) and event.count == 1]
    steps = [StepSpans([span for span in spans if span.worker == worker]) for worker in range(task.workers)]
    count = min(len(step.own) for step in steps)
    own, left, communicated = (
        np.column_stack([getattr(step, what)[:count] for step in steps])[WARMUP_STEPS:]
        for what in ("own", "left", "communicated")
    )
    copied = communicated if task.replicas == 1 else 0.0  # else it is mostly that of rounds
    ends = np.diff(left.max(axis=1))
    return SideBySide(np.median(own + copied, axis=0), float(np.median(ends)), float(np.std(ends) / np.mean(ends)))


def undivided_task(task: Task) -> Task:
    """Return the task with one worker per replica that holds the whole model; unchanged if that is already so."""
    if task.division is None:
        return task
    resolved = task.resolved.replace(divide="data", stages=None, workers=task.replicas)
    return replace(task, resolved=resolved, division=None)


def predict_divided(
    task: Task,
    workload: Workload,
    hardware: Hardware,
    cluster: ClusterOrHere,
    report: ReportProgress,
    *,
    marks: tuple[int, ...] = (),
) -> TimePrediction:
    """Predict the times of a task whose model is divided, given the clock's inputs for its undivided replicas."""
    assert task.division is not None
    report(f"the parts of the model, divided by {task.division.kind}")
    parts = measure_parts(task)
    if cluster is HERE:
        report(f"steps of {task.workers} workers, divided by {task.division.kind}")
        steps, step_times = _steps_here(task, parts, measure_here(task))
    else:
        steps, step_times = _steps_on_cluster(task, parts, cluster)
        cost, size = cluster.round_cost(task.workers), task.division.size
        hardware = replace(hardware, round_cost=lambda r, nbytes: float(np.max(cost(round_of_parts(r, size), nbytes))))
    forward = [stage.forward for stage in parts.stages]
    share = max(forward) / sum(forward) if any(forward) else 1 / task.division.size
    hardware = replace(hardware, step_time=step_times, evaluation=hardware.evaluation * share)
    nbytes = max(task.division.numels) * task.metadata.dtype.itemsize
    workload = replace(workload, nbytes=nbytes, batch_sizes=None, marks=marks)
    prediction = predict_time(workload, hardware, seed=task.experiment.training.seed)
    return _expanded(task, prediction, steps, parts)


def _steps_here(task: Task, parts: PartTimes, side: SideBySide) -> tuple[list[PipelineStep], list[StepTime]]:
    """Return the step of each replica on this machine, and its time."""
    assert task.division is not None
    if task.division.kind == "neurons":
        spans = tuple(_lane(worker, float(busy), side.whole) for worker, busy in enumerate(side.busy))
        step = PipelineStep(side.whole, tuple(span for lane in spans for span in lane))
        return [step], [StepTime(mean=side.whole, between_steps=side.spread)]
    micro_batches = count_micro_batches(task)
    latency = LINKS["shared-memory"].latency  # the copies are part of what workers do
    steps = []
    for replica in range(task.replicas):
        busy = side.busy[replica * task.division.size :][: task.division.size]
        stages = [
            stage.scaled(float(seconds) / stage.busy(micro_batches))
            for stage, seconds in zip(parts.stages, busy, strict=True)
        ]
        steps.append(time_pipeline(task.parallel.schedule, stages, micro_batches, lambda _from, _to: latency))
    return steps, [StepTime(mean=step.seconds, between_steps=side.spread) for step in steps]


def _lane(worker: int, busy: float, whole: float) -> tuple[ClockSpan, ClockSpan]:
    wait = max(0.0, whole - busy)
    return ClockSpan(worker, "compute", 0.0, busy), ClockSpan(worker, "communicate", busy, wait)


def _steps_on_cluster(task: Task, parts: PartTimes, cluster: Cluster) -> tuple[list[PipelineStep], list[StepTime]]:
    """Return the step of each replica on a cluster, whose nodes may be slower than this machine, and its time."""
    assert task.division is not None
    size, cost = task.division.size, cluster.round_cost(task.workers)
    micro_batches = count_micro_batches(task)
    whole = sum(stage.busy(micro_batches) for stage in parts.stages)
    nodes = cluster.step_times(task.workers, StepTime(mean=whole))
    if task.division.kind == "neurons":
        seconds = max(node.mean for node in nodes)
        everybody = exact_round(size)
        talk = sum(
            float(np.max(cost(everybody, nbytes))) * (0.5 if kind == "gather" else 1.0)
            for kind, nbytes in parts.collectives
        )
        spans = [span for worker in range(size) for span in _lane(worker, seconds, seconds + talk)]
        return [PipelineStep(seconds + talk, tuple(spans))], [replace(nodes[0], mean=seconds + talk, fixed=0.0)]
    steps, step_times = [], []
    for first in range(0, task.workers, size):
        stages = [stage.scaled(node.mean / whole) for stage, node in zip(parts.stages, nodes[first:], strict=False)]

        def send(one: int, other: int, first: int = first) -> float:
            return cost.exchange(first + one, first + other, parts.nbytes[min(one, other)], 0)

        steps.append(time_pipeline(task.parallel.schedule, stages, micro_batches, send))
        step_times.append(replace(nodes[first], mean=steps[-1].seconds, fixed=0.0))
    return steps, step_times


def _expanded(
    task: Task, prediction: TimePrediction, steps: Sequence[PipelineStep], parts: PartTimes
) -> TimePrediction:
    """Turn a prediction for replicas into one for the workers that hold them."""
    assert task.division is not None
    size, count = task.division.size, task.steps_per_epoch * task.experiment.training.epochs
    times: dict[TimeKind, Floats] = {kind: np.repeat(seconds, size) for kind, seconds in prediction.times.items()}
    own: dict[TimeKind, Floats] = {"compute": np.zeros(task.workers), "communicate": np.zeros(task.workers)}
    for replica, step in enumerate(steps):
        for span in step.spans:
            if span.kind in own:
                own[span.kind][replica * size + span.worker] += count * span.seconds
    times["wait"] = times["wait"] + np.maximum(0.0, times["compute"] - own["compute"] - own["communicate"])
    times["compute"], times["communicate"] = own["compute"], times["communicate"] + own["communicate"]
    sent = np.repeat(prediction.bytes_per_worker, size)
    if task.division.kind == "neurons":
        sent = sent + count * sum(
            nbytes / size if kind == "gather" else 2 * nbytes * (size - 1) / size for kind, nbytes in parts.collectives
        )
    else:
        micro_batches = count_micro_batches(task)
        ahead, back = np.array([*parts.nbytes, 0]), np.array([0, *parts.nbytes])
        sent = sent + np.tile(count * micro_batches * (ahead + back), task.replicas)
    return replace(
        prediction,
        times=times,
        bytes_per_worker=sent,
        spans=tuple(_lanes(prediction, steps, size)),
        reasons=(*(prediction.reasons if task.replicas > 1 else ()), *_reasons(task, steps, parts)),
    )


def _lanes(prediction: TimePrediction, steps: Sequence[PipelineStep], size: int) -> list[ClockSpan]:
    """Return the operations of each worker in the first steps, one after another."""
    start = float(np.max(prediction.times["start"]))
    spans = [ClockSpan(worker, "start", 0.0, start) for worker in range(min(LANES, size * len(steps)))]
    length = max(step.seconds for step in steps)
    for turn in range(LANE_STEPS):
        for replica, step in enumerate(steps):
            at = start + turn * length
            spans += [
                span._replace(worker=replica * size + span.worker, start=at + span.start)
                for span in step.spans
                if replica * size + span.worker < LANES
            ]
    return spans


def _reasons(task: Task, steps: Sequence[PipelineStep], parts: PartTimes) -> list[str]:
    """Return sentences about where the time of a pipeline goes, and whether dividing the model pays off."""
    assert task.division is not None
    memory = "Dividing the model pays where a replica does not fit into the memory of a worker; "
    if task.division.kind == "neurons":
        whole, computed = (
            steps[0].seconds,
            sum(s.seconds for s in steps[0].spans if s.kind == "compute" and not s.worker),
        )
        return [
            f"{1 - computed / whole:.0%} of a step is communication: every layer waits for all workers. {memory}"
            "else divide the data."
        ]
    micro_batches = count_micro_batches(task)
    busy = [stage.busy(micro_batches) for stage in parts.stages]
    bubble = 1 - micro_batches / (micro_batches + len(busy) - 1)
    return [
        f"{len(busy)} stages with {micro_batches} micro-batches step {sum(busy) / steps[0].seconds:.2f}x as fast as "
        f"one worker that does all of it (balance of the stages {balance(busy):.0%}, bubble {bubble:.0%}). "
        f"{memory}else divide the data."
    ]
