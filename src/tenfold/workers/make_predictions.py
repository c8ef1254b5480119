"""The outputs of a task's network on a part, in the form in which they are stored."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tenfold.data.part import Part
from tenfold.runs.predictions import Predictions
from tenfold.training.measures import output_kind
from tenfold.training.network_call import find_main_output
from tenfold.workers.task import Task

MOST_PICTURES = 24
SIDES = range(6, 257)
"""The sides in pixels of samples that are taken for pictures."""


def make_predictions(task: Task, part: str, outputs: Any, targets: Tensor) -> Predictions | None:
    """Return outputs and targets of all samples of a part ("test", "validation") with the numbers of the samples.

    Of several outputs it is the main one; None if there is none.
    """
    main = find_main_output(outputs)
    if main is None:
        return None
    numbers = task.splits.numbers.get(part)
    kind = output_kind(task.experiment.training, task.splits.classes)
    made = Predictions(
        part,
        kind if main.ndim > 1 or kind != "classes" else "numbers",
        np.arange(len(main)) if numbers is None else numbers,
        main.cpu().numpy(),
        targets.cpu().numpy(),
    )
    samples: Part | None = getattr(task.splits, part)
    return made if samples is None or not _are_images(task.splits.shape) else _with_pictures(made, samples)


def _are_images(shape: Any) -> bool:
    """Return whether samples of this shape can be shown: [1 or 3, height, width], or [height, width]."""
    if not isinstance(shape, tuple) or not all(isinstance(side, int) for side in shape):
        return False  # several inputs
    channels, sides = (1, shape) if len(shape) == 2 else (shape[0], shape[1:]) if shape else (0, ())
    return channels in (1, 3) and len(sides) == 2 and all(side in SIDES for side in sides)


def _with_pictures(made: Predictions, samples: Part) -> Predictions:
    """Return the predictions with the most confident mistakes as pictures."""
    if made.kind != "classes" or made.targets.ndim != 1 or made.outputs.ndim != 2:
        return made
    wrong = np.flatnonzero(~made.right)
    worst = wrong[np.argsort(-made.confidences[wrong], kind="stable")][:MOST_PICTURES]
    if not len(worst):
        return made
    x, _ = next(iter(samples.batches([worst])))
    if not isinstance(x, Tensor) or not bool(x.isfinite().all()):
        return made
    return replace(made, worst=worst, pictures=_pictures(x.cpu().numpy()))


def _pictures(x: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return samples as pictures, from black at the lowest value of all to white at the highest."""
    values = x.astype(np.float64) if x.ndim == 4 else x.astype(np.float64)[:, None]
    low, high = float(values.min()), float(values.max())
    scaled = (values - low) / (high - low or 1.0) * 255
    return np.moveaxis(np.rint(scaled).astype(np.uint8), 1, -1)
