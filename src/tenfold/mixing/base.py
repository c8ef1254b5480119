"""What every strategy states: who averages with whom in round r among n replicas."""

from abc import ABC, abstractmethod
from typing import ClassVar

from tenfold.errors import ExperimentError
from tenfold.mixing.exchange import Exchange, ExchangeVectors
from tenfold.mixing.round import Round, exact_round, idle_round


class Strategy(ABC):
    """Who averages with whom. Subclasses are frozen dataclasses, their fields the options; all methods are pure."""

    name: ClassVar[str]
    asynchronous: ClassVar[bool] = False
    """Workers exchange at their own pace, outside rounds."""
    has_centre: ClassVar[bool] = False
    """Workers exchange with a common copy of the weights, not with one another."""
    always_exact: ClassVar[bool] = False
    """Every round is the exact mean, for any number of replicas."""

    @abstractmethod
    def round(self, r: int, n: int, /) -> Round:
        """Return round `r` = 0, 1, ... among `n` >= 1 replicas."""

    @abstractmethod
    def period(self, n: int, /) -> int | None:
        """Return after how many rounds the pattern repeats; None when it never does."""

    def final(self, n: int, /) -> Round:
        """Return the last round of a run: its result is the mean of all replicas."""
        return exact_round(n)


class AsynchronousStrategy(Strategy):
    """Workers exchange at their own pace and never wait for a round: all rounds but the last are idle.

    `exchange` says when a worker exchanges and with whom; the virtual clock prices that. `apply` does the arithmetic.
    """

    asynchronous: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = False
    """Workers send the gradients that they have summed up since the last time, not their weights."""

    @abstractmethod
    def exchange(self, rank: int, step: int, n: int, /) -> Exchange | None:
        """Return what worker `rank` of `n` does after its `step`-th step (1, 2, ...); None: no exchange.

        With `has_centre` the partner is always the centre, without it always another worker.
        """

    @abstractmethod
    def apply(self, exchange: Exchange, vectors: ExchangeVectors, n: int, /) -> None:
        """Carry out an exchange among `n` workers on the vectors, in place."""

    def round(self, _r: int, n: int, /) -> Round:
        """Return an idle round: exchanges happen outside rounds."""
        return idle_round(n)

    def period(self, _n: int, /) -> int | None:
        """Return 1: all rounds are alike."""
        return 1


def require(holds: bool, sentence: str) -> None:
    """Raise an ExperimentError with the sentence unless it holds."""
    if not holds:
        raise ExperimentError(sentence)
