"""Plain averaging: continue from the mean."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tenfold.mixing.outer.base import OuterOptimizer, State


@dataclass(frozen=True, kw_only=True)
class PlainAverage(OuterOptimizer):
    """x <- mean(x_i)."""

    name: ClassVar[str] = "none"

    def start(self, _x0: Tensor, /) -> State:
        """Return an empty state: there is nothing to remember."""
        return {}

    def update(self, _state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:  # noqa: ARG002
        """Return the mean as it is."""
        return mean
