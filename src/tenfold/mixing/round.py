"""Rounds: who averages with whom, as a value, and the messages; also the schedules of pipelines."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import ExperimentError
from tenfold.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


# Algorithms for the exact mean of a group over links: their messages, phase by phase.
#
# The messages of a phase travel at the same time, a phase starts when the one before it has ended. With a = latency in
# s, b = s per byte sent, c = s per byte added, g = members, n = nbytes, on links that send and receive at once:
#
#     ring                 2(g-1) a + 2n(g-1)/g b + n(g-1)/g c
#     tree                 2 ceil(lg g) (a + n b) + ceil(lg g) n c
#     recursive doubling   lg g (a + n b + n c)
#     halving-doubling     2 lg g a + 2n(g-1)/g b + n(g-1)/g c       (Rabenseifner 2004)
#     server               2a + 2n max(1, g/S) b + g n/S c           (S servers)
#
# The two doublings need a power of two. In other groups, the members beyond the largest power of two, P, first send
# their data to the core and receive the result at the end: two more phases of n bytes, one with additions, and P
# instead of g above.
#
# Each algorithm is written once, as waves: runs of like phases, in arrays over many groups of one size.

Group = tuple[int, ...]
Integers = NDArray[np.int64]


class Wave(NamedTuple):
    """`times` phases in a row, of messages between the same members; arrays of the shape [groups, messages].

    From one phase to the next, the sizes rotate by one message, because a member of a ring forwards what it received.
    """

    src: Integers
    """The rank of the sender; servers have the ranks -1, -2, ..."""
    dst: Integers
    """The rank of the receiver."""
    nbytes: Integers
    adds: bool = False
    """Whether the receiver adds the message to its own numbers instead of only storing it."""
    times: int = 1

    def sent(self) -> Integers:
        """Return the bytes of each message over all phases."""
        laps, rest = divmod(self.times, self.nbytes.shape[1])
        total = self.nbytes.sum(axis=1, keepdims=True)
        before = np.cumsum(np.concatenate([0 * total, self.nbytes, self.nbytes], axis=1), axis=1)
        last = np.arange(self.nbytes.shape[1]) + self.nbytes.shape[1] + 1
        sent: Integers = laps * total + before[:, last] - before[:, last - rest]
        return sent


Waves = tuple[Wave, ...]


class Collective(ABC):
    """An algorithm for the mean; a hashable value."""

    @abstractmethod
    def waves(self, groups: Integers, nbytes: int) -> Waves:
        """Return the messages in groups of one size g >= 2, an array [groups, g], that work at the same time."""


@dataclass(frozen=True)
class Peers(Collective):
    """A collective among the members only, defined by a function of their positions."""

    plan: Callable[[Integers, int], Waves]

    def waves(self, groups: Integers, nbytes: int) -> Waves:
        return self.plan(groups, nbytes)


@dataclass(frozen=True)
class Server(Collective):
    """All members push to the servers, each of which adds up its share, and pull the mean (Li et al. 2014)."""

    servers: int = 1

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise ExperimentError(f"parameter-server: servers is {self.servers}; it must be at least 1")

    def waves(self, groups: Integers, nbytes: int) -> Waves:
        members = np.repeat(groups, self.servers, axis=1)
        servers = np.broadcast_to(np.tile(-1 - np.arange(self.servers), groups.shape[1]), members.shape)
        shares = np.broadcast_to(np.tile(_split(nbytes, self.servers), groups.shape[1]), members.shape)
        return Wave(members, servers, shares, adds=True), Wave(servers, members, shares)


def swap(groups: Integers, nbytes: int) -> Waves:
    """The members of each pair send their whole vectors to each other and add them, in one phase."""
    return (_whole(groups[:, ::-1], groups, nbytes, adds=True),)


def _ring(groups: Integers, nbytes: int) -> Waves:
    """Send chunks around the ring: g-1 phases to add them up, g-1 to distribute the sums (Patarasuk & Yuan 2009)."""
    size = groups.shape[1]
    following = np.roll(groups, -1, axis=1)
    chunks = np.broadcast_to(_split(nbytes, size), groups.shape)
    return (
        Wave(groups, following, chunks, adds=True, times=size - 1),
        Wave(groups, following, np.roll(chunks, -1, axis=1), times=size - 1),
    )


def _tree(groups: Integers, nbytes: int) -> Waves:
    """Add up along a binomial tree to the first member, then send the sum back down the tree."""
    size = groups.shape[1]
    distances = [1 << k for k in range((size - 1).bit_length())]
    edges = [
        (groups[:, distance :: 2 * distance], groups[:, : size - distance : 2 * distance]) for distance in distances
    ]
    up = [_whole(child, parent, nbytes, adds=True) for child, parent in edges]
    down = [_whole(parent, child, nbytes) for child, parent in reversed(edges)]
    return (*up, *down)


def _recursive_doubling(groups: Integers, nbytes: int) -> Waves:
    """Exchange and add whole vectors with the member 1, 2, 4, ... positions away."""
    core, fold, unfold = _power_of_two_core(groups, nbytes)
    places = np.arange(core.shape[1])
    distances = [1 << k for k in range(core.shape[1].bit_length() - 1)]
    doubling = [_whole(core, core[:, places ^ distance], nbytes, adds=True) for distance in distances]
    return (*fold, *doubling, *unfold)


def _halving_doubling(groups: Integers, nbytes: int) -> Waves:
    """Exchange and add halves, quarters, ... until each member owns one sum, then collect the sums in reverse."""
    core, fold, unfold = _power_of_two_core(groups, nbytes)
    places = np.arange(core.shape[1])
    low, high = np.zeros_like(places), np.full_like(places, nbytes)
    halving: list[Wave] = []
    doubling: list[Wave] = []
    distance = core.shape[1] // 2
    while distance:
        middle, upper = (low + high) // 2, places & distance > 0
        low, high = np.where(upper, middle, low), np.where(upper, high, middle)
        kept, partners = high - low, places ^ distance
        halving.append(Wave(core, core[:, partners], np.broadcast_to(kept[partners], core.shape), adds=True))
        doubling.append(Wave(core, core[:, partners], np.broadcast_to(kept, core.shape)))
        distance //= 2
    return (*fold, *halving, *reversed(doubling), *unfold)


ring = Peers(_ring)
tree = Peers(_tree)
recursive_doubling = Peers(_recursive_doubling)
halving_doubling = Peers(_halving_doubling)

COLLECTIVES: Registry[Collective] = Registry(
    "collective algorithm",
    {
        "ring": ring,
        "tree": tree,
        "recursive-doubling": recursive_doubling,
        "halving-doubling": halving_doubling,
        "server": Server(),
    },
)


def operation_waves(name: str, members: Integers, nbytes: int, root: int = 0) -> Waves:
    """Return the messages of an operation of torch.distributed between the members of a group.

    `nbytes` is the size of the output tensors on the member with the largest ones; `root` is the position of the member
    that sends or receives for all. An all-reduce is a ring (an exchange for two members), broadcast and reduce are
    binomial trees, all-gather and reduce-scatter are halves of a ring; other operations send directly.
    """
    count, group = len(members), members[None]
    following, others = np.roll(group, -1, axis=1), np.delete(members, root)[None]
    center = np.full(others.shape, members[root])
    if count == 1:
        return ()
    match name:
        case "all_reduce":
            return swap(group, nbytes) if count == 2 else _ring(group, nbytes)
        case "broadcast" | "reduce":
            waves = _tree(np.roll(group, -root, axis=1), nbytes)
            return waves[len(waves) // 2 :] if name == "broadcast" else waves[: len(waves) // 2]
        case "reduce_scatter":
            return _ring(group, nbytes * count)[:1]
        case "all_gather":
            return (_whole(group, following, nbytes // count)._replace(times=count - 1),)
        case "gather":
            return (_whole(others, center, nbytes // count),)
        case "scatter":
            return (_whole(center, others, nbytes),)
        case "all_to_all":
            src, dst = np.nonzero(~np.eye(count, dtype=bool))
            return (_whole(members[src][None], members[dst][None], nbytes // count),)
        case "barrier":  # dissemination: after each phase, a member has heard from twice as many members
            return tuple(_whole(group, np.roll(group, -(1 << k), axis=1), 0) for k in range((count - 1).bit_length()))
    raise ExperimentError(f"the messages of the operation '{name}' are not known, so it cannot be timed")


def _split(nbytes: int, parts: int) -> Integers:
    """Divide `nbytes` into `parts` integers that differ by at most one."""
    share, rest = divmod(nbytes, parts)
    return share + (np.arange(parts) < rest)


def _whole(src: Integers, dst: Integers, nbytes: int, adds: bool = False) -> Wave:
    """Return one phase in which every message carries the whole vector."""
    return Wave(src, dst, np.full(src.shape, nbytes), adds)


def _power_of_two_core(groups: Integers, nbytes: int) -> tuple[Integers, Waves, Waves]:
    """Return the core, a power of two of members, and the waves before and after it for the other members."""
    size = 1 << (groups.shape[1].bit_length() - 1)
    core, rest = groups[:, :size], groups[:, size:]
    if not rest.size:
        return core, (), ()
    served = core[:, : rest.shape[1]]
    return core, (_whole(rest, served, nbytes, adds=True),), (_whole(served, rest, nbytes),)


# Rounds: the replicas that average with each other.

CENTER = -1
"""The "rank" of the central copy of the weights."""


@dataclass(frozen=True)
class Exchange:
    """The actions of a worker after one of its steps."""

    partner: int = CENTER
    """The rank of the other worker, or CENTER."""
    sends: bool = True
    """Whether the worker sends weights or gradients to the partner."""
    receives: bool = True
    """Whether the worker receives weights from the partner."""


@dataclass(frozen=True)
class ExchangeVectors:
    """The vectors that an exchange reads and changes in place, each as large as the parameters."""

    mine: "Tensor"
    """The parameters of the worker that exchanges."""
    theirs: "Tensor"
    """The parameters of its partner, or of the center."""
    gradients: "Tensor"
    """The sum of the worker's gradients since it last sent; empty unless the strategy sends gradients."""
    center_state: "Tensor"
    """The center's additional state, initially 0; empty without a center."""


@dataclass(frozen=True)
class Round:
    """Each replica i becomes a convex combination of the replicas in `sources[i]`, all at the same time.

    Each tuple is sorted and contains its own rank; `(i,)` means that replica i is idle. The sources either divide the
    replicas into groups that average exactly, or each replica reads, and is read by, the same number of replicas. Both
    preserve the mean.
    """

    sources: tuple[tuple[int, ...], ...]
    collective: Collective = ring
    """The algorithm by which groups of more than two average over links; it changes the cost, never the result."""

    def __post_init__(self) -> None:
        ranks = range(self.n)
        if not self.n:
            raise ExperimentError("a round needs at least 1 replica")
        distinct = {id(read): read for read in self.sources}  # a group's members share one tuple, which is checked once
        members = {key: set(read) for key, read in distinct.items()}
        tidy = {key: list(read) == sorted(members[key]) for key, read in distinct.items()}
        for rank, read in enumerate(self.sources):
            if rank not in members[id(read)] or not tidy[id(read)] or read[0] not in ranks or read[-1] not in ranks:
                raise ExperimentError(
                    f"replica {rank} of a round reads {read}; expected distinct sorted ranks from 0 to {self.n - 1} "
                    "that include its own"
                )
        if self.groups is None:
            fan = len(self.sources[0])
            read_by = np.bincount([source for read in self.sources for source in read], minlength=self.n)
            if any(len(read) != fan for read in self.sources) or (read_by != fan).any():
                raise ExperimentError(
                    f"a round with the sources {self.sources} changes the mean; replicas should form groups, or each "
                    "should read as many replicas as read it, the same number for all"
                )

    @property
    def n(self) -> int:
        return len(self.sources)

    @cached_property
    def groups(self) -> tuple[Group, ...] | None:
        """The groups that average exactly, including single replicas; None for any other round."""
        firsts = [read for rank, read in enumerate(self.sources) if read[:1] == (rank,)]
        if sum(map(len, firsts)) != self.n:
            return None
        reads = self.sources  # where members share one tuple, `is` spares comparing it with itself
        apart = all(reads[member] is group or reads[member] == group for group in firsts for member in group)
        return tuple(firsts) if apart else None

    @cached_property
    def is_exact(self) -> bool:
        """Whether all replicas have the mean of all replicas afterward."""
        return self.groups is not None and len(self.groups) == 1

    @cached_property
    def is_idle(self) -> bool:
        """Whether no replica reads from another."""
        return all(len(read) == 1 for read in self.sources)

    def partners(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that `rank` must wait for because it reads them or they read it."""
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
        and M is doubly stochastic. Replicas that saw no samples take the plain mean of their sources.
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

        Pairs exchange, and rings read from their neighbors, in one phase. Groups run their phases at the same time;
        groups of equal size share waves.
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
        """Return the bytes that each worker sends, not counting servers."""
        if nbytes not in self._sent:  # cached because training calls this after every round
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
                f"a round of {self.n} replicas got the weights {weights}; expected {self.n} weights of at least 0"
            )
        return w if w.any() else np.ones(self.n)


@lru_cache(maxsize=256)
def idle_round(n: int) -> Round:
    return Round(tuple((rank,) for rank in range(n)))


@lru_cache(maxsize=256)
def exact_round(n: int, collective: Collective = ring) -> Round:
    """Return the round that gives all `n` replicas their mean."""
    return Round((tuple(range(n)),) * n, collective)


@lru_cache(maxsize=256)
def group_round(groups: tuple[Group, ...], collective: Collective = ring) -> Round:
    """Return the round in which each group averages; together, the groups contain every rank once."""
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

    A round follows every step up to `local_after`, then every `sync_every` steps (post-local SGD, Lin et al. 2020).
    """
    if sync_every < 1:
        raise ExperimentError(f"sync_every is {sync_every}; it must be at least 1 step")
    return (step <= local_after) | ((step - local_after) % sync_every == 0)


# Pipelines: the order in which each stage of a divided network processes the micro-batches of a step.
#
# Like a round, a schedule is data: the stages execute it on real tensors, and the clock computes its bubble from it.
#
# - GPipe (Huang et al., 2019, arXiv 1811.06965): all micro-batches forward, then all backward.
# - 1F1B (Narayanan et al., 2019, arXiv 1806.03377, in its synchronous form): a stage that is k stages before the last
#   begins with k forwards, and then alternates; it keeps the activations of at most k + 1 micro-batches.
#
# Both process the micro-batches in the same order, forward and backward, so gradients are added in the same order as
# in one process with `accumulate`. Both have the same bubble: with p equal stages and m micro-batches, a stage works in
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
    """Return the mean time of the stages divided by the slowest: 1 if all take the same time."""
    return sum(seconds) / len(seconds) / max(seconds)


def bound(seconds: Sequence[float], micro_batches: int) -> float:
    """Return the largest speedup over one process: p x balance x m / (m + p - 1), for the seconds of p stages."""
    stages = len(seconds)
    return stages * balance(seconds) * micro_batches / (micro_batches + stages - 1)
