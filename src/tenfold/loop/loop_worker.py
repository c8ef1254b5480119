"""Rounds among ranks whose training loops run independently.

Loops of different ranks may take different numbers of steps: a GradScaler skips one, a loader has a batch less. So
before a round everybody says which one it comes for, or that it is done. Those who are done join the rounds of the
others, and the end comes when all are done. That costs a gather of one number a round.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tenfold.errors import ExperimentError
from tenfold.experiment import Division
from tenfold.loop.loop_replica import LoopReplica
from tenfold.workers.channels import Channels
from tenfold.workers.trainers.replica_rounds import ReplicaRounds, average_tensors

DONE, FIRST_MEAN = -1.0, -2.0
"""Instead of the number of a round: the rank has left its block, or waits in the first block of its `mean()`."""


class LoopWorker:
    """One rank among the others."""

    def __init__(self, replica: LoopReplica, division: Division, channels: Channels, samples: float = 1.0) -> None:
        self.rank, self.size = channels.transport.rank, channels.transport.size
        self.steps = 0
        """Steps that the optimizer has taken."""
        self._means = 0
        self._channels = channels
        self._replica = replica
        self._gradients = division.average == "gradients"
        counts = self._agree(division, samples)
        channels.transport.broadcast()
        replica.flat.batch_norm.update_reference_means()
        self._rounds = ReplicaRounds(division, replica, channels, counts)

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return self._rounds.count

    @property
    def bytes_sent(self) -> int:
        """What this rank has sent in rounds, as a network would count it."""
        return int(self._rounds.bytes_moved)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Register hooks on the optimizer's steps."""
        optimizer = self._replica.optimizer
        hooks = [optimizer.register_step_post_hook(self._after_step)]
        if self._gradients:
            hooks.append(optimizer.register_step_pre_hook(self._before_step))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def mean(self) -> Iterator[None]:
        """Give the model the mean of all ranks for a while; every rank must enter, and gets its own weights back."""
        self._means += 1
        self._wait_for_all(FIRST_MEAN + 1 - self._means)
        vector = self._replica.flat.vector
        own = vector.clone()
        self._use_mean_of_ranks()
        try:
            yield
        finally:
            vector.copy_(own)

    def end(self) -> None:
        """Wait until all ranks are done, and take the mean of all."""
        self._wait_for_all(DONE)
        self._use_mean_of_ranks()

    @torch.no_grad()
    def _before_step(self, *_: Any) -> None:
        """Average the gradients."""
        if self._replica.skips:
            return
        self._replica.unscale()
        self._rounds.average_gradients(self._busy(self._announce(self._rounds.count)))

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        """Count the step, and average the weights if a round is due."""
        if self._replica.skips:
            return
        self.steps += 1
        if self._gradients or not self._rounds.is_due(self.steps):
            return
        if not self._rounds.upcoming.is_idle:
            self._announce(self._rounds.count)
        self._rounds.average_weights()

    def _announce(self, number: float) -> list[float]:
        """Tell the others which round this rank is ready for, and return the rounds of all ranks.

        The first rank that is not done sets the learning rate.
        """
        gathered = self._channels.transport.gather([number, self._replica.own_rate])
        self._replica.rate = next((rate for other, rate in gathered if other >= 0), self._replica.rate)
        return [other for other, _ in gathered]

    @torch.no_grad()
    def _wait_for_all(self, reason: float) -> None:
        """Join the rounds of the ranks that are not done yet; raise an error if they wait for something else then."""
        while max(numbers := self._announce(reason)) >= 0:
            self._rounds.count = int(max(numbers))
            if self._gradients:
                self._sit_out(self._busy(numbers))
            else:
                self._rounds.average_weights()
        odd = next((rank for rank, other in enumerate(numbers) if other != reason), None)
        if odd is not None:
            here, there = _describe_wait(reason), _describe_wait(numbers[odd])
            raise ExperimentError(
                f"rank {self.rank} {here}, but rank {odd} {there}; all ranks must enter `mean()` equally often: write "
                "`with ranks.mean():` around `if ranks.rank == 0:`, not inside it"
            )

    def _sit_out(self, samples: list[float]) -> None:
        """Join an average of gradients with weight 0."""
        self._channels.gradient_transport.buffer.zero_()
        average_tensors(self._channels, self._rounds.begin(), [], samples)

    @torch.no_grad()
    def _use_mean_of_ranks(self) -> None:
        """Take the mean of all; where gradients are averaged, of those that have taken every step."""
        if self._gradients:
            steps = [numbers[0] for numbers in self._channels.transport.gather([float(self.steps)])]
            self._rounds.use_mean_of_replicas([float(count == max(steps)) for count in steps])
        else:
            self._rounds.use_mean_of_replicas()

    def _busy(self, numbers: list[float]) -> list[float]:
        """Return the weight of each rank in a round, 0 for those that are done."""
        return [0.0 if number < 0 else count for number, count in zip(numbers, self._rounds.samples, strict=True)]

    def _agree(self, division: Division, samples: float) -> list[float]:
        """Return the weight of each rank; raise an error if the ranks have different settings."""
        if not 0 < samples < float("inf"):
            raise ExperimentError(f"samples is {samples}; it should be above 0")
        content = f"{division.model_dump_json()} {self._replica.flat.vector.numel()}"
        digest = int.from_bytes(hashlib.blake2b(content.encode(), digest_size=6).digest(), "big")
        gathered = self._channels.transport.gather([float(digest), samples])
        odd = [rank for rank, (other, _) in enumerate(gathered) if other != gathered[0][0]]
        if odd:
            raise ExperimentError(
                f"rank {odd[0]} averages another model than rank 0, or with other settings; "
                f"call tenfold.average with the same arguments on every rank"
            )
        return [count for _, count in gathered]


def _describe_wait(reason: float) -> str:
    return (
        "has left the block of tenfold.average" if reason == DONE else f"is in its `mean()` number {int(-reason) - 1}"
    )
