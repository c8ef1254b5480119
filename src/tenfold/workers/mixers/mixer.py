"""How a worker's replica steps, and how it is mixed with the others during training.

A round passes through four layers: `RoundMixer.after_step` asks whether it is due, `Rounds.carry_out` does all that a
round does to a replica (compression, the outer optimizer), `Channels.run_round` knows which workers take part, and
`Transport.mix` averages their vectors.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tenfold.training import Replica
from tenfold.workers.mixers.divided_steps import divide_steps
from tenfold.workers.mixers.replica_rounds import Rounds


class Mixer(ABC):
    """Steps a replica and mixes it with the others."""

    replica: Replica

    @property
    @abstractmethod
    def bytes_moved(self) -> float:
        """The bytes that this worker has sent so far, as a network would count them.

        What divided steps write is not among them: they exist only in the memory of one machine, and the number is
        that of the same run on a cluster.
        """

    def step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:  # noqa: ARG002
        """Learn from one batch; `sizes` are all workers' batches in this step, 0 for those that have none left."""
        if x is not None:
            return self.replica.step(x, y)
        self.replica.advance()  # the learning rate follows the run, not the shard
        return None

    @abstractmethod
    def after_step(self, step: int) -> None:
        """Do what is due after this step, counted from 1 over the run."""

    @abstractmethod
    def consensus(self) -> None:
        """Give the replica the weights that are the result of the run so far."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""

    def take_staleness(self) -> list[float]:
        """Return how stale the weights were in each exchange since the last call; empty where all mix in rounds."""
        return []

    def take_spread(self) -> float | None:
        """Return how far the replica was from the average in a round since the last call, relative to its weights."""
        return None


class RoundMixer(Mixer):
    """Averages weights in rounds in which all workers take part after the same step."""

    def __init__(self, replica: Replica, rounds: Rounds) -> None:
        self.replica = replica
        self.rounds = rounds

    @property
    def bytes_moved(self) -> float:
        """The bytes that this worker has sent in rounds."""
        return self.rounds.bytes_moved

    def after_step(self, step: int) -> None:
        """Carry out the next round, if it is due after this step."""
        self.rounds.after_step(step)

    def take_spread(self) -> float | None:
        """Return the spread in the first round after the last call; None where there was no round."""
        taken, self.rounds.spread = self.rounds.spread, None
        self.rounds.measure_spread = True
        return taken

    def consensus(self) -> None:
        """Give the replica the mean of all."""
        self.rounds.consensus()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return self.rounds.state()

    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.rounds.load(state)


class GradientMixer(RoundMixer):
    """Averages gradients before every step, weighted by the batches they come from, so that weights never differ."""

    def __init__(self, replica: Replica, rounds: Rounds) -> None:
        super().__init__(replica, rounds)
        self.divided = divide_steps(replica, rounds.channels, rounds.strategy)

    def step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:
        """Average this worker's gradient with the others', then step."""
        self.replica.advance()
        if x is None:  # the last step left the average of all there
            self.replica.optimizer.zero_grad(set_to_none=True)
        loss = self.replica.backward(x, y) if x is not None else None
        self.replica.densify()
        self.rounds.average_gradients([float(size) for size in sizes])
        self.replica.clip()
        if self.divided is not None:
            self.divided.step()
        else:
            self.replica.optimizer.step()
        return loss

    def after_step(self, step: int) -> None:
        """Do nothing: the gradients were mixed."""
