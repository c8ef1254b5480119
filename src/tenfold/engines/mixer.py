"""Mixing in the course of training: when a round is due, and what happens to a replica in it."""

from typing import Any

from tenfold.errors import ExperimentError
from tenfold.experiment import Division
from tenfold.mixing import STRATEGIES, Strategy, due
from tenfold.training import Replica
from tenfold.transport import Transport


def make_member(kind: str, family: Any, name: str, options: dict[str, Any], *args: Any) -> Any:
    """Return the named member of a family with its options, or say which options it has."""
    member = family[name]
    try:
        return member(*args, **options)
    except TypeError:
        known = [field for field in getattr(member, "__dataclass_fields__", {}) if field not in ("size", "error")]
        raise ExperimentError(
            f"division.{kind}_options = {options}: {name} has the options {', '.join(known) or 'none'}"
        ) from None


class Mixer:
    """Carries out the strategy's rounds on one replica."""

    def __init__(self, division: Division, replica: Replica, transport: Transport, samples: list[float]) -> None:
        self.division = division
        self.replica = replica
        self.transport = transport
        self.samples = samples
        self.strategy: Strategy = make_member("strategy", STRATEGIES, division.strategy, division.strategy_options)
        self.rounds = 0

    def due(self, step: int) -> bool:
        """Say whether a round follows this step, counted from 1."""
        return due(step, self.division.sync_every, self.division.local_after)

    def mix(self) -> None:
        """Carry out the next round."""
        self._apply(self.strategy.round(self.rounds, self.transport.size))
        self.rounds += 1

    def consensus(self) -> None:
        """Give the replica the mean of all, which is the result of the run so far."""
        self._apply(self.strategy.final(self.transport.size))

    def _apply(self, round_: Any) -> None:
        if round_.is_idle:
            return
        self.replica.flat.to_moments()
        self.transport.mix(round_, self.samples)
        self.replica.flat.to_variances()

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"rounds": self.rounds}

    def load(self, state: dict[str, Any]) -> None:
        """Take on a saved state."""
        self.rounds = state["rounds"]
