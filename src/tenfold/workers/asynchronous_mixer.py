"""Mixing without rounds: each worker exchanges with a centre or a partner at its own pace."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.round import exact_round
from tenfold.mixing.strategies.ad_psgd import ADPSGD
from tenfold.mixing.strategies.downpour import Downpour
from tenfold.mixing.strategies.easgd import EASGD
from tenfold.training import Replica
from tenfold.workers.channels import Channels
from tenfold.workers.mixer import Mixer

CENTRE = -1


class AsynchronousMixer(Mixer):
    """Common to all: staleness is how often others changed what this worker works on since it last looked."""

    def __init__(self, strategy: AsynchronousStrategy, replica: Replica, links: Channels, samples: list[float]) -> None:
        self.strategy = strategy
        self.replica = replica
        self.links = links
        self.samples = samples
        self.rank, self.size = links.weights.rank, links.weights.size
        self.staleness: list[float] = []
        self.nbytes = replica.flat.vector.nbytes
        self._seen = 0.0
        if strategy.has_centre and self.rank == 0:
            links.centre[0].copy_(replica.flat.vector)

    def consensus(self) -> None:
        """Take the mean of all replicas; of the parameters, the centre's where there is one."""
        flat = self.replica.flat
        flat.to_moments()
        self.links.weights.mix(exact_round(self.size), self.samples)
        flat.to_variances(alike=True)
        if self.strategy.has_centre:
            flat.vector[: flat.parameters].copy_(self.links.centre[0, : flat.parameters])

    def _met_centre(self) -> None:
        """Note how stale this worker's view of the centre was, and that it has changed it."""
        versions = self.links.versions
        self.staleness.append(float(versions[self.size] - self._seen))
        versions[self.size] += 1
        self._seen = float(versions[self.size])

    def state(self) -> dict[str, Any]:
        """Return the centre, which rank 0 keeps for all."""
        centre = self.links.centre.clone() if self.rank == 0 and self.strategy.has_centre else None
        return {"centre": centre, "bytes_moved": self.bytes_moved}

    def load(self, state: dict[str, Any]) -> None:
        """Take on a saved state."""
        if state["centre"] is not None:
            self.links.centre.copy_(state["centre"])
        self.bytes_moved = state["bytes_moved"]


class DownpourMixer(AsynchronousMixer):
    """Pushes accrued gradients to the centre and fetches its weights."""

    def __init__(self, strategy: AsynchronousStrategy, replica: Replica, links: Channels, samples: list[float]) -> None:
        super().__init__(strategy, replica, links, samples)
        self.rule = cast(Downpour, strategy)
        self.accrued = torch.zeros_like(replica.flat.vector[: replica.flat.parameters])

    def step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:
        """Take a local step and add its gradient to what is pushed next."""
        loss = super().step(x, y, sizes)
        if loss is not None:
            self.replica.flat.add_gradients(self.accrued)
        return loss

    def mix(self, step: int) -> None:
        """Push and fetch when it is time."""
        flat, parameters = self.replica.flat, self.replica.flat.parameters
        pushes, fetches = self.rule.pushes(step), self.rule.fetches(step)
        if not pushes and not fetches:
            return
        with self.links.holding(CENTRE):
            centre = self.links.centre[:, :parameters]
            if pushes:
                self.rule.server_update(centre[0], self.accrued, centre[1])
                self._met_centre()
            if fetches:
                flat.vector[:parameters].copy_(centre[0])
                self._seen = float(self.links.versions[self.size])
        if pushes:
            self.accrued.zero_()
        self.bytes_moved += self.nbytes * (pushes + fetches)

    def state(self) -> dict[str, Any]:
        """Return also the gradients that were not pushed yet."""
        return super().state() | {"accrued": self.accrued}

    def load(self, state: dict[str, Any]) -> None:
        """Take on a saved state."""
        super().load(state)
        self.accrued.copy_(state["accrued"])


class ElasticMixer(AsynchronousMixer):
    """A spring between the replica and the centre."""

    def mix(self, step: int) -> None:
        """Let replica and centre pull at each other when it is time."""
        rule, parameters = cast(EASGD, self.strategy), self.replica.flat.parameters
        if not rule.exchanges(step):
            return
        with self.links.holding(CENTRE):
            rule.exchange(self.replica.flat.vector[:parameters], self.links.centre[0, :parameters], self.size)
            self._met_centre()
        self.bytes_moved += 2 * self.nbytes


class PairMixer(AsynchronousMixer):
    """Averages with a random partner, whatever that one is doing; gradients are computed without the lock."""

    def step(self, x: Any, y: Any, sizes: Sequence[int]) -> Tensor | None:  # noqa: ARG002
        """Compute a gradient on weights that a partner may change meanwhile, then apply it to what they are now."""
        replica, versions = self.replica, self.links.versions
        replica.advance()
        if x is None:
            return None
        before = float(versions[self.rank])
        loss = replica.backward(x, y)
        replica.clip()
        with self.links.holding(self.rank):
            replica.optimizer.step()
            self.staleness.append(float(versions[self.rank]) - before)
        return loss

    def mix(self, step: int) -> None:
        """Ask a partner, if it is this rank's part to ask."""
        rule = cast(ADPSGD, self.strategy)
        partner = rule.partner(self.rank, step, self.size)
        if partner is None:
            return
        parameters = self.replica.flat.parameters
        with self.links.holding(self.rank, partner):
            rule.exchange(self.replica.flat.vector[:parameters], self.links.replicas[partner, :parameters])
            self.links.versions[partner] += 1
        self.bytes_moved += 2 * self.nbytes


MIXERS: dict[str, type[AsynchronousMixer]] = {
    "downpour": DownpourMixer,
    "easgd": ElasticMixer,
    "ad-psgd": PairMixer,
}
