"""The user's own metrics, tried on a few samples before an epoch is spent on finding out that one of them fails."""

import copy
import types
from typing import Any

import torch
from torch import Tensor, nn

from tenfold.common.user_code import user_frames
from tenfold.data import DatasetPart, Part
from tenfold.errors import ModelError
from tenfold.training import all_targets, choose_metrics, predict
from tenfold.training.measures import AlignedMeasure, as_number, describe_failure
from tenfold.training.network_call import describe_outputs
from tenfold.training.randomness import undisturbed
from tenfold.workers.task import Task

FEW = 32


def check_metrics(task: Task, network: nn.Module) -> None:
    """Raise ModelError if a metric of the user's own cannot measure the watched part.

    It is tried on a few samples. Where it fails there, all samples decide, since it may need more of them, such as one
    of each class. A metric that counts its calls is copied, and random generators are left as they were.
    """
    part, name = task.watched, task.watched_name
    training = task.experiment.training
    own = [_copied(metric) for metric in choose_metrics(training, task.splits.classes).values() if metric.own]
    if part is None or not len(part) or not own:
        return
    with undisturbed():
        try:
            _measure(network, _few(part), name, own, training.precision)
        except ModelError:
            _measure(network, part, name, own, training.precision)


def not_measured(part: str, outputs: Any, targets: Tensor, error: Exception) -> ModelError:
    """Return the error that says which outputs a loss or metric could not measure, and where it failed."""
    return ModelError(
        f"outputs {describe_outputs(outputs)} and targets {tuple(targets.shape)} of the {part} part cannot be "
        f"measured: {describe_failure(error)}{user_frames(error)}"
    )


def _measure(network: nn.Module, part: Part, name: str, metrics: list[AlignedMeasure], precision: str) -> None:
    outputs, targets = predict(network, part, torch.arange(len(part)), precision=precision), all_targets(part)
    with torch.no_grad():
        for metric in metrics:
            try:
                as_number(metric(outputs, targets), metric)
            except Exception as error:  # a user's metric may raise anything
                raise not_measured(name, outputs, targets, error) from error


def _few(part: Part) -> Part:
    few = part.subset(torch.arange(min(len(part), FEW)))
    return few.with_workers(0) if isinstance(few, DatasetPart) else few


def _copied(metric: AlignedMeasure) -> AlignedMeasure:
    if isinstance(metric.function, types.FunctionType):
        return metric
    copied = copy.copy(metric)
    try:
        copied.function = copy.deepcopy(metric.function)
    except Exception:  # an object of the user's that cannot be copied is tried itself
        return metric
    return copied
