"""A burst: the real process engine for a moment, and what its spans say about steps and rounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tenfold.cluster.hardware import Floats
from tenfold.data import Splits
from tenfold.engines.prepare import assign_cores
from tenfold.engines.processes import Processes
from tenfold.experiment import Experiment
from tenfold.machine import cores
from tenfold.mixing import Strategy
from tenfold.mixing.builders import make_strategy
from tenfold.runs import Event, Span, Stopwatch
from tenfold.workers.task import Task

SYNC_EVERY = 3
"""A round in every third step: one step with the round, one right after it, and one that it does not affect."""
MOST_STEPS = 150
"""Steps of a worker that are certainly recorded one by one (see `timekeeper.SINGLE_SPANS`)."""
WARMUP_STEPS, WARMUP_SHARE = 3, 4
"""First steps of a process, in which torch prepares its kernels: their number, or their part of a longer burst."""
EVALUATED = 128
"""Samples that each worker evaluates at the end."""
MOST_BYTES = 1 << 26
"""Bytes of training data made for a burst: more than the caches hold, but quick to make."""


@dataclass(frozen=True, kw_only=True)
class Burst:
    """What a few steps of the real engine took, in seconds."""

    steps: Floats
    """Data and compute of each step [steps, workers], without what rounds add to it."""
    warmup: float
    """Extra seconds that the first steps took."""
    round: float | None
    """One round, from the arrival of the last partner; with what it costs the steps before and after. None: no round"""
    delay: float | None = None
    """The mean of rounds until the last worker continues: much more on a busy machine, where a worker that waits is not
    always running when the others have arrived."""
    start: float
    evaluate: float
    """One evaluation."""
    evaluated: int = 0
    """The samples of an evaluation."""
    save: float
    """One checkpoint."""


def run(experiment: Experiment, splits: Splits, steps: int, checkpoints: Path | None = None) -> Burst:
    """Train for `steps` steps in worker processes, as any experiment is trained, and read the spans."""
    task = _task(experiment, splits, steps, checkpoints)
    events: list[Event] = []
    result = Processes().run(task, Stopwatch(), events.append).result
    spans = [event for event in events if isinstance(event, Span) and event.count == 1]
    found = read(spans, task.workers, make_strategy(task.experiment.division), result)
    return replace(found, evaluated=len(task.evaluation_part) if task.evaluation_part is not None else 0)


def read(spans: Sequence[Span], workers: int, strategy: Strategy, result: dict[str, Any]) -> Burst:
    """Put the workers' single spans together into steps and rounds."""
    by_worker = [_Steps([span for span in spans if span.worker == worker]) for worker in range(workers)]
    count = min(len(one.own) for one in by_worker)
    own, arrived, left = (
        np.column_stack([getattr(one, what)[:count] for one in by_worker]) for what in _Steps.__slots__
    )
    price = delay = None
    if not strategy.round(0, workers).is_idle:
        own, in_rounds = _without_rounds(own)
        rounds = slice(SYNC_EVERY - 1, None, SYNC_EVERY)
        price = in_rounds + _price(arrived[rounds], left[rounds], strategy)
        delay = in_rounds + _delay(arrived[rounds], left[rounds])
    begun = max(WARMUP_STEPS, len(own) // WARMUP_SHARE)
    warm = own[begun:]
    times = result["times"]
    return Burst(
        steps=warm,
        warmup=max(0.0, _slowest(own[:begun]) - _usual(warm, begun)),
        round=price,
        delay=delay,
        start=times["start"],
        evaluate=times["evaluate"] / (result["epochs"] + 1),
        save=times["save"] / result["epochs"],
    )


def _slowest(stretch: Floats) -> float:
    """Return the seconds of the slowest worker."""
    return float(stretch.sum(axis=0).max())


def _usual(warm: Floats, length: int) -> float:
    """Return what the slowest worker usually takes for this number of steps: some worker is always behind."""
    stretches = [warm[at : at + length] for at in range(0, max(1, len(warm) - length + 1), length)]
    return float(np.mean([_slowest(stretch) / len(stretch) for stretch in stretches])) * length


class _Steps:
    """One worker's steps: what each took, when it was done with its own work, and when with the round."""

    __slots__ = ("own", "arrived", "left")  # noqa: RUF023 - in this order they are unpacked

    def __init__(self, spans: Sequence[Span]) -> None:
        own, arrived, left = [], [], []
        data, begun = 0.0, False
        for span in spans:
            if span.kind == "data":
                data = span.seconds
            elif span.kind == "compute":
                own.append(data + span.seconds)
                arrived.append(span.at + span.seconds)
                left.append(span.at + span.seconds)
                begun = True
            elif begun and span.kind in ("wait", "communicate"):
                left[-1] += span.seconds
        self.own, self.arrived, self.left = np.array(own), np.array(arrived), np.array(left)


def _without_rounds(own: Floats) -> tuple[Floats, float]:
    """Separate from the steps what rounds add to them; return both.

    The step before a round includes its bookkeeping; the one after finds its weights in another core's cache.
    """
    place = np.arange(len(own)) % SYNC_EVERY
    usual, before, after = (own[WARMUP_STEPS:][place[WARMUP_STEPS:] == at] for at in (1, SYNC_EVERY - 1, 0))
    extra = [_beyond_chance(before, usual), _beyond_chance(after, usual)]
    without = own - np.select([place == SYNC_EVERY - 1, place == 0], extra, 0.0)[:, None]
    return np.maximum(without, own.min()), sum(extra)


def _beyond_chance(some: Floats, others: Floats) -> float:
    """Return by how much the median of some exceeds that of others, or 0 if chance alone could do so."""
    difference = float(np.median(some) - np.median(others))
    deviation = 1.48 * float(np.median(np.abs(others - np.median(others))))
    error = 1.25 * deviation * np.sqrt(1 / some.size + 1 / others.size)
    return difference if difference > 2 * error else 0.0


def _price(arrived: Floats, left: Floats, strategy: Strategy) -> float:
    """Return the median, over rounds, of the workers' mean time since the last of those they wait for arrived."""
    n, prices = arrived.shape[1], []
    for r, (came, went) in enumerate(zip(arrived, left, strict=True)):
        round_ = strategy.round(r, n)
        last = [came[[rank, *round_.partners(rank)]].max() for rank in range(n)]
        prices.append(np.mean(went - last))
    return float(np.median(prices[1:] or prices))


def _delay(arrived: Floats, left: Floats) -> float:
    """Return the mean, over rounds of all workers, of the time from the last arrival until the last one continues."""
    delays = left.max(axis=1) - arrived.max(axis=1)
    return float(np.mean(delays[1:] if len(delays) > 1 else delays))


def _task(experiment: Experiment, splits: Splits, steps: int, checkpoints: Path | None) -> Task:
    """Return a task of about this number of steps on some of the data, which only trains."""
    division, batch = experiment.division, experiment.training.samples_per_step
    steps = max(SYNC_EVERY, steps // SYNC_EVERY * SYNC_EVERY)
    sample = next(splits.train.batches([[0]]))[0]
    affordable = MOST_BYTES // max(1, getattr(sample, "nbytes", 1)) // (batch * division.workers)
    each = max(SYNC_EVERY, min(steps, affordable) // SYNC_EVERY * SYNC_EVERY)
    wanted = torch.arange(each * batch * division.workers) % len(splits.train)
    part = splits.validation or splits.test
    few = part.subset(torch.arange(min(len(part), EVALUATED * division.workers))) if part is not None else None
    some = replace(splits, train=splits.train.subset(wanted), validation=None, test=few)
    calm = experiment.replace(
        epochs=-(-steps // each),
        sync_every=SYNC_EVERY,
        evaluate_every=1,
        target=None,
        local_after=0,
        shards="iid",
        fractions=None,
        folds=None,
        patience=None,
        engine="processes",
        oversubscribe=True,
        lr=1e-6,
    )
    return Task(calm, some, *assign_cores(calm.machine, division.workers, cores.budget()), checkpoints)
