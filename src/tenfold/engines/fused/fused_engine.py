"""All replicas of a task in this process, which step together on one device."""

from tenfold.engines.base import Engine
from tenfold.engines.fused.fused_training import on_device
from tenfold.engines.fused.replica_training import ReplicaTraining
from tenfold.engines.recording import Outcome
from tenfold.runs import Emit, Stopwatch
from tenfold.runs.checkpoint import Resumption
from tenfold.workers.task import Task


class FusedEngine(Engine):
    """Trains several workers on one GPU, or on the CPU if requested."""

    name = "fused"

    def run(self, task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
        """Train to the end."""
        return train_replicas(task, stopwatch, emit, resumption)


def train_replicas(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
    """Train all replicas of one task on one device, with their rounds."""
    with on_device(task):
        return ReplicaTraining(task, stopwatch, emit, resumption).train()
