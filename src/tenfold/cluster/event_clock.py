"""The clocks of training without rounds: asynchronous strategies, and the stages of a pipeline.

Asynchronous workers step at their own pace, and exchange with the center or a partner as their strategy defines. A
partner or the center serves one request at a time, in the order of arrival. At the end of an epoch all wait for the
slowest worker. The clock is a heap of events, keyed by (time, sequence number).
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

import numpy as np

from tenfold.cluster.hardware import ExchangeCost, Floats, Hardware, RoundCost
from tenfold.cluster.round_clock import (
    SINGLE_STEPS,
    ClockLanes,
    ClockSpan,
    StrategyRounds,
    TimeKind,
    Timing,
    relative_step_times,
)
from tenfold.cluster.workload import Pace, Workload
from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.round import CENTER, Exchange, Round, Schedule, group_round, operations


class ClockEvent(NamedTuple):
    """An event at a moment of the virtual clock."""

    time: float
    worker: int
    step: int
    """The worker's own step, counted from 1 over the run."""
    what: Literal["step", "exchange"]
    """The kind of event: the end of a step, or the start of the following exchange with `other`."""
    other: int = CENTER


def clock_events(workload: Workload, hardware: Hardware, *, seed: int = 0) -> Iterator[ClockEvent]:
    """Yield all steps and exchanges of a run in chronological order; deterministic for a given seed."""
    clock = _EventClock(workload, hardware, seed, every_step=True)
    for _ in range(workload.epochs):
        yield from clock.epoch()
        clock.end_epoch()


def run_event_clock(workload: Workload, hardware: Hardware, *, seed: int = 0, repeats: int = 1) -> Timing:
    seeds = np.random.SeedSequence(seed).generate_state(repeats).tolist() if repeats > 1 else [seed]
    runs = [_EventClock(workload, hardware, seed).run() for seed in seeds]
    return Timing(
        seconds=np.concatenate([run.seconds for run in runs]),
        total=np.concatenate([run.total for run in runs]),
        times={kind: np.mean([run.times[kind] for run in runs], axis=0) for kind in runs[0].times},
        marks={step: np.concatenate([run.marks[step] for run in runs]) for step in runs[0].marks},
        spans=runs[0].spans,
        sent=np.mean([run.sent for run in runs if run.sent is not None], axis=0),
    )


def cost_as_rounds(cost: RoundCost, workers: int) -> ExchangeCost:
    """Count an exchange as a round in which two workers take their mean; the center counts as another worker."""
    n = max(2, workers)
    costs_of: dict[tuple[int, int, int], float] = {}

    def exchange(worker: int, other: int, there: int, back: int) -> float:
        partner = other if other != CENTER else (worker + 1) % n
        key = worker, partner, max(there, back)
        if key not in costs_of:
            others = ((rank,) for rank in range(n) if rank not in (worker, partner))
            costs_of[key] = float(np.max(cost(group_round(((worker, partner), *others)), key[2])))
        return costs_of[key]

    return exchange


class _EventClock:
    """The clocks of all workers during a simulated run."""

    def __init__(self, workload: Workload, hardware: Hardware, seed: int, *, every_step: bool = False) -> None:
        if not isinstance(workload.strategy, AsynchronousStrategy):
            raise TypeError(f"{workload.strategy.name} has rounds; use run_round_clock")
        self.strategy = workload.strategy
        n, step_times = workload.workers, hardware.step_times(workload.workers)
        self.workload, self.hardware, self.every_step = workload, hardware, every_step
        self.cost = hardware.exchange_cost or cost_as_rounds(hardware.round_cost, n)
        self.pace = Pace(step_times, 1, np.random.default_rng(seed))
        self.relative_times = relative_step_times(workload, step_times)
        self.final = StrategyRounds(workload.strategy, n, [workload.compressed_bytes], hardware.round_cost).final
        self.done = 0
        self.now = np.full(n, hardware.start)
        self.not_training = np.full(n, hardware.start)
        self.computed, self.waited, self.communicated, self.sent = (np.zeros(n) for _ in range(4))
        self.marks: dict[int, Floats] = {}
        self.lanes = ClockLanes(n)
        self.lanes.add("start", np.zeros(n), self.now)

    def run(self) -> Timing:
        workload, hardware = self.workload, self.hardware
        for _ in range(workload.epochs):
            for _ in self.epoch():
                pass
            self.end_epoch()
        last = float(np.max(self.final.cost))  # the final average, which gives the trained model
        self.now += last
        self.communicated += last
        saved = hardware.save * workload.epochs
        times: dict[TimeKind, Floats] = {
            "start": np.full(workload.workers, hardware.start),
            "compute": self.computed,
            "wait": self.waited,
            "communicate": self.communicated,
            "evaluate": np.maximum(self.not_training - hardware.start - saved, 0),
            "save": np.full(workload.workers, saved),
        }
        trained = (self.now - self.not_training).max(keepdims=True)
        return Timing(trained, self.now.max(keepdims=True), times, self.marks, tuple(self.lanes.spans), self.sent)

    def epoch(self) -> Iterator[ClockEvent]:
        """Simulate one epoch, until all workers have finished their last step."""
        workload = self.workload
        drawn = self.pace.draw(workload.steps_per_epoch)[0]
        seconds = drawn if self.relative_times is None else drawn * self.relative_times
        self.computed += seconds.sum(axis=0)
        marked = {step for step in workload.marks if self.done < step <= self.done + workload.steps_per_epoch}
        reached: dict[int, list[float]] = {step: [] for step in marked}
        free = [0.0] * (workload.workers + 1)  # the last is the center
        numbers = count()
        heap: list[tuple[float, int, int, int, int | None]] = []

        def walk(worker: int, at: float, step: int) -> None:
            """Advance a worker until an exchange is due, a step is to be reported, or the epoch ends."""
            while step < workload.steps_per_epoch:
                began, at = at, at + seconds.item(step, worker)
                step += 1
                if self.done + step <= SINGLE_STEPS and worker < self.lanes.limit:
                    self.lanes.spans.append(ClockSpan(worker, "compute", began, at - began))
                if self.done + step in marked:
                    reached[self.done + step].append(at - float(self.not_training[worker]))
                if self.every_step or self._exchange(worker, step) is not None:
                    heapq.heappush(heap, (at, next(numbers), worker, step, None))
                    return
            self.now[worker] = at

        for worker, at in enumerate(self.now.tolist()):
            walk(worker, at, 0)
        while heap:
            at, _, worker, step, other = heapq.heappop(heap)
            if other is not None:
                yield ClockEvent(at, worker, self.done + step, "exchange", other)
                continue
            if self.every_step:
                yield ClockEvent(at, worker, self.done + step, "step")
            exchange = self._exchange(worker, step)
            if exchange is None:
                walk(worker, at, step)
                continue
            begin, end = self._serve(exchange, worker, step, at, free)
            if self.every_step:
                heapq.heappush(heap, (begin, next(numbers), worker, step, exchange.partner))
            walk(worker, end, step)
        self.done += workload.steps_per_epoch
        self.marks |= {step: np.array([max(times)]) for step, times in sorted(reached.items())}
        self.marks[self.done] = (self.now - self.not_training).max(keepdims=True)

    def _exchange(self, worker: int, step: int) -> Exchange | None:
        return self.strategy.exchange(worker, self.done + step, self.workload.workers)

    def _serve(self, exchange: Exchange, worker: int, step: int, at: float, free: list[float]) -> tuple[float, float]:
        """Return the start and end of an exchange, which begins once both sides are free, and record its time."""
        nbytes, other = self.workload.compressed_bytes, exchange.partner
        sent, received = exchange.sends * nbytes, exchange.receives * nbytes
        begin = max(at, free[worker], free[other])
        end = begin + self.cost(worker, other, sent, received)
        # S servers have a part of the center each: together they are free for the next worker after 1/S of the time.
        free[other] = begin + (end - begin) / (self.strategy.center_parts if other == CENTER else 1)
        free[worker] = end
        self.waited[worker] += begin - at
        self.communicated[worker] += end - begin
        self.sent[worker] += sent + received
        if self.done + step <= SINGLE_STEPS and worker < self.lanes.limit:
            spans = (ClockSpan(worker, "wait", at, begin - at), ClockSpan(worker, "communicate", begin, end - begin))
            self.lanes.spans += [span for span in spans if span.seconds > 0]
        return begin, end

    def end_epoch(self) -> None:
        """Wait for all workers, average, evaluate and save."""
        cost = float(np.max(self.final.cost)) + self.hardware.evaluation + self.hardware.save
        latest = float(self.now.max()) + cost
        self.not_training += latest - self.now
        self.now[:] = latest


@dataclass(frozen=True)
class StageTime:
    """Seconds of one stage."""

    forward: float
    """One micro-batch."""
    backward: float
    """One micro-batch."""
    update: float = 0.0
    """The optimizer's step."""

    def busy(self, micro_batches: int) -> float:
        return micro_batches * (self.forward + self.backward) + self.update

    def scaled(self, factor: float) -> "StageTime":
        return StageTime(factor * self.forward, factor * self.backward, factor * self.update)


@dataclass(frozen=True)
class PipelineStep:
    """One step of a pipeline."""

    seconds: float
    """Seconds until the last stage has updated its weights."""
    spans: tuple[ClockSpan, ...]
    """The operations of each stage, by stage number, relative to the start of the step."""


def time_pipeline(
    schedule: Schedule, stages: Sequence[StageTime], micro_batches: int, send: Callable[[int, int], float]
) -> PipelineStep:
    """Return the times of one step; `send` is the time in seconds of a message between two stages.

    A stage begins an operation when it has finished the previous one and received its inputs from its neighbor: the
    activations of the stage before it, or the gradient of the stage after it. A link sends one message at a time.
    """
    count = len(stages)
    left = [list(operations(schedule, stage, count, micro_batches)) for stage in range(count)]
    now, link_free = [0.0] * count, dict.fromkeys([(a, a + d) for a in range(count) for d in (1, -1)], 0.0)
    arrived: dict[tuple[str, int, int], float] = {}
    spans: list[ClockSpan] = []
    while any(left):
        for stage in range(count):
            while left[stage]:
                kind, number = left[stage][0]
                from_start = (kind == "forward" and stage == 0) or (kind == "backward" and stage == count - 1)
                ready = 0.0 if from_start else arrived.get((kind, stage, number))
                if ready is None:
                    break
                left[stage].pop(0)
                begin = max(now[stage], ready)
                if begin > now[stage]:
                    spans.append(ClockSpan(stage, "wait", now[stage], begin - now[stage]))
                seconds = stages[stage].forward if kind == "forward" else stages[stage].backward
                spans.append(ClockSpan(stage, "compute", begin, seconds))
                now[stage] = begin + seconds
                neighbor = stage + (1 if kind == "forward" else -1)
                if 0 <= neighbor < count:
                    link = stage, neighbor
                    link_free[link] = max(link_free[link], now[stage]) + send(*link)
                    arrived[kind, neighbor, number] = link_free[link]
    for stage, times in enumerate(stages):
        if times.update:
            spans.append(ClockSpan(stage, "compute", now[stage], times.update))
            now[stage] += times.update
    return PipelineStep(max(now), tuple(spans))


def round_of_parts(round_: Round, size: int) -> Round:
    """Return a round for replicas divided among `size` workers each; each part is averaged across the replicas."""
    sources = tuple(tuple(other * size + part for other in read) for read in round_.sources for part in range(size))
    return Round(sources, round_.collective)
