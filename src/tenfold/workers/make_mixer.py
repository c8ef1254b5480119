"""From the experiment's division to the mixer that carries it out."""

from typing import TypeVar

from tenfold.experiment import Division
from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.builders import make_compressor, make_outer, make_strategy
from tenfold.training import Replica
from tenfold.workers.asynchronous_mixer import AsynchronousMixer
from tenfold.workers.channels import Channels
from tenfold.workers.mixer import GradientMixer, Mixer, RoundMixer
from tenfold.workers.rounds import Mixed, Rounds


def can_capture(division: Division) -> bool:
    """Say whether a replica's steps may be captured whole: rounds then touch nothing but its weights."""
    plain = division.average == "weights" and division.optimizer_state == "local"
    return plain and not make_strategy(division).asynchronous


def make_mixer(division: Division, replica: Replica, links: Channels, samples: list[float]) -> Mixer:
    """Return what mixes this replica with the others."""
    strategy = make_strategy(division)
    if isinstance(strategy, AsynchronousStrategy):
        return AsynchronousMixer(strategy, replica, links, samples)
    kind = RoundMixer if division.average == "weights" else GradientMixer
    return make_rounds(division, replica, links, samples, kind)


R = TypeVar("R", bound=Rounds)


def make_rounds(division: Division, replica: Mixed, links: Channels, samples: list[float], kind: type[R]) -> R:
    """Return the rounds of a replica, of the kind that its driver needs."""
    size = replica.flat.parameters if division.average == "weights" else sum(p.numel() for p in replica.learning)
    strategy, outer, compressor = make_strategy(division), make_outer(division), make_compressor(division, size)
    return kind(division, strategy, outer, compressor, replica, links, samples)
