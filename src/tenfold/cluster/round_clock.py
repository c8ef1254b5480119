"""The clock of synchronous runs: max-plus recurrences over arrays of all workers.

    step    T_i <- T_i + Y_i
    round   T_i <- max over the group (or the neighbours) of i, then + what the round costs i
            overlapped with the next step: the others' times are those of the step before
    epoch   T_i <- max over all, then + the mean of all, evaluation and saving
    end     T_i <- T_i + the mean of all, unless the last step's round has made all replicas equal

Times are arrays [repeats, workers]: several draws of the same run go through the recurrences together.
"""

import numpy as np
from numpy.typing import NDArray

from tenfold.cluster.clock_records import SINGLE_STEPS, ClockLanes, TimeKind, Timing, relative_step_times
from tenfold.cluster.hardware import Floats, Hardware
from tenfold.cluster.stragglers import Pace
from tenfold.cluster.timed_rounds import StrategyRounds, TimedRound
from tenfold.cluster.workload import Workload

CHUNK = 1 << 18
"""Step times drawn at a time, few enough to stay in a core's cache."""


def run_round_clock(workload: Workload, hardware: Hardware, *, seed: int = 0, repeats: int = 1) -> Timing:
    """Simulate the times of a synchronous workload."""
    return _RoundClock(workload, hardware, seed, repeats).run()


class _RoundClock:
    """The times of all workers, as one run goes through its steps and rounds."""

    def __init__(self, workload: Workload, hardware: Hardware, seed: int, repeats: int) -> None:
        n = workload.workers
        self.workload, self.hardware, self.repeats = workload, hardware, repeats
        step_times = hardware.step_times(n)
        self.pace = Pace(step_times, repeats, np.random.default_rng(seed))
        self.relative_times = relative_step_times(workload, step_times)
        self.timed_rounds = StrategyRounds(workload.strategy, n, workload.compressed_bytes, hardware.round_price)
        self.final = self.timed_rounds.final
        self.now = np.full((repeats, n), hardware.start)
        self.not_training = np.full((repeats, n), hardware.start)
        """Time spent on anything other than training."""
        self.computed = np.zeros((repeats, n))
        self.communicated = np.zeros(n)
        self.rounds = 0
        self.published: tuple[TimedRound, Floats] | None = None
        """The overlapped round that has begun, and when each worker has published its weights for it."""
        self.marks: dict[int, Floats] = {}
        self.lanes = ClockLanes(n)
        self.lanes.add("start", np.zeros(n), self.now[0])

    def run(self) -> Timing:
        workload, hardware = self.workload, self.hardware
        chunk = max(1, CHUNK // (self.repeats * workload.workers))
        at = 1
        for end in workload.epoch_ends:
            while at <= end:
                # Single steps are recorded in chunks of their own; later ones can take a shortcut.
                last = min(at + chunk - 1, end, SINGLE_STEPS if at <= SINGLE_STEPS else end)
                self._steps(at, last)
                at = last + 1
            self._end_epoch(end)
        if not workload.ends_equal:
            self._finish()
        trained = self.now - self.not_training
        wait = trained - self.computed - self.communicated
        evaluated = self.not_training - hardware.start - hardware.save * workload.epochs
        mean: dict[TimeKind, Floats] = {
            "start": np.full(workload.workers, hardware.start),
            "compute": self.computed.mean(axis=0),
            "wait": np.maximum(wait.mean(axis=0), 0),
            "communicate": self.communicated,
            "evaluate": np.maximum(evaluated.mean(axis=0), 0),
            "save": np.full(workload.workers, hardware.save * workload.epochs),
        }
        return Timing(
            seconds=trained.max(axis=1),
            total=self.now.max(axis=1),
            times=mean,
            marks=self.marks,
            spans=tuple(self.lanes.spans),
        )

    def _steps(self, first: int, last: int) -> None:
        """Advance by the steps first..last of one epoch."""
        workload = self.workload
        steps = np.arange(first, last + 1)
        drawn = self.pace.draw(len(steps))
        if self.relative_times is not None:
            drawn = drawn * self.relative_times[(first - 1) % workload.steps_per_epoch :][: len(steps)]
        due = workload.is_due(first, last)
        marked = np.isin(steps, workload.marks) | (steps % workload.steps_per_epoch == 0)
        round_ends = workload.is_due(first - 1, last - 1) if workload.overlap else due
        stops = np.flatnonzero(due | round_ends | marked | (steps <= SINGLE_STEPS) | (steps == last))
        if len(stops) < len(steps):
            drawn = np.add.reduceat(drawn, np.concatenate([[0], stops[:-1] + 1]), axis=1)
        if self.hardware.overhead:
            drawn = drawn + self.hardware.overhead * due[stops, None]
        self.computed += drawn.sum(axis=1)
        only_rounds = due[stops].all() and first > SINGLE_STEPS and not workload.overlap
        always = self.timed_rounds.always if only_rounds else None
        if always is not None:
            self._advance_together(always, drawn, steps[stops], marked[stops])
        else:
            for k, (stop, step) in enumerate(zip(stops.tolist(), steps[stops].tolist(), strict=True)):
                self._step(step, drawn[:, k], bool(due[stop]))
                if marked[stop]:
                    self.marks[step] = (self.now - self.not_training).max(axis=1)

    def _step(self, step: int, seconds: Floats, is_due: bool) -> None:
        before = self.now
        ready = before + seconds
        self.now = ready
        round_ = self.timed_rounds[self.rounds] if is_due else None
        self.rounds += is_due
        begin = ready
        if self.workload.overlap:
            begin = self._overlapped(ready, round_)
        elif round_ is not None and not round_.is_idle:
            begin = round_.wait(ready)
            self.now = begin + round_.price
            self.communicated += round_.price
        if step <= SINGLE_STEPS:
            self.lanes.add("compute", before[0], ready[0])
            self.lanes.add("wait", ready[0], begin[0])
            self.lanes.add("communicate", begin[0], self.now[0])

    def _overlapped(self, ready: Floats, round_: TimedRound | None) -> Floats:
        """End the round that began one step before, begin the next one, and return when each was done waiting."""
        begin = ready
        if self.published is not None:
            before, times = self.published
            begin = np.maximum(ready, before.wait(times))
            self.now = begin + before.price
            self.communicated += before.price
        self.published = (round_, self.now) if round_ is not None and not round_.is_idle else None
        return begin

    def _advance_together(
        self, round_: TimedRound, seconds: Floats, steps: NDArray[np.int64], marked: NDArray[np.bool_]
    ) -> None:
        """Advance by many steps that each end with a round of all workers: the slowest sets the time of all."""
        latest = seconds.max(axis=2)
        latest[:, 0] = (self.now + seconds[:, 0]).max(axis=1)
        ends = np.cumsum(latest + round_.price, axis=1)
        self.now = np.repeat(ends[:, -1:], self.workload.workers, axis=1)
        self.communicated += round_.price * len(steps)
        self.rounds += len(steps)
        not_training = self.not_training.min(axis=1)
        for k in np.flatnonzero(marked).tolist():
            self.marks[int(steps[k])] = ends[:, k] - not_training

    def _finish(self) -> None:
        """Take the mean of all replicas, which is the trained model."""
        before, price = self.now, float(np.max(self.final.price))
        self.now = before + price
        self.communicated = self.communicated + price
        if self.workload.steps <= SINGLE_STEPS:
            self.lanes.add("communicate", before[0], self.now[0])

    def _end_epoch(self, step: int) -> None:
        """Wait for all workers, average, evaluate and save."""
        hardware, ready = self.hardware, self.now
        price = float(np.max(self.final.price)) + hardware.evaluation
        evaluated = ready.max(axis=1, keepdims=True) + price
        self.now = np.repeat(evaluated + hardware.save, self.workload.workers, axis=1)
        self.not_training = self.not_training + (self.now - ready)
        if step <= SINGLE_STEPS:
            saving = np.repeat(evaluated[0], self.workload.workers)
            self.lanes.add("evaluate", ready[0], saving)
            self.lanes.add("save", saving, self.now[0])
