"""One-sentence errors for problems of the user's model and metrics during training."""

import copy
import types
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common.imports import user_frames
from tenfold.data import DatasetPart, Part, batches, order
from tenfold.data.part import NO_LABEL, find_main_output, tree_leaves
from tenfold.errors import Diverged, ModelError
from tenfold.training import Replica, all_targets, predict
from tenfold.training.evaluation import check_fits, evaluation_mode, make_measure_error, required_bytes
from tenfold.training.flat_weights import state_shapes
from tenfold.training.measures import AlignedMeasure, as_number, describe_failure, describe_unclear_classes
from tenfold.training.network_call import autocast, call_network
from tenfold.training.randomness import keep_rng_state
from tenfold.training.stacked_replicas import ReplicaRows
from tenfold.workers.task import NetworkMetadata, Task

TRIED = (3, 2)
"""Samples for which outputs are computed to find which of their dimensions is that of the samples."""
FEW = 32
"""Samples on which the user's own metrics are tried, so that one that fails does so before the first epoch."""

LOSS_HINTS = {
    "does not require grad": "the loss has no gradient: compute it from the outputs with operations of torch that have "
    "one, without argmax, comparisons, detach or item",
    "only for scalar outputs": "the loss returns several numbers; it should return one, such as their mean",
    "has no attribute 'backward'": "the loss should return a tensor with one number",
}
"""Advice where torch cannot compute the gradient of a loss, by torch's message."""


def explain_failure(task: Task, replica: Replica | ReplicaRows, x: Any, y: Any, error: Exception) -> ModelError | None:
    """Return an error that describes the batch on which the model failed; None if a later batch failed in user code.

    On the first batch the model may not fit the data, so their shapes help; a later error is raised unchanged.
    """
    first = replica.steps <= 1
    if not first and user_frames(error):
        return None
    if not any(parameter.requires_grad for parameter in replica.network.parameters()):
        error.add_note("none of the model's parameters requires a gradient, so that nothing can be trained")
    elif hint := next((hint for text, hint in LOSS_HINTS.items() if text in str(error)), ""):
        error.add_note(hint)
    name, batch = task.experiment.model.name, "its first batch" if first else "a later batch"
    x, y = replica.batch(x, y)
    return ModelError(
        f"model {name} failed on {batch}, inputs {_described(x)} and targets {_described(y)}: "
        f"{describe_failure(error)}{user_frames(error)}"
    )


def check_shapes(network: nn.Module, metadata: NetworkMetadata) -> None:
    """Raise ModelError if a network's weights differ in shape from those in the process that started the run."""
    here, there = state_shapes(network), metadata.shapes
    if here != there:
        different = next((pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]), None)
        what = f"shape {different[0]}, not {different[1]}" if different else f"{len(here)} tensors, not {len(there)}"
        raise ModelError(
            f"the model has different weights in a worker than in the main process ({what}); build the same network in "
            "every process"
        )


def check_parameters(task: Task, replica: Replica | ReplicaRows, step: int) -> None:
    """Raise an error if the model has replaced a parameter, because the optimizer and rounds would not update it."""
    memory = task.workers > 1 or task.experiment.training.ema is not None
    if name := replica.find_replaced(memory=memory):
        raise ModelError(
            f"model {task.experiment.model.name} replaced its parameter {name} before step {step}, and the optimizer "
            "would not update the new one; change it in place: with torch.no_grad(): parameter.copy_(...)"
        )


def make_divergence_error(task: Task, loss: float, step: int, worker: int, *, from_the_start: bool = False) -> Diverged:
    """Return the error for a NaN or infinite loss; in the first step, the learning rate cannot be the cause."""
    if (unlabeled := _find_unlabeled_batch(task, step, worker)) is not None:
        return Diverged(
            f"the loss became {loss:g} in step {unlabeled} (worker {worker}): no sample of its batch has a label that "
            f"the loss counts (labels of {NO_LABEL} do not), so that there is nothing to average; leave out samples "
            "without labels, or use larger batches"
        )
    if from_the_start:
        return Diverged(
            f"the loss is {loss:g} already in the first step (worker {worker}), before any weight has changed; look "
            "for a logarithm of 0, a division by 0 or an overflow in the model and the loss, and for NaN in the samples"
        )
    unchecked = "; or look for NaN in the samples of the Dataset" if isinstance(task.splits.train, DatasetPart) else ""
    return Diverged(
        f"the loss became {loss:g} before step {step} (worker {worker}); "
        f"try a learning rate below {task.metadata.base_lr:g}, a warm-up, or clip{unchecked}"
    )


def _find_unlabeled_batch(task: Task, step: int, worker: int) -> int | None:
    """Return the step of a worker's batch without labels, among the last steps; None if there is none."""
    training, train = task.experiment.training, task.splits.train
    divisor = task.loss.divisor
    if divisor is None:
        return None
    epoch, last = divmod(step - 1, task.steps_per_epoch)
    own = batches(order(task.shards[worker], training.seed, epoch, worker), training.samples_per_step)
    first = max(0, last + 1 - 2 * training.log_every)  # earlier values were finite
    read = train.with_workers(0) if isinstance(train, DatasetPart) else train
    for place, (_, targets) in enumerate(read.batches(own[first : last + 1])):
        if not float(divisor(targets)):
            return epoch * task.steps_per_epoch + first + place + 1
    return None


def check_outputs(task: Task, network: nn.Module) -> str:
    """Return a warning if it is ambiguous which dimension of the outputs has the classes, or "".

    Raises ModelError if the first dimension of the outputs is not the samples. Both are checked for labels per
    position, and for the user's own loss or metrics; built-in ones compare the shapes themselves. The state of random
    generators is preserved.
    """
    training, train = task.experiment.training, task.splits.train
    targets = train.targets
    has_positions = targets.ndim > 1 if targets is not None else getattr(train, "label_range", None) is not None
    measures = [task.loss, *task.metrics.values()]
    if not has_positions and not any(measure.own for measure in measures):
        return ""
    joins_all = any(measure.own and measure.needs_all_outputs for measure in measures)
    with keep_rng_state():
        few = _few(train)
        _check_samples_first(network, few, training.precision, joins_all=joins_all)
        if not has_positions or not any(measure.needs_tensor for measure in measures):
            return ""
        outputs = predict(network, few, torch.arange(len(few)), precision=training.precision, main_only=True)
        return describe_unclear_classes(find_main_output(outputs), all_targets(few))


def _check_samples_first(network: nn.Module, few: Part, precision: str, *, joins_all: bool) -> None:
    """Raise ModelError if samples are the second dimension of an output that is concatenated: the main one, or any."""
    made = [_outputs_for(network, few, count, precision) for count in TRIED if count <= len(few)]
    if len(made) < len(TRIED):
        return
    outputs = made if joins_all else [[main] for item in made if (main := find_main_output(item)) is not None]
    for several in zip(*map(tree_leaves, outputs), strict=False):
        shapes = [tuple(item.shape) for item in several]
        if len(shapes) == len(TRIED) and _dimension(shapes, 1) and not _dimension(shapes, 0):
            raise ModelError(
                f"the network returns an output of shape {shapes[0]} for {TRIED[0]} samples; the first dimension "
                "should be the samples, not positions or layers: build recurrent layers with batch_first=True, or "
                "return output.transpose(0, 1)"
            )


def _dimension(shapes: list[tuple[int, ...]], number: int) -> bool:
    return all(len(shape) > number and shape[number] == count for shape, count in zip(shapes, TRIED, strict=True))


def _outputs_for(network: nn.Module, few: Part, samples: int, precision: str) -> Any:
    x, _ = next(few.batches([torch.arange(samples)]))
    device_type = next((parameter.device.type for parameter in network.parameters()), "cpu")
    with evaluation_mode(network), autocast(precision, device_type):
        return call_network(network, x)


def check_metrics(task: Task, network: nn.Module) -> None:
    """Raise ModelError if a metric cannot measure the evaluation part: a user's metric fails, or the outputs do not
        fit.

    The user's metrics are tried on a few samples and, if that fails, on all, because they may need more samples, such
    as one of each class. A metric that counts its calls is copied, and the state of random generators is preserved.
    """
    part, name = task.evaluation_part, task.evaluation_part_name
    training = task.experiment.training
    metrics = task.metrics
    needing = [label for label, metric in metrics.items() if metric.needs_all_outputs]
    own = [_copied(metric) for metric in metrics.values() if metric.own]
    if part is None or not len(part) or not needing:
        return
    with keep_rng_state():
        few = _few(part)
        outputs = predict(network, few, torch.arange(len(few)), precision=training.precision)
        needed = required_bytes(outputs, len(few), len(part))
        check_fits(needing, name, needed, len(part))
        try:
            _measure(outputs, all_targets(few), name, own)
        except ModelError:
            if hasattr(part, "rows"):  # the other samples are on other ranks
                raise
            check_fits(needing, name, needed * task.workers, len(part))  # all workers do the same
            outputs = predict(network, part, torch.arange(len(part)), precision=training.precision)
            _measure(outputs, all_targets(part), name, own)


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_described(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_described, value)) + ")"
    return (
        f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        if isinstance(value, Tensor)
        else str(type(value))
    )


def _measure(outputs: Any, targets: Tensor, name: str, metrics: list[AlignedMeasure]) -> None:
    with torch.no_grad():
        for metric in metrics:
            try:
                as_number(metric(outputs, targets), metric)
            except Exception as error:  # a user's metric may raise anything
                raise make_measure_error(name, outputs, targets, error) from error


def _few(part: Part) -> Part:
    here: Tensor = getattr(part, "rows", torch.arange(len(part)))
    few = part.subset(here[:FEW])
    return few.with_workers(0) if isinstance(few, DatasetPart) else few


def _copied(metric: AlignedMeasure) -> AlignedMeasure:
    if isinstance(metric.function, types.FunctionType):
        return metric
    copied = copy.copy(metric)
    try:
        copied.function = copy.deepcopy(metric.function)
    except Exception:  # if the user's object cannot be copied, the original is tried
        return metric
    return copied
