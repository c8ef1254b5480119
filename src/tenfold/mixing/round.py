"""Who averages with whom, as a value: `Round`, and `Exchange` without rounds; and the order of a pipeline's passes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import ExperimentError
from tenfold.mixing.collectives import Collective, Group, Server, Wave, Waves, ring, swap

if TYPE_CHECKING:
    from torch import Tensor


CENTER = -1
"""Stands for the common copy of the weights where a rank stands for a worker."""


@dataclass(frozen=True)
class Exchange:
    """The actions of a worker after one of its steps."""

    partner: int = CENTER
    """The rank of the other worker, or CENTER."""
    sends: bool = True
    """Weights or gradients go to the partner."""
    receives: bool = True
    """Weights come back."""


@dataclass(frozen=True)
class ExchangeVectors:
    """The vectors that an exchange reads and changes in place, all of the size of the parameters."""

    mine: "Tensor"
    """The parameters of the worker that exchanges."""
    theirs: "Tensor"
    """The parameters of its partner, or of the center."""
    gradients: "Tensor"
    """The sum of the worker's gradients since it last sent; empty unless the strategy sends gradients."""
    center_state: "Tensor"
    """The center's state in addition to its parameters, at first 0; empty without a center."""


@dataclass(frozen=True)
class Round:
    """Replica i becomes a convex combination of the replicas in `sources[i]`, all at the same moment.

    Each tuple is sorted and holds its own rank; `(i,)` means that replica i rests. Either the sources divide the
    replicas into groups that average exactly, or everyone reads, and is read by, equally many: both keep the mean.
    """

    sources: tuple[tuple[int, ...], ...]
    collective: Collective = ring
    """How groups of more than two take their mean over links; it changes the cost, never the result."""

    def __post_init__(self) -> None:
        ranks = range(self.n)
        if not self.n:
            raise ExperimentError("a round needs at least 1 replica, got none")
        distinct = {id(read): read for read in self.sources}  # a group's members share one tuple, which is checked once
        members = {key: set(read) for key, read in distinct.items()}
        tidy = {key: list(read) == sorted(members[key]) for key, read in distinct.items()}
        for rank, read in enumerate(self.sources):
            if rank not in members[id(read)] or not tidy[id(read)] or read[0] not in ranks or read[-1] not in ranks:
                raise ExperimentError(
                    f"a round lets replica {rank} read {read}; expected its own rank and others of 0 to {self.n - 1}, "
                    "sorted, each once"
                )
        if self.groups is None:
            fan = len(self.sources[0])
            read_by = np.bincount([source for read in self.sources for source in read], minlength=self.n)
            if any(len(read) != fan for read in self.sources) or (read_by != fan).any():
                raise ExperimentError(
                    f"a round with the sources {self.sources} changes the mean; replicas either form groups, or each "
                    "reads and is read by equally many"
                )

    @property
    def n(self) -> int:
        return len(self.sources)

    @cached_property
    def groups(self) -> tuple[Group, ...] | None:
        """The groups that average exactly, singles included, if the round is made of such; else None."""
        firsts = [read for rank, read in enumerate(self.sources) if read[:1] == (rank,)]
        if sum(map(len, firsts)) != self.n:
            return None
        reads = self.sources  # where members share one tuple, `is` spares comparing it with itself
        apart = all(reads[member] is group or reads[member] == group for group in firsts for member in group)
        return tuple(firsts) if apart else None

    @cached_property
    def is_exact(self) -> bool:
        """Whether all replicas have the mean of all afterwards."""
        return self.groups is not None and len(self.groups) == 1

    @cached_property
    def is_idle(self) -> bool:
        """Whether no replica reads from another."""
        return all(len(read) == 1 for read in self.sources)

    def partners(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that `rank` must wait for: those it reads and those that read it."""
        return self._partners[rank]

    @cached_property
    def _partners(self) -> tuple[tuple[int, ...], ...]:
        met: list[set[int]] = [set(read) for read in self.sources]
        for rank, read in enumerate(self.sources):
            for source in read:
                met[source].add(rank)
        return tuple(tuple(sorted(others - {rank})) for rank, others in enumerate(met))

    def matrix(self, weights: Sequence[float] | NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return M, so that x <- M x is the round; its rows sum to 1 and w^T M = w^T for the weights w (samples seen).

        Groups: M_ij = w_j / sum of the group's w. Others, with m sources each and the flow f = min(w) / m:
        M_ij = f / w_i for j != i, M_ii = 1 - (m-1) f / w_i. Without weights (or with equal ones) that is the plain mean
        and M is doubly stochastic. Replicas that saw nothing take the plain mean of their sources.
        """
        w = self._checked(weights)
        mix = np.zeros((self.n, self.n))
        if self.groups is not None:
            for group in self.groups:
                share = w[list(group)]
                mix[np.ix_(group, group)] = share / share.sum() if share.any() else 1 / len(group)
            return mix
        fan, lightest = len(self.sources[0]), w.min()
        for rank, read in enumerate(self.sources):
            even = w[rank] == lightest
            flow = 1 / fan if even else lightest / fan / w[rank]
            mix[rank, list(read)] = flow
            mix[rank, rank] = flow if even else 1 - (fan - 1) * flow
        return mix

    def waves(self, nbytes: int) -> tuple[Waves, ...]:
        """Return the messages when each replica has `nbytes`.

        Pairs swap and rings read from their neighbors in one phase. Groups go through their phases side by side: those
        of one size in the same waves, those of other sizes in others.
        """
        if self.is_idle:
            return ()
        if self.groups is None:
            return ((self._reads(nbytes),),)
        swaps = not isinstance(self.collective, Server)
        sizes = sorted({len(group) for group in self.groups} - {1}, reverse=True)
        alike = {size: np.array([group for group in self.groups if len(group) == size]) for size in sizes}
        return tuple(
            swap(groups, nbytes) if swaps and size == 2 else self.collective.waves(groups, nbytes)
            for size, groups in alike.items()
        )

    def bytes_per_worker(self, nbytes: int) -> tuple[int, ...]:
        """Return the bytes that each worker sends, without those that servers send."""
        if nbytes not in self._sent:  # training asks after every round
            sent = np.zeros(self.n, dtype=np.int64)
            for wave in (wave for waves in self.waves(nbytes) for wave in waves):
                by_workers = wave.src >= 0
                np.add.at(sent, wave.src[by_workers], wave.sent()[by_workers])
            self._sent[nbytes] = tuple(sent.tolist())
        return self._sent[nbytes]

    @cached_property
    def _sent(self) -> dict[int, tuple[int, ...]]:
        return {}

    def _reads(self, nbytes: int) -> Wave:
        ranks = np.arange(self.n)[:, None]
        sources = np.array(self.sources)
        others = sources != ranks
        src, dst = sources[others][None], np.broadcast_to(ranks, sources.shape)[others][None]
        return Wave(src, dst, np.full(src.shape, nbytes), adds=True)

    def _checked(self, weights: Sequence[float] | NDArray[np.float64] | None) -> NDArray[np.float64]:
        w = np.ones(self.n) if weights is None else np.asarray(weights, dtype=np.float64)
        if w.shape != (self.n,) or not np.isfinite(w).all() or (w < 0).any():
            raise ExperimentError(
                f"a round of {self.n} replicas got the weights {weights}; expected {self.n} weights, none below 0"
            )
        return w if w.any() else np.ones(self.n)


@lru_cache(maxsize=256)
def idle_round(n: int) -> Round:
    return Round(tuple((rank,) for rank in range(n)))


@lru_cache(maxsize=256)
def exact_round(n: int, collective: Collective = ring) -> Round:
    """Return the round after which all `n` replicas have their mean."""
    return Round((tuple(range(n)),) * n, collective)


@lru_cache(maxsize=256)
def group_round(groups: tuple[Group, ...], collective: Collective = ring) -> Round:
    """Return the round in which each group takes its mean; the groups together hold every rank once."""
    membership = {rank: tuple(sorted(group)) for group in groups for rank in group}
    return Round(tuple(membership[rank] for rank in sorted(membership)), collective)


@lru_cache(maxsize=256)
def shifted_round(n: int, shifts: tuple[int, ...]) -> Round:
    """Return the round on a circle of `n` in which replica i reads itself and i + s for each shift s."""
    return Round(tuple(tuple(sorted({(rank + shift) % n for shift in (0, *shifts)})) for rank in range(n)))


@overload
def is_round_due(step: int, sync_every: int, local_after: int = 0) -> bool: ...
@overload
def is_round_due(step: NDArray[np.int64], sync_every: int, local_after: int = 0) -> NDArray[np.bool_]: ...
def is_round_due(step: int | NDArray[np.int64], sync_every: int, local_after: int = 0) -> bool | NDArray[np.bool_]:
    """Return whether a round follows a step, counted from 1; for an array of steps, an array.

    Every step up to `local_after`, every `sync_every` steps from there on (post-local SGD, Lin et al. 2020).
    """
    if sync_every < 1:
        raise ExperimentError(f"sync_every is {sync_every}; it must be at least 1 step")
    return (step <= local_after) | ((step - local_after) % sync_every == 0)


# Pipelines: in which order each stage of a divided network works on the micro-batches of a step.
#
# A schedule is data, as a round is: the stages carry it out on real tensors, and the clock computes its bubble from it.
#
# - GPipe (Huang et al., 2019, arXiv 1811.06965): all micro-batches forward, then all backward.
# - 1F1B (Narayanan et al., 2019, arXiv 1806.03377, in its synchronous form): a stage that is k stages before the last
#   begins with k forwards, and then alternates; it keeps the activations of at most k + 1 micro-batches.
#
# Both go through the micro-batches in the same order, forward and backward, so gradients add up in the same order as
# in one process with `accumulate`. Both have the same bubble: with p equal stages and m micro-batches a stage works in
# m of m + p - 1 turns.

Schedule = Literal["gpipe", "1f1b"]


class Operation(NamedTuple):
    """A pass of one micro-batch through a stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int


def operations(schedule: Schedule, stage: int, stages: int, micro_batches: int) -> tuple[Operation, ...]:
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
