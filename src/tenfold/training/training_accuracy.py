"""The accuracy on training batches, from the outputs that the steps compute anyway."""

from typing import Any

import torch
from torch import Tensor

from tenfold.data.tree import find_main_output
from tenfold.experiment import Training
from tenfold.training.measures import Measure, choose_metrics

MOST_NUMBERS = 1 << 18
"""Outputs are compared with their targets when at most this many numbers are kept: 1 MB."""


class TrainingAccuracy:
    """Counts how many samples of the training batches were classified correctly, each before the step on its batch.

    The outputs are kept, and many batches are compared with their targets at once: batch by batch, the four operations
    would take up to 5% of a small network's step. A device is hardly ever waited for before `take` is called.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._numbers = 0
        self._sums: list[Tensor] = []
        self._samples = 0

    def keep(self, outputs: Any, targets: Any) -> None:
        """Keep the outputs of a batch; those that are not one tensor, or have no targets, do not count."""
        main = find_main_output(outputs)
        if main is None or not isinstance(targets, Tensor):
            return
        main = main.detach()
        if main.untyped_storage().nbytes() > 2 * main.nbytes:
            main = main.clone()  # a view would keep all that it is a part of
        self._kept.append((main, targets))
        self._numbers += main.numel()
        if self._numbers >= MOST_NUMBERS:
            self._compare()

    def take(self) -> tuple[float, int]:
        """Return how many samples were right and how many there were, since the last call."""
        self._compare()
        right = float(torch.stack(self._sums).cpu().double().sum()) if self._sums else 0.0
        samples, self._sums, self._samples = self._samples, [], 0
        return right, samples

    def _compare(self) -> None:
        if not self._kept:
            return
        kept, self._kept, self._numbers = self._kept, [], 0
        try:
            if len({(outputs.shape[1:], targets.shape[1:]) for outputs, targets in kept}) == 1:
                kept = [(torch.cat([one for one, _ in kept]), torch.cat([one for _, one in kept]))]
            for outputs, targets in kept:
                self._sums.append(self.measure(outputs, targets) * len(targets))
                self._samples += len(targets)
        except Exception:  # the evaluation reports what is wrong with it, if there is one
            return


def make_training_accuracy(training: Training, classes: int | None) -> TrainingAccuracy | None:
    """Return a counter of correct predictions; None if accuracy is not measured, or steps repeat their batches."""
    chosen = choose_metrics(training, classes).get("accuracy")
    if chosen is None or chosen.own or training.needs_closure:
        return None
    return TrainingAccuracy(chosen)
