"""Rounds that take place while the replicas compute their next step."""

from typing import Any

import torch
from torch import Tensor, nn

from tenfold.mixing import Round
from tenfold.workers.rounds import ReplicaRounds

SECOND_MOMENT = "exp_avg_sq"
"""The name under which torch's optimizers keep averages of squared gradients, of which they take the root."""


class OverlappedRounds(ReplicaRounds):
    """The rounds of one replica, each of which begins after one step and ends after the next.

    With the weights x_i(t) of worker i after step t and the matrix M of the round that begins then,

        x_i(t+1) = x_i(t) + (what step t+1 adds) + (sum over j of M_ij x_j(t)) - x_i(t)

    which keeps the mean (D-PSGD, Lian et al. 2017). Workers read the weights that others had before the step, so that
    none waits for one that is at most a step behind. Where momenta are averaged, it is done in the same way.
    """

    _begun = False
    """Whether a round has begun and not ended."""
    _reference_means: list[Tensor]
    """Those of the second moments that were published in it, see `training/batch_norm.py`."""
    _momenta: list[tuple[nn.Parameter, str]]
    """The optimizer's state that was published in it: of which parameters, and under which names."""

    def end_overlapped(self) -> None:
        """End the round that began after the previous step, if one did."""
        if self._begun:
            self._end()

    def average_weights(self) -> None:
        """Begin the next round; it ends after the next step."""
        round_ = self.begin()(self.channels.transport.size)
        if not round_.is_idle:
            self._begin(round_)

    def _begin(self, round_: Round) -> None:
        flat, state = self.replica.flat, self.replica.optimizer.state
        self._reference_means = [reference.clone() for reference in flat.batch_norm.reference_means]
        self._momenta = self._find_momenta()
        own = flat.vector.clone() if self._reference_means else flat.vector
        flat.batch_norm.variances_to_moments()
        momenta = [state[owner][name] for owner, name in self._momenta]
        self._publish(round_, [flat.vector, *momenta, self._digest(self._momenta)])
        flat.vector.copy_(own)
        self._count_bytes(round_, flat.vector.nbytes)

    def _publish(self, round_: Round, vectors: list[Tensor]) -> None:
        assert self.channels.published is not None, "the channels have no room for overlapped rounds"
        self.channels.published.publish(vectors, round_, self.samples)
        self._begun = True

    def _end(self) -> None:
        assert self.channels.published is not None
        flat, state = self.replica.flat, self.replica.optimizer.state
        momenta = [state[owner][name] for owner, name in self._momenta]
        sizes = [flat.vector.numel(), *(momentum.numel() for momentum in momenta)]
        collected = self.channels.published.collect()
        self._check_digest(collected[sum(sizes) :])  # older checkpoints have none
        added, *others = torch.split(collected[: sum(sizes)], sizes)
        flat.batch_norm.variances_to_moments(self._reference_means)
        flat.vector.add_(added)
        flat.batch_norm.moments_to_variances(self._reference_means, replicas_are_equal=False)
        for (_, name), momentum, other in zip(self._momenta, momenta, others, strict=True):
            momentum.add_(other.view_as(momentum))
            if name == SECOND_MOMENT:
                momentum.clamp_(min=0)  # the step may have made it smaller than what the round subtracts
        if self.measure_distance:
            self.distance_from_mean = float(added[: flat.parameters].norm() / self.parameters.norm().clamp_min(1e-30))
            self.measure_distance = False
        self._begun = False

    def _find_momenta(self) -> list[tuple[nn.Parameter, str]]:
        return super()._find_momenta() if self.division.optimizer_state == "average" else []

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, including what was published in a round that has not ended."""
        begun = None
        if self._begun and self.channels.published is not None:
            begun = {"published": self.channels.published.own, "centres": self._reference_means}
        return super().state() | {"begun": begun}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a saved state; all workers do so, and publish again what they had published."""
        super().load(state)
        if state["begun"] is not None:
            round_ = self.strategy.round(self.count - 1, self.channels.transport.size)
            self._publish(round_, [state["begun"]["published"]])
            self._reference_means = state["begun"]["centres"]
            self._momenta = self._find_momenta()
