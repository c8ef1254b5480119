"""How a group takes its exact mean over links: the messages of each algorithm, phase by phase.

The messages of a phase travel at the same time, a phase starts when the one before it has ended. With a = latency in
s, b = s per byte sent, c = s per byte added, g = members, n = nbytes, on links that send and receive at once:

    ring                 2(g-1) a + 2n(g-1)/g b + n(g-1)/g c
    tree                 2 ceil(lg g) (a + n b) + ceil(lg g) n c
    recursive doubling   lg g (a + n b + n c)
    halving-doubling     2 lg g a + 2n(g-1)/g b + n(g-1)/g c       (Rabenseifner 2004)
    server               2a + 2n max(1, g/S) b + g n/S c           (S servers)

The two doublings need a power of two. Other groups first fold the members beyond the largest power of two, P, into the
core and hand them the result at the end: two phases of n bytes more, one of them added, and P instead of g above.

Each algorithm is written once, as waves: runs of like phases, in arrays over many groups of one size.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import ExperimentError
from tenfold.registry import Registry

Group = tuple[int, ...]
Integers = NDArray[np.int64]


class Wave(NamedTuple):
    """`times` phases in a row, of messages between the same members; arrays of the shape [groups, messages].

    From one phase to the next the sizes move on by one message: what a member of a ring has got, it passes on.
    """

    src: Integers
    """Who sends; servers have the ranks -1, -2, ..."""
    dst: Integers
    """Who receives."""
    nbytes: Integers
    adds: bool = False
    """The receiver adds the message to its own numbers, instead of only storing it."""
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
    """One way to the mean; a hashable value."""

    @abstractmethod
    def waves(self, groups: Integers, nbytes: int) -> Waves:
        """Return the messages in groups of one size g >= 2, an array [groups, g], that work at the same time."""


@dataclass(frozen=True)
class Peers(Collective):
    """A collective in which only the members take part, as a function of their places says."""

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
    """Let the two of each pair send all they have to each other and add, in one phase."""
    return (_whole(groups[:, ::-1], groups, nbytes, adds=True),)


def _ring(groups: Integers, nbytes: int) -> Waves:
    """Pass chunks around: g-1 phases that add them up, g-1 that hand the sums out (Patarasuk & Yuan 2009)."""
    size = groups.shape[1]
    following = np.roll(groups, -1, axis=1)
    chunks = np.broadcast_to(_split(nbytes, size), groups.shape)
    return (
        Wave(groups, following, chunks, adds=True, times=size - 1),
        Wave(groups, following, np.roll(chunks, -1, axis=1), times=size - 1),
    )


def _tree(groups: Integers, nbytes: int) -> Waves:
    """Add up along a binomial tree to the first member, then send the sum back down the same way."""
    size = groups.shape[1]
    distances = [1 << k for k in range((size - 1).bit_length())]
    edges = [
        (groups[:, distance :: 2 * distance], groups[:, : size - distance : 2 * distance]) for distance in distances
    ]
    up = [_whole(child, parent, nbytes, adds=True) for child, parent in edges]
    down = [_whole(parent, child, nbytes) for child, parent in reversed(edges)]
    return (*up, *down)


def _recursive_doubling(groups: Integers, nbytes: int) -> Waves:
    """Swap everything with the member 1, 2, 4, ... places away and add."""
    core, fold, unfold = _power_of_two_core(groups, nbytes)
    places = np.arange(core.shape[1])
    distances = [1 << k for k in range(core.shape[1].bit_length() - 1)]
    doubling = [_whole(core, core[:, places ^ distance], nbytes, adds=True) for distance in distances]
    return (*fold, *doubling, *unfold)


def _halving_doubling(groups: Integers, nbytes: int) -> Waves:
    """Swap and add halves, quarters, ... until each member owns one sum, then collect the sums in reverse."""
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

    `nbytes` are those of the tensors that it fills, on the member where they are most; `root` is the place of the
    member that sends or receives for all. An all-reduce is a ring (two members swap), broadcast and reduce are binomial
    trees, all-gather and reduce-scatter the halves of a ring; the others go straight from member to member.
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
        case "barrier":  # by dissemination: after each phase a member has heard of twice as many
            return tuple(_whole(group, np.roll(group, -(1 << k), axis=1), 0) for k in range((count - 1).bit_length()))
    raise ExperimentError(f"nothing is known of what '{name}' sends")


def _split(nbytes: int, parts: int) -> Integers:
    """Divide `nbytes` into `parts` whole numbers that differ by one at most."""
    share, rest = divmod(nbytes, parts)
    return share + (np.arange(parts) < rest)


def _whole(src: Integers, dst: Integers, nbytes: int, adds: bool = False) -> Wave:
    """Return one phase in which every message carries everything."""
    return Wave(src, dst, np.full(src.shape, nbytes), adds)


def _power_of_two_core(groups: Integers, nbytes: int) -> tuple[Integers, Waves, Waves]:
    """Return the largest power of two of members, and the waves that fold the others in and serve them at the end."""
    size = 1 << (groups.shape[1].bit_length() - 1)
    core, rest = groups[:, :size], groups[:, size:]
    if not rest.size:
        return core, (), ()
    served = core[:, : rest.shape[1]]
    return core, (_whole(rest, served, nbytes, adds=True),), (_whole(served, rest, nbytes),)
