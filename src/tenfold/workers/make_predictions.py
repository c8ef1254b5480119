"""The outputs of a task's network on a part, in the form in which they are stored."""

from typing import Any

import numpy as np
from torch import Tensor

from tenfold.runs.predictions import Predictions
from tenfold.training.measures import output_kind
from tenfold.training.network_call import find_main_output
from tenfold.workers.task import Task


def make_predictions(task: Task, part: str, outputs: Any, targets: Tensor) -> Predictions | None:
    """Return outputs and targets of all samples of a part ("test", "validation") with the numbers of the samples.

    Of several outputs it is the main one; None where there is no such.
    """
    main = find_main_output(outputs)
    if main is None:
        return None
    numbers = task.splits.numbers.get(part)
    kind = output_kind(task.experiment.training, task.splits.classes)
    return Predictions(
        part,
        kind if main.ndim > 1 or kind != "classes" else "numbers",
        np.arange(len(main)) if numbers is None else numbers,
        main.cpu().numpy(),
        targets.cpu().numpy(),
    )
