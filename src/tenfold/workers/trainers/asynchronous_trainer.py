"""Training without rounds: each worker exchanges with a centre or a partner at its own pace."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.exchange import CENTRE, Exchange, ExchangeVectors
from tenfold.mixing.round import exact_round
from tenfold.training import Replica
from tenfold.workers.channels import Channels
from tenfold.workers.trainers.trainer import Trainer


class AsynchronousTrainer(Trainer):
    """Lets every replica step by its own gradients, and carries out the exchanges that an asynchronous strategy states.

    Staleness is the number of changes that others have made since this worker last read: to the centre or, where
    workers exchange with one another, to its own weights.
    """

    bytes_moved: float = 0.0

    def __init__(
        self, strategy: AsynchronousStrategy, replica: Replica, channels: Channels, samples: list[float]
    ) -> None:
        assert channels.exchange_memory is not None, "the channels have no memory for exchanges"
        self.strategy = strategy
        self.replica = replica
        self.transport = channels.transport
        self.memory = channels.exchange_memory
        self.samples = samples
        self.rank, self.size = channels.transport.rank, channels.transport.size
        self.staleness: list[float] = []
        self.nbytes = replica.flat.vector.nbytes
        parameters = replica.flat.vector[: replica.flat.parameters]
        self.gradients = torch.zeros_like(parameters if strategy.sends_gradients else parameters[:0])
        self._seen = 0.0
        if strategy.has_centre and self.rank == 0:
            self.memory.centre[0].copy_(replica.flat.vector)

    def train_step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:
        """Train on one batch, and return its loss."""
        loss = super().train_step(x, y, sizes) if self.strategy.has_centre else self._train_step_among_partners(x, y)
        if loss is not None and self.strategy.sends_gradients:
            self.replica.flat.add_gradients(self.gradients)
        return loss

    def _train_step_among_partners(self, x: Any, y: Any) -> Tensor | None:
        """Compute a gradient on weights that a partner may change meanwhile, then apply it to what they are now."""
        replica, versions = self.replica, self.memory.versions
        replica.advance()
        if x is None:
            return None
        before = float(versions[self.rank])
        loss = replica.backward(x, y)
        replica.clip()
        with self.memory.holding(self.rank):
            replica.optimizer.step()
            self.staleness.append(float(versions[self.rank]) - before)
        return loss

    def average_weights_if_due(self, step: int) -> None:
        """Exchange weights or gradients with the centre or a partner, if the strategy does so after this step."""
        exchange = self.strategy.exchange(self.rank, step, self.size)
        if exchange is None:
            return
        centred = exchange.partner == CENTRE
        with self.memory.holding(*((CENTRE,) if centred else (self.rank, exchange.partner))):
            self.strategy.apply(exchange, self._vectors(exchange), self.size)
            if centred:
                self._note_centre(exchange)
            else:
                self.memory.versions[exchange.partner] += 1
        if exchange.sends:
            self.gradients.zero_()
        self.bytes_moved += self.nbytes * (exchange.sends + exchange.receives)

    def _vectors(self, exchange: Exchange) -> ExchangeVectors:
        flat, memory, parameters = self.replica.flat, self.memory, self.replica.flat.parameters
        mine = flat.vector[:parameters]
        if exchange.partner == CENTRE:
            centre = memory.centre[:, :parameters]
            return ExchangeVectors(mine, centre[0], self.gradients, centre[1])
        return ExchangeVectors(mine, memory.replicas[exchange.partner, :parameters], self.gradients, mine[:0])

    def _note_centre(self, exchange: Exchange) -> None:
        """Record how stale this worker's view of the centre was, and that the worker has changed it."""
        versions = self.memory.versions
        if exchange.sends:
            self.staleness.append(float(versions[self.size] - self._seen))
            versions[self.size] += 1
        self._seen = float(versions[self.size])

    def take_staleness(self) -> list[float]:
        """Return the staleness of the exchanges since the last call."""
        taken, self.staleness = self.staleness, []
        return taken

    def use_mean_of_replicas(self) -> None:
        """Replace the replica's weights by the mean of all; its parameters by the centre's where there is one."""
        flat = self.replica.flat
        flat.batch_norm.variances_to_moments()
        self.transport.mix(exact_round(self.size), self.samples)
        flat.batch_norm.moments_to_variances(replicas_are_equal=True)
        if self.strategy.has_centre:
            flat.vector[: flat.parameters].copy_(self.memory.centre[0, : flat.parameters])

    def state(self) -> dict[str, Any]:
        """Return the centre, which rank 0 keeps for all, and the gradients that were not sent yet."""
        centre = self.memory.centre.clone() if self.rank == 0 and self.strategy.has_centre else None
        state = {"centre": centre, "bytes_moved": self.bytes_moved}
        return state | {"accrued": self.gradients} if self.strategy.sends_gradients else state

    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        if state["centre"] is not None:
            self.memory.centre.copy_(state["centre"])
        self.bytes_moved = state["bytes_moved"]
        if self.strategy.sends_gradients:
            self.gradients.copy_(state["accrued"])
