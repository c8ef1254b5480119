"""Builds the mixer that an experiment's division asks for."""

from tenfold.experiment import Division
from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.builders import make_compressor, make_outer, make_strategy
from tenfold.training import Replica
from tenfold.workers.channels import Channels
from tenfold.workers.mixers.asynchronous_mixer import AsynchronousMixer
from tenfold.workers.mixers.mixer import GradientMixer, Mixer, RoundMixer
from tenfold.workers.mixers.overlapped_rounds import OverlappedRounds
from tenfold.workers.mixers.replica_rounds import MixedReplica, Rounds


def can_capture(division: Division) -> bool:
    """Return whether whole steps may be captured in a graph, because rounds change nothing but the weights."""
    plain = division.average != "gradients" and division.optimizer_state not in ("average", "reset")
    return plain and not make_strategy(division).asynchronous


def make_mixer(division: Division, replica: Replica, channels: Channels, samples: list[float]) -> Mixer:
    """Return what mixes this replica with the others; `samples` are the sizes of all workers' shards."""
    strategy = make_strategy(division)
    if isinstance(strategy, AsynchronousStrategy):
        return AsynchronousMixer(strategy, replica, channels, samples)
    kind = GradientMixer if division.average == "gradients" else RoundMixer
    return kind(replica, make_rounds(division, replica, channels, samples))


def make_rounds(division: Division, replica: MixedReplica, channels: Channels, samples: list[float]) -> Rounds:
    """Return the rounds of a replica."""
    size = replica.flat.parameters if division.average != "gradients" else sum(p.numel() for p in replica.learning)
    strategy, outer, compressor = make_strategy(division), make_outer(division), make_compressor(division, size)
    kind = OverlappedRounds if division.overlap else Rounds
    return kind(division, strategy, outer, compressor, replica, channels, samples)
