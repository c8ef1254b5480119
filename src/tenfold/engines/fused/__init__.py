"""Many replicas on one device: the folds of a cross-validation, or the nodes of a divided training."""

from collections.abc import Sequence

from tenfold.engines.base import Outcome
from tenfold.engines.fused.folds import FoldTraining
from tenfold.engines.fused.nodes import NodeTraining
from tenfold.engines.fused.setup import on_device
from tenfold.errors import TenfoldError
from tenfold.runs import Clock, Emit
from tenfold.runs.resumption import Resumption
from tenfold.workers.task import Task

__all__ = ["train_folds", "train_nodes"]


def train_nodes(task: Task, clock: Clock, emit: Emit, resumption: Resumption | None = None) -> Outcome:
    """Train the replicas of one task, all on one device, with their rounds."""
    with on_device(task):
        return NodeTraining(task, clock, emit).train(resumption)


def train_folds(tasks: Sequence[Task], clock: Clock, emits: Sequence[Emit]) -> list[Outcome | TenfoldError]:
    """Train independent tasks of one worker each side by side on one device: same model, other samples of one data set.

    Each is told of by its own `emit`. A task that fails has its error in the place of its outcome, and the others go
    on. The seconds of each are those of all: they share the device.
    """
    with on_device(tasks[0]):
        return FoldTraining(tasks, clock, emits).train()
