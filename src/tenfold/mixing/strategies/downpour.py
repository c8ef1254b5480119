"""Downpour: workers push gradients to a server and fetch weights from it, each at its own pace."""

from dataclasses import dataclass
from typing import ClassVar

from tenfold.mixing.base import AsynchronousStrategy, require
from tenfold.mixing.exchange import CENTRE, Exchange, ExchangeVectors

SMALLEST_ROOT = 1e-10
"""Keeps the learning rate finite while the sum is 0; float32 squares underflow below about 1e-22."""


@dataclass(frozen=True, kw_only=True)
class Downpour(AsynchronousStrategy):
    """Push accrued gradients every n_push steps, fetch the weights every n_fetch (Dean et al. 2012).

    The server runs Adagrad: w_k <- w_k - eta_k g_k with eta_k = gamma / sqrt(sum of g_k^2 so far).
    """

    name: ClassVar[str] = "downpour"
    has_centre: ClassVar[bool] = True
    sends_gradients: ClassVar[bool] = True

    n_push: int = 1
    """Steps between two pushes of a worker."""

    n_fetch: int = 1
    """Steps between two fetches of a worker."""

    gamma: float = 0.01
    """The server's learning rate."""

    def __post_init__(self) -> None:
        require(self.n_push >= 1, f"downpour: n_push is {self.n_push}; it must be at least 1")
        require(self.n_fetch >= 1, f"downpour: n_fetch is {self.n_fetch}; it must be at least 1")
        require(self.gamma > 0, f"downpour: gamma is {self.gamma}; it must be more than 0")

    def exchange(self, _rank: int, step: int, _n: int, /) -> Exchange | None:
        """Push every n_push steps and fetch every n_fetch, both from and to the server."""
        pushes, fetches = step % self.n_push == 0, step % self.n_fetch == 0
        return Exchange(CENTRE, sends=pushes, receives=fetches) if pushes or fetches else None

    def apply(self, exchange: Exchange, vectors: ExchangeVectors, _n: int, /) -> None:
        """Let the server step along the gradients that are pushed, then copy its weights where they are fetched."""
        if exchange.sends:
            gradients, squares = vectors.gradients, vectors.centre_state
            squares.addcmul_(gradients, gradients)
            vectors.theirs.addcdiv_(gradients, squares.sqrt().clamp_min_(SMALLEST_ROOT), value=-self.gamma)
        if exchange.receives:
            vectors.mine.copy_(vectors.theirs)
