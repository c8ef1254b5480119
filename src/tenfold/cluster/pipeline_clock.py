"""The clock of pipelines: when each stage works on each micro-batch of a step, and when it waits.

A stage begins an operation when it has done the one before, and what it needs has arrived from its neighbor: the
activations of the stage before it, or the gradient of the stage after it. Messages of a link follow one another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tenfold.cluster.round_clock import ClockSpan
from tenfold.mixing.round import Round, Schedule, operations


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
        """Return the seconds of work in a step."""
        return micro_batches * (self.forward + self.backward) + self.update

    def scaled(self, factor: float) -> "StageTime":
        """Return the times of a stage that is slower by a factor."""
        return StageTime(factor * self.forward, factor * self.backward, factor * self.update)


@dataclass(frozen=True)
class PipelineStep:
    """One step of a pipeline."""

    seconds: float
    """Until the last stage has updated its weights."""
    spans: tuple[ClockSpan, ...]
    """What each stage does, by its number, from the start of the step on."""


def time_pipeline(
    schedule: Schedule, stages: Sequence[StageTime], micro_batches: int, send: Callable[[int, int], float]
) -> PipelineStep:
    """Return the times of one step; `send` are the seconds of a message from one stage to another."""
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
    """Return a round of replicas that `size` workers each hold together: each part averages with the same of others."""
    sources = tuple(tuple(other * size + part for other in read) for read in round_.sources for part in range(size))
    return Round(sources, round_.collective)
