"""Mixing in the course of training: how a replica steps and meets the others."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tenfold.training import Replica
from tenfold.workers.channels import Channels
from tenfold.workers.rounds import Rounds


class Mixer(ABC):
    """How a replica steps and meets the others."""

    bytes_moved: float = 0.0
    """What this worker would send over links."""

    def step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:  # noqa: ARG002
        """Learn from one batch; `sizes` are all workers' batches in this step, 0 for those that have none left."""
        if x is not None:
            return self.replica.step(x, y)
        self.replica.advance()  # the learning rate follows the run, not the shard
        return None

    @abstractmethod
    def mix(self, step: int) -> None:
        """Do what is due after this step, counted from 1 over the run."""

    @abstractmethod
    def consensus(self) -> None:
        """Give the replica the weights that are the result of the run so far."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Take on a saved state."""

    replica: Replica
    links: Channels


class RoundMixer(Rounds, Mixer):
    """Rounds in which all take part at the same step: weights are averaged."""

    replica: Replica


class GradientMixer(RoundMixer):
    """Gradients are averaged before every step, weighted by the batches they come from; weights never differ."""

    def step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:
        """Average this worker's gradient with the others', then step."""
        self.replica.advance()
        if x is None:  # what the last step has left there is everybody's
            self.replica.optimizer.zero_grad(set_to_none=True)
        loss = self.replica.backward(x, y) if x is not None else None
        self.average_gradients([float(size) for size in sizes])
        self.replica.clip()
        self.replica.optimizer.step()
        return loss

    def mix(self, step: int) -> None:
        """Do nothing: the gradients were mixed."""
