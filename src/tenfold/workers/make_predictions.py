"""The outputs of a task's network on a part, in the form in which they are stored."""

import numpy as np
from torch import Tensor

from tenfold.runs.predictions import Predictions
from tenfold.training.measures import output_kind
from tenfold.workers.task import Task


def make_predictions(task: Task, part: str, outputs: Tensor, targets: Tensor) -> Predictions:
    """Return outputs and targets of all samples of a part ("test", "validation") with the numbers of the samples."""
    numbers = task.splits.numbers.get(part)
    kind = output_kind(task.experiment.training, task.splits.classes)
    return Predictions(
        part,
        kind if outputs.ndim > 1 or kind != "classes" else "numbers",
        np.arange(len(outputs)) if numbers is None else numbers,
        outputs.cpu().numpy(),
        targets.cpu().numpy(),
    )
