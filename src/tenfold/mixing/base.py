"""What every strategy can say: who averages with whom in round r among n replicas."""

from abc import ABC, abstractmethod
from typing import ClassVar

from tenfold.errors import ExperimentError
from tenfold.mixing.round import Round, exact_round, idle_round


class Strategy(ABC):
    """Who averages with whom. Subclasses are frozen dataclasses, their fields the options; all methods are pure."""

    name: ClassVar[str]
    asynchronous: ClassVar[bool] = False
    """Workers exchange at their own pace, outside rounds."""
    has_centre: ClassVar[bool] = False
    """Workers exchange with a common copy of the weights, not with one another."""

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
    """Workers exchange by rules of their own and never wait for a round: all rounds but the last are idle."""

    asynchronous: ClassVar[bool] = True

    def round(self, _r: int, n: int, /) -> Round:
        """Return an idle round: exchanges happen outside rounds."""
        return idle_round(n)

    def period(self, _n: int, /) -> int | None:
        """Return 1: no round differs from another."""
        return 1


def require(holds: bool, sentence: str) -> None:
    """Raise an ExperimentError with the sentence unless it holds."""
    if not holds:
        raise ExperimentError(sentence)
