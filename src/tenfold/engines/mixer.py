"""Mixing in the course of training: what rounds do to a replica, from the strategy to the optimizer's state."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tenfold.engines.links import Links
from tenfold.experiment import Division
from tenfold.mixing import Round, Strategy, due
from tenfold.mixing.compression import Compressor
from tenfold.mixing.outer import OuterOptimizer
from tenfold.training import Replica


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
    links: Links


class RoundMixer(Mixer):
    """Rounds in which all take part at the same step: weights are averaged."""

    def __init__(
        self,
        division: Division,
        strategy: Strategy,
        outer: OuterOptimizer,
        compressor: Compressor,
        replica: Replica,
        links: Links,
        samples: list[float],
    ) -> None:
        self.division = division
        self.strategy = strategy
        self.outer = outer
        self.compressor = compressor
        self.replica = replica
        self.links = links
        self.samples = samples
        self.size = links.weights.size
        self.rounds = 0
        self.parameters = replica.flat.vector[: replica.flat.parameters]
        self.outer_state = outer.start(self.parameters)
        self.reference = self.parameters.clone() if compressor.name != "none" else None
        self._bytes: dict[Round, int] = {}

    def mix(self, step: int) -> None:
        """Carry out the next round, if it is due."""
        if not due(step, self.division.sync_every, self.division.local_after):
            return
        round_ = self.strategy.round(self.rounds, self.size)
        self.rounds += 1
        if round_.is_idle:
            return
        nbytes = self._compress()
        self._apply(round_)
        self.outer.update(self.outer_state, self.parameters, n=self.size, lr=self.replica.rate)
        if self.reference is not None:
            self.reference.copy_(self.parameters)
        if self.division.optimizer_state != "local":
            self._mix_optimizer(round_)
        self._count(round_, nbytes)

    def consensus(self) -> None:
        """Take the mean of all replicas."""
        self._apply(self.strategy.final(self.size))

    def _compress(self) -> int:
        """Put what the others would decode in the place of the weights, and return its bytes."""
        if self.reference is None:
            return self.replica.flat.vector.nbytes
        packed = self.compressor.encode(self.parameters - self.reference)
        self.compressor.decode(packed, self.parameters)
        self.parameters.add_(self.reference)
        return packed.nbytes + self.replica.flat.vector.nbytes - self.parameters.nbytes

    def _apply(self, round_: Round) -> None:
        if round_.is_idle:
            return
        self.replica.flat.to_moments()
        self.links.weights.mix(round_, self.samples)
        self.replica.flat.to_variances(alike=round_.is_exact)

    def _mix_optimizer(self, round_: Round) -> None:
        optimizer = self.replica.optimizer
        if self.division.optimizer_state == "reset":
            optimizer.state.clear()
            return
        states = [optimizer.state[parameter] for parameter in self.replica.learning if parameter in optimizer.state]
        for key in states[0] if states else ():
            tensors = [state[key] for state in states if isinstance(state[key], Tensor) and state[key].ndim]
            if tensors:
                exchange(self.links, round_, tensors, self.samples)

    def _count(self, round_: Round, nbytes: int) -> None:
        self.bytes_moved += round_.bytes_per_worker(nbytes)[self.links.weights.rank]

    def state(self) -> dict[str, Any]:
        """Return rounds, outer momentum, and what compression has not sent yet."""
        return {
            "rounds": self.rounds,
            "outer": self.outer_state,
            "reference": self.reference,
            "error": self.compressor.error,
            "bytes_moved": self.bytes_moved,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take on a saved state."""
        self.rounds, self.outer_state = state["rounds"], state["outer"]
        self.reference, self.compressor.error = state["reference"], state["error"]
        self.bytes_moved = state["bytes_moved"]


class GradientMixer(RoundMixer):
    """Gradients are averaged before every step, weighted by the batches they come from; weights never differ."""

    def step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:
        """Average this worker's gradient with the others', then step."""
        replica, round_ = self.replica, self.strategy.round(self.rounds, self.size)
        replica.advance()
        loss = replica.backward(x, y) if x is not None else None
        for parameter in replica.learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in replica.learning if parameter.grad is not None]
        nbytes = self._compress_gradients(gradients) if not round_.is_idle else 0
        if not round_.is_idle:
            exchange(self.links, round_, gradients, [float(size) for size in sizes])
            self._count(round_, nbytes)
        replica.clip()
        replica.optimizer.step()
        self.rounds += 1
        return loss

    def mix(self, step: int) -> None:
        """Do nothing: the gradients were mixed."""

    def _compress_gradients(self, gradients: list[Tensor]) -> int:
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        packed = self.compressor.encode(flat)
        if self.compressor.name != "none":
            self.compressor.decode(packed, flat)
            for gradient, new in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
                gradient.copy_(new.view_as(gradient))
        return packed.nbytes


def exchange(links: Links, round_: Round, tensors: list[Tensor], weights: list[float]) -> None:
    """Mix tensors that are not part of the replica's flat state, in place, through the second transport."""
    buffer, start = links.second.buffer, 0
    for tensor in tensors:
        buffer[start : start + tensor.numel()].copy_(tensor.reshape(-1))
        start += tensor.numel()
    links.second.mix(round_, weights)
    start = 0
    for tensor in tensors:
        tensor.copy_(buffer[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
