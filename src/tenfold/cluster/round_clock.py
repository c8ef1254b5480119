"""The clock of runs with rounds, max-plus recurrences over all workers, and code shared by both clocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tenfold.cluster.hardware import Floats, Hardware, RoundCost, StepTime
from tenfold.cluster.workload import Pace, Workload, divide_among_the_free
from tenfold.mixing import Round, Strategy
from tenfold.mixing.round import Integers

SINGLE_STEPS, LANES = 25, 64
"""Number of steps, and number of workers, that are recorded one by one."""

TimeKind = Literal["start", "compute", "wait", "communicate", "evaluate", "save"]


class ClockSpan(NamedTuple):
    """Work of `seconds` seconds, beginning `start` seconds into the run."""

    worker: int
    kind: TimeKind
    start: float
    seconds: float


@dataclass
class Timing:
    """The times of events in each repeat of a run."""

    seconds: Floats
    """For each repeat, the training time of the slowest worker, without startup, evaluation and saving."""
    total: Floats
    """For each repeat, when the run ended."""
    times: dict[TimeKind, Floats]
    """For each kind, each worker's seconds; the mean over the repeats."""
    marks: dict[int, Floats]
    """For the ends of epochs and the marked steps, the training time of each repeat so far."""
    spans: tuple[ClockSpan, ...] = ()
    """The first steps of the first repeat, one by one."""
    sent: Floats | None = None
    """The bytes sent by each worker, if they do not follow from the rounds."""


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
        """Record each worker's work from its start to its end, unless it took no time."""
        first, last = start[: self.limit].tolist(), end[: self.limit].tolist()
        self.spans += [
            ClockSpan(worker, kind, begin, stop - begin)
            for worker, (begin, stop) in enumerate(zip(first, last, strict=True))
            if stop > begin
        ]


def relative_step_times(workload: Workload, step_times: Iterable[StepTime]) -> Floats | None:
    """Return each step's seconds relative to one with a full batch, [steps of an epoch, workers]; None: all are full.

    A batch of k out of B samples takes (fixed + (mean - fixed) k/B) / mean; an empty batch takes no time.
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


FEW = 4
"""Up to this group size, comparing members pairwise is faster than sorting workers by groups."""
KEPT = 128
"""Maximum number of cached rounds of a pattern."""


@dataclass(frozen=True, eq=False)
class TimedRound:
    """One round: T_i <- max over the partners of i, then + cost. `now` is an array [repeats, workers]."""

    cost: float | Floats = 0.0
    everybody: bool = False
    """Whether all workers wait for the slowest."""
    partners: Integers | None = None
    """Rows of ranks: worker i waits for partners[0, i], partners[1, i], ..."""
    order: Integers | None = None
    """The workers sorted by group, for groups that begin at `starts` and have `sizes` members."""
    starts: Integers | None = None
    sizes: Integers | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no worker waits for another."""
        return not self.everybody and self.partners is None and self.order is None

    def wait(self, now: Floats) -> Floats:
        """Return when the round begins for each worker, given the times when they are ready."""
        if self.everybody:
            return np.broadcast_to(now.max(axis=1, keepdims=True), now.shape)
        if self.partners is not None:
            begin = now.copy()
            for partner in self.partners:
                np.maximum(begin, now.take(partner, axis=1), out=begin)
            return begin
        if self.order is not None and self.starts is not None and self.sizes is not None:
            latest = np.maximum.reduceat(now.take(self.order, axis=1), self.starts, axis=1)
            begin = np.empty_like(now)
            begin[:, self.order] = np.repeat(latest, self.sizes, axis=1)
            return begin
        return now


IDLE = TimedRound()


def timed_round(round_: Round, cost: float | Floats) -> TimedRound:
    """Convert a round that is not idle to the clock's form."""
    groups = round_.groups
    if groups is None:
        return TimedRound(cost, partners=_neighbors(round_.sources))
    if round_.is_exact:
        return TimedRound(cost, everybody=True)
    sizes = np.array([len(group) for group in groups])
    if sizes.max() <= FEW:
        return TimedRound(cost, partners=_neighbors(round_.sources))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return TimedRound(cost, order=_joined(groups), starts=starts, sizes=sizes)


def _joined(groups: tuple[tuple[int, ...], ...]) -> Integers:
    return np.fromiter((rank for group in groups for rank in group), dtype=np.int64)


def _neighbors(sources: tuple[tuple[int, ...], ...]) -> Integers:
    """Return the workers that each worker reads from or is read by, one per row, padded with the worker itself."""
    n = len(sources)
    reader = np.repeat(np.arange(n), [len(read) for read in sources])
    read = _joined(sources)
    pairs = np.unique(np.concatenate([reader * n + read, read * n + reader]))
    senders, other = np.divmod(pairs[pairs // n != pairs % n], n)
    place = np.arange(len(senders)) - np.searchsorted(senders, senders)
    partners = np.tile(np.arange(n), (place.max() + 1, 1))
    partners[place, senders] = other
    return partners


@runtime_checkable
class _Matching(Protocol):
    """A strategy that can return its pairs as an array, which is faster than as a round."""

    def matching(self, r: int, n: int, /) -> Integers: ...


class StrategyRounds:
    """The rounds of a strategy and their costs, converted to the clock's form once."""

    def __init__(self, strategy: Strategy, workers: int, messages: Sequence[int], cost: RoundCost) -> None:
        """`messages` are the bytes of the weights, and of other vectors averaged in all rounds except the final one."""
        self._strategy, self._n, self._messages, self._cost = strategy, workers, messages, cost
        self._period = strategy.period(workers)
        self._kept: dict[int, TimedRound] = {}
        is_uniform = getattr(cost, "is_uniform", False)
        self._matching = strategy if is_uniform and isinstance(strategy, _Matching) and workers > 2 else None
        self._pair_cost = 0.0 if self._matching is None else float(np.max(self._seconds(strategy.round(0, workers))))

    def __getitem__(self, r: int) -> TimedRound:
        if self._matching is not None:
            return self._matched(self._matching.matching(r, self._n))
        key = r if self._period is None else r % self._period
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            round_ = self._strategy.round(r, self._n)
            self._kept[key] = IDLE if round_.is_idle else timed_round(round_, self._seconds(round_))
        return self._kept[key]

    @property
    def final(self) -> TimedRound:
        """The round that gives all replicas their mean."""
        round_ = self._strategy.final(self._n)
        return IDLE if round_.is_idle else timed_round(round_, self._cost(round_, self._messages[0]))

    @property
    def always(self) -> TimedRound | None:
        """The only round of the strategy, if it has one that involves all workers at equal cost."""
        only = self[0] if self._period == 1 else None
        return only if only is not None and only.everybody and isinstance(only.cost, float) else None

    def _seconds(self, round_: Round) -> float | Floats:
        return sum(self._cost(round_, nbytes) for nbytes in self._messages)

    def _matched(self, pairs: Integers) -> TimedRound:
        partner = np.arange(self._n)
        partner[pairs] = pairs[:, ::-1]
        rests = self._n % 2 == 1
        cost = self._pair_cost * (partner != np.arange(self._n)) if rests else self._pair_cost
        return TimedRound(cost, partners=partner[None])


# The clock of synchronous runs: max-plus recurrences over arrays of all workers.
#
#     step    T_i <- T_i + Y_i
#     round   T_i <- max over the group (or the neighbors) of i, then + the cost of the round for i
#     epoch   T_i <- max over all, then + the mean of all, evaluation and saving
#     end     T_i <- T_i + the mean of all, unless the last step's round has made all replicas equal
#
# Times are arrays [repeats, workers]: several draws of the same run go through the recurrences together.

CHUNK = 1 << 18
"""Step times drawn at a time, few enough to stay in a core's cache."""


def run_round_clock(workload: Workload, hardware: Hardware, *, seed: int = 0, repeats: int = 1) -> Timing:
    return _RoundClock(workload, hardware, seed, repeats).run()


class _RoundClock:
    """The times of all workers during the steps and rounds of a run."""

    def __init__(self, workload: Workload, hardware: Hardware, seed: int, repeats: int) -> None:
        n = workload.workers
        self.workload, self.hardware, self.repeats = workload, hardware, repeats
        step_times = hardware.step_times(n)
        self.pace = Pace(step_times, repeats, np.random.default_rng(seed))
        self.relative_times = relative_step_times(workload, step_times)
        self.timed_rounds = StrategyRounds(workload.strategy, n, workload.round_messages, hardware.round_cost)
        self.final = self.timed_rounds.final
        self.now = np.full((repeats, n), hardware.start)
        self.not_training = np.full((repeats, n), hardware.start)
        """Time spent on anything other than training."""
        self.computed = np.zeros((repeats, n))
        self.communicated = np.zeros(n)
        self.rounds = 0
        self.marks: dict[int, Floats] = {}
        self.lanes = ClockLanes(n)
        self.lanes.add("start", np.zeros(n), self.now[0])

    def run(self) -> Timing:
        workload, hardware = self.workload, self.hardware
        chunk = max(1, CHUNK // (self.repeats * workload.workers))
        at = 1
        for end in workload.epoch_ends:
            while at <= end:
                # Steps that are recorded one by one get their own chunks; later steps can take a shortcut.
                last = min(at + chunk - 1, end, SINGLE_STEPS if at <= SINGLE_STEPS else end)
                self._steps(at, last)
                at = last + 1
            self._end_epoch(end)
        if not workload.ends_equal:
            self._finish()
        trained = self.now - self.not_training
        in_rounds = np.stack([self.communicated, np.full(workload.workers, hardware.overhead * self.rounds)])
        computing, communicating = np.array([hardware.round_shares, hardware.overhead_shares]).T
        computed = self.computed + computing @ in_rounds
        communicated = communicating @ in_rounds
        wait = trained - computed - communicated
        evaluated = self.not_training - hardware.start - hardware.save * workload.epochs
        mean: dict[TimeKind, Floats] = {
            "start": np.full(workload.workers, hardware.start),
            "compute": computed.mean(axis=0),
            "wait": np.maximum(wait.mean(axis=0), 0),
            "communicate": communicated,
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
        if workload.portions:
            drawn = divide_among_the_free(drawn, workload.portions)
        due = workload.is_due(first, last)
        marked = np.isin(steps, workload.marks) | (steps % workload.steps_per_epoch == 0)
        stops = np.flatnonzero(due | marked | (steps <= SINGLE_STEPS) | (steps == last))
        if len(stops) < len(steps):
            drawn = np.add.reduceat(drawn, np.concatenate([[0], stops[:-1] + 1]), axis=1)
        self.computed += drawn.sum(axis=1)
        if self.hardware.overhead:
            drawn = drawn + self.hardware.overhead * due[stops, None]
        only_rounds = due[stops].all() and first > SINGLE_STEPS
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
        if round_ is not None and not round_.is_idle:
            begin = round_.wait(ready)
            self.now = begin + round_.cost
            self.communicated += round_.cost
        if step <= SINGLE_STEPS:
            self.lanes.add("compute", before[0], ready[0])
            self.lanes.add("wait", ready[0], begin[0])
            self.lanes.add("communicate", begin[0], self.now[0])

    def _advance_together(
        self, round_: TimedRound, seconds: Floats, steps: NDArray[np.int64], marked: NDArray[np.bool_]
    ) -> None:
        """Advance by many steps that each end with a round of all workers, so the slowest sets the time."""
        latest = seconds.max(axis=2)
        latest[:, 0] = (self.now + seconds[:, 0]).max(axis=1)
        ends = np.cumsum(latest + round_.cost, axis=1)
        self.now = np.repeat(ends[:, -1:], self.workload.workers, axis=1)
        self.communicated += round_.cost * len(steps)
        self.rounds += len(steps)
        not_training = self.not_training.min(axis=1)
        for k in np.flatnonzero(marked).tolist():
            self.marks[int(steps[k])] = ends[:, k] - not_training

    def _finish(self) -> None:
        """Average all replicas into the trained model."""
        before, cost = self.now, float(np.max(self.final.cost))
        self.now = before + cost
        self.communicated = self.communicated + cost
        if self.workload.steps <= SINGLE_STEPS:
            self.lanes.add("communicate", before[0], self.now[0])

    def _end_epoch(self, step: int) -> None:
        hardware, ready = self.hardware, self.now
        cost = float(np.max(self.final.cost)) + hardware.evaluation
        evaluated = ready.max(axis=1, keepdims=True) + cost
        self.now = np.repeat(evaluated + hardware.save, self.workload.workers, axis=1)
        self.not_training = self.not_training + (self.now - ready)
        if step <= SINGLE_STEPS:
            saving = np.repeat(evaluated[0], self.workload.workers)
            self.lanes.add("evaluate", ready[0], saving)
            self.lanes.add("save", saving, self.now[0])
