"""Pipelines: in which order each stage of a divided network works on the micro-batches of a step.

A schedule is data, as a round is: the stages carry it out on real tensors, and the clock computes its bubble from it.

- GPipe (Huang et al., 2019, arXiv 1811.06965): all micro-batches forward, then all backward.
- 1F1B (Narayanan et al., 2019, arXiv 1806.03377, in its synchronous form): a stage that is k stages before the last
  begins with k forwards, and then alternates; it keeps the activations of at most k + 1 micro-batches.

Both go through the micro-batches in the same order, forward and backward, so gradients add up in the same order as in
one process with `accumulate`. Both have the same bubble: with p equal stages and m micro-batches a stage works in m of
m + p - 1 turns.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

Schedule = Literal["gpipe", "1f1b"]


class Operation(NamedTuple):
    """A pass of one micro-batch through a stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def operations(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> tuple[Operation, ...]:
    """Return what a stage does in one step, in order."""
    ahead = micro_batches if schedule == "gpipe" else min(stages - stage - 1, micro_batches)
    order = [Operation("forward", number) for number in range(ahead)]
    for number in range(micro_batches):
        if ahead + number < micro_batches:
            order.append(Operation("forward", ahead + number))
        order.append(Operation("backward", number))
    return tuple(order)


def balance(seconds: Sequence[float]) -> float:
    """Return the mean over the stages, divided by the slowest: 1 where all take the same time."""
    return sum(seconds) / len(seconds) / max(seconds)


def bound(seconds: Sequence[float], micro_batches: int) -> float:
    """Return the largest speedup over one process: p x balance x m / (m + p - 1), for the seconds of p stages."""
    stages = len(seconds)
    return stages * balance(seconds) * micro_batches / (micro_batches + stages - 1)
