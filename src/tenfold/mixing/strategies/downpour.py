"""Downpour: workers push gradients to a server and fetch weights from it, each at its own pace."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tenfold.mixing.base import AsynchronousStrategy, require

SMALLEST_ROOT = 1e-10
"""Where nothing has accrued the learning rate would be infinite; float32 squares vanish below about 1e-22."""


@dataclass(frozen=True, kw_only=True)
class Downpour(AsynchronousStrategy):
    """Push accrued gradients every n_push steps, fetch the weights every n_fetch (Dean et al. 2012).

    The server runs Adagrad: w_k <- w_k - eta_k g_k with eta_k = gamma / sqrt(sum of g_k^2 so far).
    """

    name: ClassVar[str] = "downpour"
    has_centre: ClassVar[bool] = True

    n_push: int = 1
    """Steps between two pushes of a worker."""

    n_fetch: int = 1
    """Steps between two fetches of a worker."""

    gamma: float = 0.01
    """The server's learning rate."""

    def __post_init__(self) -> None:
        require(self.n_push >= 1, f"downpour: n_push is {self.n_push}; it takes at least 1")
        require(self.n_fetch >= 1, f"downpour: n_fetch is {self.n_fetch}; it takes at least 1")
        require(self.gamma > 0, f"downpour: gamma is {self.gamma}; it takes more than 0")

    def pushes(self, steps: int) -> bool:
        """Say whether a worker pushes after its `steps`-th step (1, 2, ...)."""
        return steps % self.n_push == 0

    def fetches(self, steps: int) -> bool:
        """Say whether a worker fetches after its `steps`-th step (1, 2, ...)."""
        return steps % self.n_fetch == 0

    def server_update(self, w: Tensor, grad: Tensor, accum: Tensor) -> None:
        """Apply one push to the server's weights, in place; `accum` is the sum of squares and starts at zero."""
        accum.addcmul_(grad, grad)
        w.addcdiv_(grad, accum.sqrt().clamp_min_(SMALLEST_ROOT), value=-self.gamma)
