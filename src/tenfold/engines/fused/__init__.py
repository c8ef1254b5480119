"""Many replicas on one device: the folds of a cross-validation, or the workers of one task."""

from collections.abc import Sequence

from tenfold.engines.fused.fold_training import FoldTraining
from tenfold.engines.fused.fused_training import on_device
from tenfold.engines.fused.replica_training import ReplicaTraining
from tenfold.engines.recording import Outcome
from tenfold.errors import TenfoldError
from tenfold.runs import Emit, Stopwatch
from tenfold.runs.checkpoint import Resumption
from tenfold.workers.task import Task

__all__ = ["train_folds", "train_replicas"]


def train_replicas(task: Task, stopwatch: Stopwatch, emit: Emit, resumption: Resumption | None = None) -> Outcome:
    """Train all replicas of one task on one device, with their rounds."""
    with on_device(task):
        return ReplicaTraining(task, stopwatch, emit, resumption).train()


def train_folds(tasks: Sequence[Task], stopwatch: Stopwatch, emits: Sequence[Emit]) -> list[Outcome | TenfoldError]:
    """Train independent tasks together on one device: same model and settings, different samples of one data set.

    The workers of a task average in rounds, and its events go to its own `emit`. A task that fails has its error in
    place of an outcome. The seconds of each are those of all, as they share the device.
    """
    with on_device(tasks[0]):
        return FoldTraining(tasks, stopwatch, emits).train()
