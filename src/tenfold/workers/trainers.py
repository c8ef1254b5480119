"""Trainers: how a worker combines its optimizer steps with averaging.

For every batch, `Worker` calls `train_step` and then `average_weights_if_due` of its trainer:

| trainer                    | `train_step`                                    | `average_weights_if_due`            |
|----------------------------|-------------------------------------------------|-------------------------------------|
| `GradientAveragingTrainer` | backward, average gradients, optimizer's step   | nothing: all weights are equal      |
| `WeightAveragingTrainer`   | backward, optimizer's step (`Replica.step`)     | a round of all, every `sync_every`  |
| `AsynchronousTrainer`      | the same                                        | an exchange with one partner        |
| `SandblasterTrainer`       | an iteration of L-BFGS, divided among all       | nothing: all weights are equal      |

By default gradients are averaged (see `with_defaults` in `experiment/experiment.py`). A single worker has a
`WeightAveragingTrainer` whose rounds do nothing.

Averaging has three layers: `average_gradients` or `average_weights` of `ReplicaRounds` carries out the whole round
(compression, the outer optimizer, the optimizer's state), `Channels.run_round` chooses the participating workers, and
`Transport.mix` averages their vectors.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.round import CENTER, Exchange, ExchangeVectors, exact_round
from tenfold.training import Replica
from tenfold.training.stacked_replicas import ReplicaRows
from tenfold.workers.channels import Channels
from tenfold.workers.rounds import ReplicaRounds, Rounds, StackedRounds, share_orthogonalization
from tenfold.workers.task import Mixing, Task


class Trainer(ABC):
    """Trains one worker's replica, batch by batch, together with the other workers."""

    replica: Replica | ReplicaRows

    @property
    @abstractmethod
    def bytes_moved(self) -> float:
        """The bytes that this worker has sent so far, as on a network.

        Writes of divided steps (`SharedOrthogonalization`) do not count, because the same run on a cluster has none.
        """

    def batches(self, task: Task, replicas: Sequence[int], epoch: int, done: int) -> Iterator[tuple[Any, Any]]:
        """Yield the arguments of `train_step` for each step of an epoch after the first `done`, for these replicas."""
        size = task.experiment.training.samples_per_step
        visits = [task.visits(replica, epoch) for replica in replicas]
        return self.replica.batches([(part, order[done * size :]) for part, order in visits], size)

    def failed_batch(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return the samples and targets on which `train_step` failed, given its batch."""
        return x, y

    def train_step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:  # noqa: ARG002
        """Train on one batch, and return its loss; without a batch (x is None) only the learning rate advances.

        `sizes` are the numbers of samples of all workers in this step, 0 for those without samples left.
        """
        if x is not None:
            return self.replica.step(x, y)
        self.replica.begin_step()  # the learning rate depends on the step of the run, not of the shard
        return None

    @abstractmethod
    def average_weights_if_due(self, step: int) -> None:
        """Average the weights with the other workers, if a round is due after this step of the run, counted from 1."""

    @abstractmethod
    def use_mean_of_replicas(self) -> None:
        """Replace the replica's weights by the mean of all replicas."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state for a resumed run."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""

    def take_staleness(self) -> list[float]:
        """Return the staleness of the weights in each exchange since the last call; empty with rounds."""
        return []

    def take_distances_from_mean(self) -> list[float]:
        """Return |x - mean| / |mean| of each replica's weights x before a round since the last call, the "spread"."""
        return []


class WeightAveragingTrainer(Trainer):
    """Every replica steps with its own gradients, and rounds average the weights of all after the same step."""

    def __init__(self, replica: Replica | ReplicaRows, rounds: Rounds) -> None:
        self.replica = replica
        self.rounds = rounds

    @property
    def bytes_moved(self) -> float:
        """The bytes that this worker has sent in rounds; for several replicas, the maximum."""
        return max(self.rounds.bytes_moved)

    def average_weights_if_due(self, step: int) -> None:
        if self.rounds.is_due(step):
            self.rounds.average_weights()

    def take_distances_from_mean(self) -> list[float]:
        return self.rounds.take_distances_from_mean()

    def use_mean_of_replicas(self) -> None:
        self.rounds.use_mean_of_replicas()

    def state(self) -> dict[str, Any]:
        return self.rounds.state()

    def load(self, state: dict[str, Any]) -> None:
        self.rounds.load(state)


class GradientAveragingTrainer(WeightAveragingTrainer):
    """Averages gradients before every step, weighted by batch sizes; the weights of all workers stay equal."""

    def __init__(self, replica: Replica | ReplicaRows, rounds: Rounds) -> None:
        super().__init__(replica, rounds)
        self.shared_orthogonalization = share_orthogonalization(replica, rounds.channels, rounds.strategy)

    def train_step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:
        """Compute this worker's gradient, average it with the others', then step."""
        self.replica.begin_step()
        if x is None and isinstance(self.replica, Replica):  # the average of the last step is still there
            self.replica.optimizer.zero_grad(set_to_none=True)
        loss = self.replica.backward(x, y) if x is not None else None
        self.replica.densify()
        self.rounds.average_gradients([float(size) for size in sizes])
        self.replica.clip()
        if self.shared_orthogonalization is not None:
            self.shared_orthogonalization.step()
        else:
            self.replica.update()
        return loss

    def average_weights_if_due(self, step: int) -> None:
        """Do nothing: after averaging gradients, all replicas have the same weights."""


def make_trainer(
    task: Task, replica: Replica | ReplicaRows, channels: Channels, mark: Callable[[], None], *, may_draw: bool
) -> Trainer:
    """Return the trainer of a worker's replicas.

    `mark` is called after each part of a long step; `may_draw` says whether steps may draw random numbers.
    """
    if isinstance(replica, Replica) and task.experiment.training.optimizer_traits.steps_with_all_workers:
        from tenfold.workers.sandblaster import SandblasterTrainer  # its base class is in this file

        return SandblasterTrainer(task, replica, channels, mark, seeds=may_draw)
    return make_averaging_trainer(task.mixing, replica, channels, [float(len(shard)) for shard in task.shards])


def make_averaging_trainer(
    mixing: Mixing, replica: Replica | ReplicaRows, channels: Channels, samples: list[float]
) -> Trainer:
    """Return a trainer that averages gradients or weights; `samples` are the sizes of all shards."""
    if isinstance(replica, ReplicaRows):
        by_gradients = replica.stacked.gradients_only
        rounds: Rounds = StackedRounds(mixing, replica, channels, samples)
        return GradientAveragingTrainer(replica, rounds) if by_gradients else WeightAveragingTrainer(replica, rounds)
    if isinstance(mixing.strategy, AsynchronousStrategy):
        return AsynchronousTrainer(mixing.strategy, replica, channels, samples)
    kind = GradientAveragingTrainer if mixing.parallel.average == "gradients" else WeightAveragingTrainer
    return kind(replica, ReplicaRounds(mixing, replica, channels, samples))


def can_capture(mixing: Mixing) -> bool:
    """Return whether whole steps may be captured in a graph, because rounds change only the weights."""
    parallel = mixing.parallel
    plain = parallel.average != "gradients" and parallel.optimizer_state not in ("average", "reset")
    return plain and not mixing.strategy.asynchronous


class AsynchronousTrainer(Trainer):
    """Every replica steps with its own gradients, and carries out the exchanges of an asynchronous strategy.

    Staleness is the number of changes by others since this worker's last read: of the center or, if workers exchange
    directly, of its own weights.
    """

    replica: Replica
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
        self.parameters = replica.flat.parameters
        parameters = replica.flat.vector[: self.parameters]
        self.gradients = torch.zeros_like(parameters if strategy.sends_gradients else parameters[:0])
        self._seen = 0.0
        if strategy.has_center and self.rank == 0:
            self.memory.center[0].copy_(replica.flat.vector)

    def train_step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:
        loss = super().train_step(x, y, sizes) if self.strategy.has_center else self._train_step_among_partners(x, y)
        if loss is not None and self.strategy.sends_gradients:
            self.replica.flat.add_gradients(self.gradients)
        return loss

    def _train_step_among_partners(self, x: Any, y: Any) -> Tensor | None:
        """Compute a gradient, and apply it to the current weights, which a partner may have changed in the meantime."""
        replica, versions = self.replica, self.memory.versions
        replica.begin_step()
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
        """Exchange weights or gradients with the center or a partner, if due after this step."""
        exchange = self.strategy.exchange(self.rank, step, self.size)
        if exchange is None:
            return
        if exchange.partner == CENTER:
            self._exchange_with_center(exchange)
        else:
            with self.memory.holding(self.rank, exchange.partner):
                self.strategy.apply(exchange, self._vectors(exchange, slice(self.parameters)), self.size)
                self.memory.versions[exchange.partner] += 1
        if exchange.sends:
            self.gradients.zero_()
        self.bytes_moved += self.nbytes * (exchange.sends + exchange.receives)

    def _exchange_with_center(self, exchange: Exchange) -> None:
        """Exchange with the servers of the center one after another; each has a part of it and a lock."""
        servers = self.strategy.center_parts
        for turn in range(servers):
            server = (self.rank + turn) % servers
            part = slice(self.parameters * server // servers, self.parameters * (server + 1) // servers)
            with self.memory.holding(self.size + server):
                self.strategy.apply(exchange, self._vectors(exchange, part), self.size)
                if not turn:
                    self._note_center(exchange)

    def _vectors(self, exchange: Exchange, part: slice) -> ExchangeVectors:
        mine, gradients = self.replica.flat.vector[part], self.gradients[part]
        if exchange.partner == CENTER:
            return ExchangeVectors(mine, self.memory.center[0, part], gradients, self.memory.center[1, part])
        return ExchangeVectors(mine, self.memory.replicas[exchange.partner, part], gradients, mine[:0])

    def _note_center(self, exchange: Exchange) -> None:
        """Record the staleness of this worker's copy of the center, and that the worker has changed the center."""
        versions = self.memory.versions
        if exchange.sends:
            self.staleness.append(float(versions[self.size] - self._seen))
            versions[self.size] += 1
        self._seen = float(versions[self.size])

    def take_staleness(self) -> list[float]:
        staleness, self.staleness = self.staleness, []
        return staleness

    def use_mean_of_replicas(self) -> None:
        """Replace the replica's weights by the mean of all; if there is a center, the parameters by the center's."""
        flat = self.replica.flat
        flat.batch_norm.variances_to_moments()
        self.transport.mix(exact_round(self.size), self.samples)
        flat.batch_norm.moments_to_variances(replicas_are_equal=True)
        if self.strategy.has_center:
            flat.vector[: flat.parameters].copy_(self.memory.center[0, : flat.parameters])

    def state(self) -> dict[str, Any]:
        """Return the center, which rank 0 saves for all, and the gradients not sent yet."""
        center = self.memory.center.clone() if self.rank == 0 and self.strategy.has_center else None
        state = {"center": center, "bytes_moved": self.bytes_moved}
        return state | {"accrued": self.gradients} if self.strategy.sends_gradients else state

    def load(self, state: dict[str, Any]) -> None:
        if state["center"] is not None:
            self.memory.center.copy_(state["center"])
        self.bytes_moved = state["bytes_moved"]
        if self.strategy.sends_gradients:
            self.gradients.copy_(state["accrued"])
