"""How good a network is on a part of the data and on its training batches, and which outputs are stored with a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tenfold.data import Part, Splits, batches
from tenfold.data.part import NO_LABEL
from tenfold.data.tree import find_main_output, tree_concatenate, tree_leaves, tree_map
from tenfold.errors import ModelError
from tenfold.experiment import Training
from tenfold.machine.cores import use_threads_that_exist
from tenfold.runs.stored_predictions import Predictions
from tenfold.training.measures import Measure, as_number, choose_metrics, classes_second, output_kind
from tenfold.training.network_call import autocast, call_network

BATCH, LARGE_BATCH = 128, 512
"""Samples at a time: on a CPU few enough for activations to stay in its cache, nearly twice as fast for `cnn`."""
MOST_NUMBERS = 1 << 18
"""Outputs of training batches are compared with their targets when at most this many numbers are kept: 1 MB."""
MOST_PICTURES = 24
SIDES = range(6, 257)
"""The heights and widths, in pixels, of samples that are treated as pictures."""


def predict(
    network: nn.Module,
    part: Part,
    samples: Tensor,
    *,
    precision: str = "fp32",
    mark: Callable[[], None] = lambda: None,
) -> Any:
    """Return the network's outputs for these samples of the part, in evaluation mode; its own mode is restored.

    They are a tensor, or a tuple or dict of tensors; a single number for a batch, such as a loss that the network
    computes, is repeated for each sample. `mark` is called after every batch.
    """
    use_threads_that_exist()
    modes = [(module, module.training) for module in network.modules()]  # a frozen layer may differ from the whole
    network.eval()
    device_type = next((parameter.device.type for parameter in network.parameters()), "cpu")
    try:
        with torch.no_grad(), autocast(precision, device_type):
            size = BATCH if device_type == "cpu" else LARGE_BATCH
            outputs = []
            for x, y in part.batches(batches(samples, size)):
                outputs.append(tree_map(partial(_by_sample, y=y), call_network(network, x)))
                mark()
    finally:
        for module, training in modes:
            module.training = training
    return tree_map(_on_cpu, join_outputs(outputs))


def join_outputs(outputs: Sequence[Any]) -> Any:
    """Return the outputs of several batches as those of one; an empty tensor where there are none."""
    found = [output for output in outputs if output is not None and len(tree_leaves(output)[0])]
    try:
        return tree_concatenate(found) if found else torch.empty(0)
    except RuntimeError as error:
        raise ModelError(
            f"the network's outputs for different batches cannot be joined ({error}); they should have the same shape, "
            "apart from the number of samples"
        ) from None


def _by_sample(output: Tensor, y: Any) -> Tensor:
    """Return an output with one row for each sample."""
    return output if output.ndim else output.expand(len(tree_leaves(y)[0]))


def _on_cpu(output: Tensor) -> Tensor:
    return output.float().cpu() if output.is_floating_point() else output.cpu()


def measure(outputs: Any, targets: Tensor, loss: Measure, metrics: Mapping[str, Measure]) -> dict[str, float]:
    """Return the loss and the metrics of these outputs."""
    if find_main_output(outputs) is None:
        metrics = {name: metric for name, metric in metrics.items() if not getattr(metric, "optional", False)}
    with torch.no_grad():
        return {name: as_number(one(outputs, targets), one) for name, one in {"loss": loss, **metrics}.items()}


def evaluate(
    network: nn.Module, part: Part, loss: Measure, metrics: Mapping[str, Measure], *, precision: str = "fp32"
) -> dict[str, float]:
    """Return the loss and the metrics over all samples of the part."""
    outputs = predict(network, part, torch.arange(len(part)), precision=precision)
    return measure(outputs, all_targets(part), loss, metrics)


def all_targets(part: Part) -> Tensor:
    """Return the target of every sample of the part."""
    if part.targets is not None:
        return part.targets.cpu()
    return torch.cat([y for _, y in part.batches(batches(torch.arange(len(part)), LARGE_BATCH))]).cpu()


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
        """Return how many labels were right and how many there were, since the last call."""
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
                by_position = targets.ndim > 1 and not targets.is_floating_point()
                count = int((targets != NO_LABEL).sum()) if by_position else len(targets)
                if count:
                    self._sums.append(self.measure(outputs, targets) * count)
                    self._samples += count
        except Exception:  # the evaluation reports what is wrong with it, if there is one
            return


def make_training_accuracy(training: Training, classes: int | None) -> TrainingAccuracy | None:
    """Return a counter of correct predictions; None if accuracy is not measured, or steps repeat their batches."""
    chosen = choose_metrics(training, classes).get("accuracy")
    if chosen is None or chosen.own or training.needs_closure:
        return None
    return TrainingAccuracy(chosen)


def make_predictions(
    training: Training, splits: Splits, part: str, outputs: Any, targets: Tensor
) -> Predictions | None:
    """Return outputs and targets of all samples of a part ("test", "validation"), in the form in which they are stored.

    Of several outputs it is the main one; None if there is none.
    """
    main = find_main_output(outputs)
    if main is None:
        return None
    main, numbers = classes_second(main, targets), splits.numbers.get(part)
    made = Predictions(
        part,
        output_kind(training, splits.classes, main),
        np.arange(len(main)) if numbers is None else numbers,
        main.cpu().numpy(),
        targets.cpu().numpy(),
    )
    samples: Part | None = getattr(splits, part)
    return made if samples is None or not _are_images(splits.shape) else _with_pictures(made, samples)


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
