"""How a group takes its exact mean over links: what each algorithm sends, phase by phase.

Each collective maps (group, nbytes) to phases; the messages of a phase travel at the same time, a phase starts when the
one before it has ended. With a = latency in s, b = s per byte sent, c = s per byte added, g = members, n = nbytes, on
links that send and receive at once:

    ring                 2(g-1) a + 2n(g-1)/g b + n(g-1)/g c
    tree                 2 ceil(lg g) (a + n b) + ceil(lg g) n c
    recursive doubling   lg g (a + n b + n c)
    halving-doubling     2 lg g a + 2n(g-1)/g b + n(g-1)/g c       (Rabenseifner 2004)
    server               2a + 2n max(1, g/S) b + g n/S c           (S servers)

The two doublings need a power of two. Other groups first fold the members beyond the largest power of two, P, into the
core and hand them the result at the end: two phases of n bytes more, one of them added, and P instead of g above.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tenfold.errors import ExperimentError
from tenfold.registry import Registry

Group = tuple[int, ...]


class Message(NamedTuple):
    """`nbytes` that travel from rank `src` to rank `dst`; servers have the ranks -1, -2, ..."""

    src: int
    dst: int
    nbytes: int
    adds: bool = False
    """The receiver adds what arrives to what it has (and does not just keep it)."""


Phase = tuple[Message, ...]
Phases = tuple[Phase, ...]
Collective = Callable[[Group, int], Phases]


def ring(group: Group, nbytes: int) -> Phases:
    """Pass chunks around: g-1 phases that add them up, g-1 that hand the sums out (Patarasuk & Yuan 2009)."""
    size = len(group)
    chunks = _split(nbytes, size)

    def phase(step: int, adds: bool) -> Phase:
        return tuple(
            Message(rank, group[(i + 1) % size], chunks[(i - step) % size], adds) for i, rank in enumerate(group)
        )

    adding = [phase(step, adds=True) for step in range(size - 1)]
    handing_out = [phase(step - 1, adds=False) for step in range(size - 1)]
    return (*adding, *handing_out)


def tree(group: Group, nbytes: int) -> Phases:
    """Add up along a binomial tree to the first member, then send the sum back down the same way."""
    up, down, distance = [], [], 1
    while distance < len(group):
        edges = [(group[i], group[i - distance]) for i in range(distance, len(group), 2 * distance)]
        up.append(tuple(Message(child, parent, nbytes, adds=True) for child, parent in edges))
        down.append(tuple(Message(parent, child, nbytes) for child, parent in edges))
        distance *= 2
    return (*up, *reversed(down))


def recursive_doubling(group: Group, nbytes: int) -> Phases:
    """Swap everything with the member 1, 2, 4, ... places away and add."""
    core, fold, unfold = _power_of_two_core(group, nbytes)
    distances = [1 << k for k in range(len(core).bit_length() - 1)]
    doubling = [
        tuple(Message(rank, core[i ^ distance], nbytes, adds=True) for i, rank in enumerate(core))
        for distance in distances
    ]
    return (*fold, *doubling, *unfold)


def halving_doubling(group: Group, nbytes: int) -> Phases:
    """Swap and add halves, quarters, ... until each member owns one sum, then collect the sums in reverse."""
    core, fold, unfold = _power_of_two_core(group, nbytes)
    halving: list[Phase] = []
    doubling: list[Phase] = []
    spans = [(0, nbytes)] * len(core)
    distance = len(core) // 2
    while distance:
        spans = [
            (low, (low + high) // 2) if not i & distance else ((low + high) // 2, high)
            for i, (low, high) in enumerate(spans)
        ]
        kept = [high - low for low, high in spans]
        halving.append(
            tuple(Message(rank, core[i ^ distance], kept[i ^ distance], adds=True) for i, rank in enumerate(core))
        )
        doubling.append(tuple(Message(rank, core[i ^ distance], kept[i]) for i, rank in enumerate(core)))
        distance //= 2
    return (*fold, *halving, *reversed(doubling), *unfold)


@dataclass(frozen=True)
class Server:
    """All members push to the servers, each of which adds up its share, and pull the mean (Li et al. 2014)."""

    servers: int = 1

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise ExperimentError(f"parameter-server: servers is {self.servers}; it takes at least 1")

    def __call__(self, group: Group, nbytes: int) -> Phases:
        """Two phases, push and pull; a lone member has nothing to send."""
        if len(group) < 2:
            return ()
        shares = [(-1 - k, share) for k, share in enumerate(_split(nbytes, self.servers))]
        push = tuple(Message(rank, server, share, adds=True) for rank in group for server, share in shares)
        pull = tuple(Message(server, rank, share) for rank in group for server, share in shares)
        return push, pull


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


def _split(nbytes: int, parts: int) -> list[int]:
    """Divide `nbytes` into `parts` whole numbers that differ by one at most."""
    share, rest = divmod(nbytes, parts)
    return [share + (k < rest) for k in range(parts)]


def _power_of_two_core(group: Group, nbytes: int) -> tuple[Group, Phases, Phases]:
    """Return the largest power of two of members, and the phases that fold the others in and serve them at the end."""
    size = 1 << (len(group).bit_length() - 1)
    core, rest = group[:size], group[size:]
    if not rest:
        return core, (), ()
    fold = tuple(Message(extra, core[k], nbytes, adds=True) for k, extra in enumerate(rest))
    unfold = tuple(Message(core[k], extra, nbytes) for k, extra in enumerate(rest))
    return core, (fold,), (unfold,)
