"""What both clocks share: the times that they return, the first steps one by one, and steps with smaller batches."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from tenfold.cluster.hardware import Floats, StepTime
from tenfold.cluster.workload import Workload

SINGLE_STEPS, LANES = 25, 64
"""How many steps, of how many workers, are recorded one by one."""

TimeKind = Literal["start", "compute", "wait", "communicate", "evaluate", "save"]


class ClockSpan(NamedTuple):
    """What a worker spends `seconds` on, beginning `start` seconds into the run."""

    worker: int
    kind: TimeKind
    start: float
    seconds: float


@dataclass
class Timing:
    """When things happened in each repeat of a run."""

    seconds: Floats
    """For each repeat, the training time of the slowest worker: without start, evaluation and saving."""
    total: Floats
    """For each repeat, when the run ended."""
    times: dict[TimeKind, Floats]
    """For each kind, each worker's seconds; the mean over the repeats."""
    marks: dict[int, Floats]
    """For the ends of epochs and the marked steps, each repeat's training time until then."""
    spans: tuple[ClockSpan, ...] = ()
    """The first steps of the first repeat, one by one."""
    sent: Floats | None = None
    """Each worker's bytes, where they do not follow from the rounds."""


@dataclass
class ClockLanes:
    """Records the first steps one by one."""

    workers: int
    spans: list[ClockSpan] = field(default_factory=list)

    @property
    def limit(self) -> int:
        """Only workers below this rank are recorded."""
        return min(self.workers, LANES)

    def add(self, kind: TimeKind, start: Floats, end: Floats) -> None:
        """Record what each worker did from its start to its end, if that took any time."""
        first, last = start[: self.limit].tolist(), end[: self.limit].tolist()
        self.spans += [
            ClockSpan(worker, kind, begin, stop - begin)
            for worker, (begin, stop) in enumerate(zip(first, last, strict=True))
            if stop > begin
        ]


def relative_step_times(workload: Workload, step_times: Iterable[StepTime]) -> Floats | None:
    """Return each step's seconds relative to one with a full batch, [steps of an epoch, workers]; None: all are full.

    A batch of k out of B samples takes (fixed + (mean - fixed) k/B) / mean; none takes no time.
    """
    if workload.batch_sizes is None:
        return None
    sizes = np.asarray(workload.batch_sizes, dtype=np.float64)
    full = sizes.max()
    if full == 0 or (sizes == full).all():
        return None
    fixed = np.array([step_time.fixed / step_time.mean for step_time in step_times])
    relative: Floats = np.where(sizes > 0, fixed + (1 - fixed) * sizes / full, 0.0)
    return relative
