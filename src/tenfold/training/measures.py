"""Losses and metrics, by name or as the user's own functions of (outputs, targets)."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tenfold.common import catalog
from tenfold.common.imports import resolve
from tenfold.common.registry import Registry
from tenfold.errors import ExperimentError
from tenfold.experiment import Training
from tenfold.experiment.python_objects import PythonObject, RecordedObject
from tenfold.training.alignment import AlignedMeasure, align, require_same_shape

Measure = Callable[[Any, Any], Any]
OutputKind = Literal["classes", "logit", "numbers"]
"""What a network puts out: a logit for each class, a logit for each label, or plain numbers."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples whose largest output, or the sign of whose only one, names the right class."""
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        return (outputs.argmax(1) == targets).float().mean()
    outputs = _aligned(outputs, targets)
    return ((outputs > 0) == (targets > 0.5)).float().mean()


def mean_absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of |output - target|."""
    return (_aligned(outputs, targets) - targets).abs().mean()


def root_mean_square_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the root of the mean of (output - target)^2."""
    return (_aligned(outputs, targets) - targets).square().mean().sqrt()


def _aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs = align(outputs, targets, "this loss or metric")
    require_same_shape(outputs, targets)
    return outputs


def _shaped(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Compare outputs and targets of one shape and dtype."""

    def shaped(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(_aligned(outputs, targets), targets.to(outputs.dtype))

    return shaped


mean_square_loss = _shaped(functional.mse_loss)
mean_absolute_loss = _shaped(functional.l1_loss)
binary_cross_entropy_loss = _shaped(functional.binary_cross_entropy_with_logits)

LOSSES: Registry[Measure] = catalog.LOSSES
METRICS: Registry[Measure] = catalog.METRICS


def choose_loss(training: Training, classes: int | None) -> Measure:
    """Return the loss of the experiment; unset: cross-entropy where there are classes, else the squared error."""
    return _find(training.loss or ("cross-entropy" if classes is not None else "mse"), LOSSES)


def choose_metrics(training: Training, classes: int | None) -> dict[str, Measure]:
    """Return the metrics of the experiment by name; none given: accuracy where classes are learnt."""
    numbers = classes is None or training.loss in ("mse", "l1")
    chosen = training.metrics or (() if numbers else ("accuracy",))
    measures: dict[str, Measure] = {}
    for name in chosen:
        label = _label(name)
        if label in measures or label == "loss":
            taken = "the loss goes by it" if label == "loss" else "another metric has it"
            raise ExperimentError(
                f"a metric cannot be called '{label}', {taken}; name them: metrics={{'name': f, ...}}"
            )
        measures[label] = _find(name, METRICS)
    return measures


def output_kind(training: Training, classes: int | None) -> OutputKind:
    """Return what the experiment's networks put out, judged by the loss and the targets."""
    if training.loss == "bce":
        return "logit"
    return "classes" if classes is not None and training.loss not in ("mse", "l1") else "numbers"


def _label(name: str | PythonObject | RecordedObject) -> str:
    return name.rpartition(":")[2].rpartition(".")[2] if isinstance(name, str) else name.name


def _by_name(name: str, family: Registry[Measure]) -> Measure:
    """Return a built-in measure, or scikit-learn's scorer of this name."""
    if family is METRICS and name not in family:
        from sklearn.metrics import get_scorer_names

        from tenfold.training.scorers import scorer

        if name in get_scorer_names():
            return scorer(name)
    return family[name]


def _find(name: str | PythonObject | RecordedObject, family: Registry[Measure]) -> AlignedMeasure:
    if isinstance(name, PythonObject):
        value = name.value
    elif isinstance(name, RecordedObject):
        raise ExperimentError(f"the {family.kind} {name} was given as a Python object; pass it again")
    else:
        value = resolve(name, family.kind) if ":" in name else _by_name(name, family)
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        value = value()
    if not callable(value):
        raise ExperimentError(f"the {family.kind} {name} is a {type(value).__name__}; it must be f(outputs, targets)")
    return AlignedMeasure(value, f"the {family.kind} {_label(name)}")
