"""Makes the trainer that an experiment's division asks for."""

from tenfold.experiment import Division
from tenfold.mixing import AsynchronousStrategy
from tenfold.mixing.builders import make_compressor, make_outer, make_strategy
from tenfold.training import Replica
from tenfold.workers.channels import Channels
from tenfold.workers.trainers.asynchronous_trainer import AsynchronousTrainer
from tenfold.workers.trainers.overlapped_rounds import OverlappedRounds
from tenfold.workers.trainers.replica_rounds import AveragedReplica, Rounds
from tenfold.workers.trainers.trainer import GradientAveragingTrainer, Trainer, WeightAveragingTrainer


def can_capture(division: Division) -> bool:
    """Return whether whole steps may be captured in a graph, because rounds change nothing but the weights."""
    plain = division.average != "gradients" and division.optimizer_state not in ("average", "reset")
    return plain and not make_strategy(division).asynchronous


def make_trainer(division: Division, replica: Replica, channels: Channels, samples: list[float]) -> Trainer:
    """Return what trains this replica together with the others; `samples` are the sizes of all workers' shards."""
    strategy = make_strategy(division)
    if isinstance(strategy, AsynchronousStrategy):
        return AsynchronousTrainer(strategy, replica, channels, samples)
    kind = GradientAveragingTrainer if division.average == "gradients" else WeightAveragingTrainer
    return kind(replica, make_rounds(division, replica, channels, samples))


def make_rounds(division: Division, replica: AveragedReplica, channels: Channels, samples: list[float]) -> Rounds:
    """Return the rounds in which a replica is averaged with the others."""
    size = replica.flat.parameters if division.average != "gradients" else sum(p.numel() for p in replica.learning)
    strategy, outer, compressor = make_strategy(division), make_outer(division), make_compressor(division, size)
    kind = OverlappedRounds if division.overlap else Rounds
    return kind(division, strategy, outer, compressor, replica, channels, samples)
