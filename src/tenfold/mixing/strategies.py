"""Strategies: each defines who averages with whom in round r among n replicas."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tenfold.errors import ExperimentError
from tenfold.mixing.round import (
    CENTER,
    COLLECTIVES,
    Collective,
    Exchange,
    ExchangeVectors,
    Round,
    Server,
    exact_round,
    group_round,
    idle_round,
    shifted_round,
)


class Strategy(ABC):
    """A mixing strategy. Subclasses are frozen dataclasses whose fields are the options; all methods are pure."""

    name: ClassVar[str]
    asynchronous: ClassVar[bool] = False
    """Whether workers exchange at their own pace, outside rounds."""
    has_center: ClassVar[bool] = False
    """Whether workers exchange with a central copy of the weights instead of with each other."""
    always_exact: ClassVar[bool] = False
    """Whether every round computes the exact mean, for any number of replicas."""

    @property
    def center_parts(self) -> int:
        """The number of servers, each with an equal part of the center; workers exchange with them in turn."""
        return 1

    @abstractmethod
    def round(self, r: int, n: int, /) -> Round:
        """Return round `r` = 0, 1, ... among `n` >= 1 replicas."""

    @abstractmethod
    def period(self, n: int, /) -> int | None:
        """Return the number of rounds after which the pattern repeats, or None if it never does."""

    def final(self, n: int, /) -> Round:
        """Return the last round of a run: its result is the mean of all replicas."""
        return exact_round(n)


class AsynchronousStrategy(Strategy):
    """Workers exchange at their own pace and never wait for a round: all rounds but the last are idle.

    `exchange` defines when a worker exchanges, and with whom; the virtual clock computes the cost from it. `apply` does
    the arithmetic.
    """

    asynchronous: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = False
    """Whether workers send the sum of their gradients since the last exchange instead of their weights."""
    center_additions: ClassVar[float] = 4.0
    """The center's time to process a received vector, relative to adding two vectors; for predicted times."""

    @abstractmethod
    def exchange(self, rank: int, step: int, n: int, /) -> Exchange | None:
        """Return the exchange of worker `rank` of `n` after its `step`-th step (1, 2, ...), or None.

        With `has_center`, the partner is always the center, otherwise always another worker.
        """

    @abstractmethod
    def apply(self, exchange: Exchange, vectors: ExchangeVectors, n: int, /) -> None:
        """Perform an exchange among `n` workers on the vectors, in place."""

    def round(self, _r: int, n: int, /) -> Round:
        return idle_round(n)

    def period(self, _n: int, /) -> int | None:
        return 1


def require(holds: bool, sentence: str) -> None:
    """Raise an ExperimentError with the sentence unless it holds."""
    if not holds:
        raise ExperimentError(sentence)


class ExactStrategy(Strategy):
    """x_i <- sum_j w_j x_j with w_j = samples of j / all samples: the exact mean, by some algorithm."""

    always_exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.collective()

    @abstractmethod
    def collective(self) -> Collective:
        """Return the algorithm, which affects only the time; raise ExperimentError if it does not exist."""

    def round(self, _r: int, n: int, /) -> Round:
        return exact_round(n, self.collective())

    def final(self, n: int, /) -> Round:
        return self.round(0, n)

    def period(self, _n: int, /) -> int | None:
        return 1


@dataclass(frozen=True, kw_only=True)
class AllReduce(ExactStrategy):
    """x_i <- sum_j w_j x_j with w_j = samples of j / all samples: the exact mean."""

    name: ClassVar[str] = "allreduce"

    algorithm: str = "ring"
    """The algorithm: ring, tree, recursive-doubling, halving-doubling or server. Changes the time only."""

    def collective(self) -> Collective:
        return COLLECTIVES[self.algorithm]


@dataclass(frozen=True, kw_only=True)
class Butterfly(Strategy):
    """Round t averages i with i XOR 2^(t mod lg N); after lg N rounds all have the mean (Zhao & Canny 2013).

    Other N use a mixed radix: with the prime factors N = p_1 p_2 ... p_K, smallest first, write each rank in those
    digits; round t averages the groups that differ in digit t mod K only. After K rounds without steps between, the
    mean is exact for every N (with unequal weights it is kept, and approached instead of reached).
    """

    name: ClassVar[str] = "butterfly"

    def round(self, r: int, n: int, /) -> Round:
        return _digit_round(r % self.period(n), n)

    def period(self, n: int, /) -> int:
        return max(1, len(prime_factors(n)))


def prime_factors(n: int) -> tuple[int, ...]:
    """Return the prime factors of `n`, smallest first; none for 1."""
    factors, divisor = [], 2
    while divisor * divisor <= n:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return (*factors, n) if n > 1 else tuple(factors)


@lru_cache(maxsize=256)
def _digit_round(digit: int, n: int) -> Round:
    factors = prime_factors(n)
    if not factors:
        return idle_round(n)
    stride = 1
    for factor in factors[:digit]:
        stride *= factor
    radix = factors[digit]
    zeros = (rank for rank in range(n) if rank // stride % radix == 0)
    return group_round(tuple(tuple(rank + k * stride for k in range(radix)) for rank in zeros))


@dataclass(frozen=True, kw_only=True)
class Ring(Strategy):
    """x_i <- (x_{i-1} + x_i + x_{i+1}) / 3, or one-sided x_i <- (x_{i-1} + x_i) / 2."""

    name: ClassVar[str] = "ring"

    sides: int = 2
    """Read from both neighbors (2) or from the one before only (1)."""

    def __post_init__(self) -> None:
        require(self.sides in (1, 2), f"ring: sides is {self.sides}; it must be 1 or 2")

    def round(self, _r: int, n: int, /) -> Round:
        return shifted_round(n, (-1, 1)[: self.sides])

    def period(self, _n: int, /) -> int | None:
        return 1


@dataclass(frozen=True, kw_only=True)
class HoppingRing(Strategy):
    """x_i <- (x_i + x_{(i - h) mod N}) / 2 with the hop h_t = 2^(t mod ceil(lg N)), or h_t = 1 + t mod (N-1).

    The doubling hop reaches the exact mean after lg N rounds without steps between when N is a power of two.
    """

    name: ClassVar[str] = "hopping-ring"

    hops: str = "doubling"
    """How the hop grows from round to round: "doubling" (1, 2, 4, ...) or "linear" (1, 2, 3, ...)."""

    def __post_init__(self) -> None:
        orders = ("doubling", "linear")
        require(self.hops in orders, f"hopping-ring: hops is '{self.hops}'; it must be 'doubling' or 'linear'")

    def hop(self, r: int, n: int, /) -> int:
        """Return the distance between each replica and the one it reads in round `r`."""
        turn = r % self.period(n)
        return 1 << turn if self.hops == "doubling" else 1 + turn

    def round(self, r: int, n: int, /) -> Round:
        return shifted_round(n, (-self.hop(r, n),))

    def period(self, n: int, /) -> int:
        return max(1, (n - 1).bit_length() if self.hops == "doubling" else n - 1)


@dataclass(frozen=True, kw_only=True)
class Gossip(Strategy):
    """A random perfect matching each round; pairs take their mean (Boyd et al. 2006). With odd N one replica rests.

    The matching is a function of (seed, round): every worker draws the same one without communicating.
    """

    name: ClassVar[str] = "gossip"

    seed: int = 0
    """Another seed draws other pairs."""

    def matching(self, r: int, n: int, /) -> NDArray[np.int64]:
        """Return this round's pairs, an array [n // 2, 2].

        The replicas are sorted by random words of PCG64, which NumPy guarantees to be the same in every version. The
        last bits of each word are replaced with the replica's number, so all words differ and the order is unique.
        """
        bits = np.uint64(n.bit_length())
        words = np.random.PCG64([self.seed % 2**64, r]).random_raw(n)
        order = np.sort((words << bits) | np.arange(n, dtype=np.uint64)) & np.uint64((1 << n.bit_length()) - 1)
        return order[: n // 2 * 2].astype(np.int64).reshape(-1, 2)

    def round(self, r: int, n: int, /) -> Round:
        sources: list[tuple[int, ...]] = [(rank,) for rank in range(n)]
        for item, other in np.sort(self.matching(r, n)).tolist():
            sources[item] = sources[other] = (item, other)
        return Round(tuple(sources))

    def period(self, n: int, /) -> int | None:
        """Return None: the pairs never repeat (two replicas have no choice)."""
        return None if n > 2 else 1


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Strategy):
    """Ranks 0..s-1 share the first node, s..2s-1 the next, ...; the last node may be smaller.

    Replicas take the exact mean of their node every round, and that of everyone each `outer_every` rounds: with
    `sync_every` = h1 steps between rounds, nodes meet every h2 = h1 x outer_every steps.
    """

    name: ClassVar[str] = "hierarchical"

    node_size: int = 4
    """Replicas in a node."""

    outer_every: int = 4
    """Rounds from one meeting of all nodes to the next."""

    def __post_init__(self) -> None:
        require(self.node_size >= 1, f"hierarchical: node_size is {self.node_size}; it must be at least 1")
        require(self.outer_every >= 1, f"hierarchical: outer_every is {self.outer_every}; it must be at least 1")

    def round(self, r: int, n: int, /) -> Round:
        if (r + 1) % self.outer_every == 0:
            return exact_round(n)
        return group_round(tuple(tuple(range(n)[at : at + self.node_size]) for at in range(0, n, self.node_size)))

    def period(self, _n: int, /) -> int | None:
        return self.outer_every


@dataclass(frozen=True, kw_only=True)
class ParameterServer(ExactStrategy):
    """The exact mean, as with all-reduce, by another algorithm with another cost (see `Server`)."""

    name: ClassVar[str] = "parameter-server"

    servers: int = 1
    """Servers that hold an equal share of the weights each."""

    def collective(self) -> Collective:
        return Server(self.servers)


@dataclass(frozen=True, kw_only=True)
class NoMixing(Strategy):
    """x_i stays x_i; only the final round takes the mean (one-shot averaging)."""

    name: ClassVar[str] = "none"

    def round(self, _r: int, n: int, /) -> Round:
        return idle_round(n)

    def period(self, _n: int, /) -> int | None:
        return 1


SMALLEST_ROOT = 1e-10
"""Keeps the learning rate finite while the sum is 0; float32 squares underflow below about 1e-22."""


@dataclass(frozen=True, kw_only=True)
class Downpour(AsynchronousStrategy):
    """Push accrued gradients every n_push steps, fetch the weights every n_fetch (Dean et al. 2012).

    The server runs Adagrad: w_k <- w_k - eta_k g_k with eta_k = gamma / sqrt(sum of g_k^2 so far).
    """

    name: ClassVar[str] = "downpour"
    has_center: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = True
    center_additions: ClassVar[float] = 10.0

    n_push: int = 1
    """Steps between two pushes of a worker."""

    n_fetch: int = 1
    """Steps between two fetches of a worker."""

    gamma: float = 0.01
    """The server's learning rate."""

    servers: int = 1
    """Servers that hold an equal share of the weights each."""

    def __post_init__(self) -> None:
        require(self.n_push >= 1, f"downpour: n_push is {self.n_push}; it must be at least 1")
        require(self.n_fetch >= 1, f"downpour: n_fetch is {self.n_fetch}; it must be at least 1")
        require(self.gamma > 0, f"downpour: gamma is {self.gamma}; it must be more than 0")
        require(self.servers >= 1, f"downpour: servers is {self.servers}; it must be at least 1")

    @property
    def center_parts(self) -> int:
        return self.servers

    def exchange(self, _rank: int, step: int, _n: int, /) -> Exchange | None:
        pushes, fetches = step % self.n_push == 0, step % self.n_fetch == 0
        return Exchange(CENTER, sends=pushes, receives=fetches) if pushes or fetches else None

    def apply(self, exchange: Exchange, vectors: ExchangeVectors, _n: int, /) -> None:
        if exchange.sends:
            gradients, squares = vectors.gradients, vectors.center_state
            squares.addcmul_(gradients, gradients)
            vectors.theirs.addcdiv_(gradients, squares.sqrt().clamp_min_(SMALLEST_ROOT), value=-self.gamma)
        if exchange.receives:
            vectors.mine.copy_(vectors.theirs)


@dataclass(frozen=True, kw_only=True)
class EASGD(AsynchronousStrategy):
    """Every tau steps: d = alpha (x_i - center); x_i <- x_i - d; center <- center + d (Zhang et al. 2015)."""

    name: ClassVar[str] = "easgd"
    has_center: ClassVar[bool] = True

    alpha: float | None = None
    """How hard the spring pulls; stable for N x alpha up to 1. Default: 0.9 / N, as in the paper."""

    tau: int = 10
    """Steps between two exchanges of a worker."""

    def __post_init__(self) -> None:
        alpha = self.alpha
        require(alpha is None or 0 < alpha <= 1, f"easgd: alpha is {alpha}; it must be more than 0 and at most 1")
        require(self.tau >= 1, f"easgd: tau is {self.tau}; it must be at least 1")

    def exchange(self, _rank: int, step: int, _n: int, /) -> Exchange | None:
        return Exchange(CENTER) if step % self.tau == 0 else None

    def strength(self, n: int) -> float:
        return self.alpha if self.alpha is not None else 0.9 / n

    def apply(self, _exchange: Exchange, vectors: ExchangeVectors, n: int, /) -> None:
        pull = (vectors.mine - vectors.theirs).mul_(self.strength(n))
        vectors.mine.sub_(pull)
        vectors.theirs.add_(pull)


@dataclass(frozen=True, kw_only=True)
class ADPSGD(AsynchronousStrategy):
    """x_i, x_j <- (x_i + x_j) / 2 after a step of i, j drawn at random (Lian et al. 2018).

    Even ranks ask and odd ranks answer, so that two workers never wait for each other in a circle. The gradient that
    an answering worker adds next was computed before the average: it may be stale.
    """

    name: ClassVar[str] = "ad-psgd"

    seed: int = 0
    """Another seed draws other partners."""

    def exchange(self, rank: int, step: int, n: int, /) -> Exchange | None:
        answering = n // 2
        if rank % 2 or not answering:
            return None
        drawn = random.Random(f"ad-psgd/{self.seed}/{rank}/{step}").random()
        return Exchange(1 + 2 * int(answering * drawn))

    def apply(self, _exchange: Exchange, vectors: ExchangeVectors, _n: int, /) -> None:
        vectors.mine.add_(vectors.theirs).mul_(0.5)
        vectors.theirs.copy_(vectors.mine)


ROUNDS = 32
"""Number of rounds compared; the pattern of every strategy repeats within this number or never."""


def exchange_pattern(strategy: Strategy, workers: int, *, with_costs: bool = False) -> Any:
    """Return a value that is equal for two strategies if all their rounds are equal.

    `with_costs`, for a virtual cluster, also distinguishes the algorithms by which groups average.
    The value of an asynchronous strategy is unique to it.
    """
    if isinstance(strategy, AsynchronousStrategy):
        return strategy
    rounds = [*(strategy.round(r, workers) for r in range(ROUNDS)), strategy.final(workers)]
    return tuple((item.sources, item.collective if with_costs else None) for item in rounds)
