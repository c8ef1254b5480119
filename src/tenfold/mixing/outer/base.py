"""The interface of outer optimizers: from the mean of the replicas they compute where all continue."""

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

State = dict[str, Tensor]
"""What is kept between rounds, by name; it is saved and loaded with the replicas."""


class OuterOptimizer(ABC):
    """One step per round on flat weights, elementwise and so the same bits wherever it is computed.

    Subclasses are frozen dataclasses, their fields the options; all that changes is in the state.
    """

    name: ClassVar[str]

    @abstractmethod
    def start(self, x0: Tensor, /) -> State:
        """Return the state before the first round; `x0` are the weights that all replicas start from."""

    @abstractmethod
    def update(self, state: State, mean: Tensor, /, *, n: int, lr: float) -> Tensor:
        """Turn the mean of `n` replicas, whose inner learning rate is `lr`, into the weights they continue from.

        Changes `state`, overwrites `mean` with the result and returns it.
        """
