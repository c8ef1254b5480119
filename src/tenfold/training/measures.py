"""Losses and metrics, by name or as the user's own functions of (outputs, targets)."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tenfold.common import catalog
from tenfold.common.imports import resolve
from tenfold.common.registry import Registry
from tenfold.common.share_metrics import beyond_share
from tenfold.common.user_code import definition_of
from tenfold.data.part import NO_LABEL
from tenfold.data.tree import main_output
from tenfold.errors import ExperimentError, ModelError, TenfoldError
from tenfold.experiment import Training
from tenfold.experiment.values import PythonObject, UnrecordedObject, label_of
from tenfold.training.network_call import Outputs, describe_outputs
from tenfold.training.ranking import ranking_metric

Measure = Callable[[Any, Any], Any]
SUM_TOLERANCE = 1e-3
OutputKind = Literal["classes", "logit", "probability", "numbers"]
"""What a network's outputs are: a logit for each class, a logit or the probability of each label, or plain numbers."""
LOSSES_OF_LOGITS = ("bce", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
LOSSES_OF_PROBABILITIES = ("BCELoss", "binary_cross_entropy")
LOSSES_OF_NUMBERS = ("mse", "l1", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "mse_loss", "l1_loss")
"""Built-in losses, and those of torch by the names of their classes and functions."""


class AlignedMeasure:
    """A loss or a metric that is given outputs in the shape of the targets, where the two differ only by ones."""

    def __init__(self, function: Callable[[Any, Any], Any], name: str, *, needs_tensor: bool = False) -> None:
        self.function = function
        self.name = name
        """How errors name it: "the loss mse"."""
        self.needs_tensor = needs_tensor
        """Whether it takes one tensor of outputs, and is given the main one of several."""
        self.own = False
        """Whether it is the user's own function."""
        self.optional = False
        """Whether it was not asked for, and is left out where the network has no main output."""
        self.metric = ""
        """Of a loss: a built-in metric that was asked for; one that cannot take the outputs is refused on the first
        batch, and not after the first epoch."""

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """Return the loss or metric; an error notes the shapes that it was given."""
        if self.metric and not isinstance(outputs, Tensor):
            main_output(outputs, self.metric)
        if self.needs_tensor:
            outputs = classes_second(main_output(outputs, self.name), targets)
        elif isinstance(outputs, dict):
            outputs = Outputs(outputs)
        outputs = align(outputs, targets, self.name)
        try:
            return self.function(outputs, targets)
        except Exception as error:
            if isinstance(targets, Tensor):
                shapes = f"outputs of shape {describe_outputs(outputs)} and targets of shape {tuple(targets.shape)}"
                error.add_note(f"{self.name} was given {shapes}")
                if hint := self._hint(outputs, targets):
                    error.add_note(hint)
            raise

    def _hint(self, outputs: Any, targets: Tensor) -> str:
        """Return the advice for labels that are floats, and for a network with too few outputs for cross-entropy."""
        if self.function is not functional.cross_entropy or not targets.numel():
            return ""
        if targets.is_floating_point():
            labels = isinstance(outputs, Tensor) and outputs.ndim == targets.ndim + 1
            return "the targets are floats; give labels as integers: y.long()" if labels else ""
        found = outputs.shape[1] if isinstance(outputs, Tensor) and outputs.ndim > targets.ndim else 1
        needed = int(targets.max()) + 1
        if found >= max(2, needed):
            return ""
        single = ', or set loss = "bce" for a single output' if found == 1 and needed <= 2 else ""
        return f"labels from 0 to {needed - 1} need {max(2, needed)} outputs of the network, which has {found}{single}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AlignedMeasure) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.function)


def align(outputs: Any, targets: Any, name: str) -> Any:
    """Return outputs of shape (n, 1) as (n,) where the targets are, and the reverse; other outputs as they are."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor) or outputs.shape == targets.shape:
        return outputs
    if not outputs.ndim or not targets.ndim or len(outputs) != len(targets):
        raise ModelError(
            f"{name} cannot compare outputs of shape {tuple(outputs.shape)} with targets of shape "
            f"{tuple(targets.shape)}; both should begin with the number of samples"
        )
    if _without_ones(outputs) == _without_ones(targets):
        return outputs.reshape(targets.shape)
    return outputs


def classes_second(outputs: Tensor, targets: Any) -> Tensor:
    """Return outputs (n, positions, classes) as (n, classes, positions), which is what torch's losses take."""
    if outputs.ndim < 3 or not isinstance(targets, Tensor) or outputs.ndim != targets.ndim + 1:
        return outputs
    last = outputs.shape[1:-1] == targets.shape[1:] != outputs.shape[2:]
    return outputs.movedim(-1, 1) if last else outputs


def require_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise a ModelError unless there is one output for each target."""
    if outputs.shape != targets.shape:
        raise ModelError(
            f"outputs have shape {tuple(outputs.shape)} but targets {tuple(targets.shape)}; this loss or metric needs "
            "one output for each target, or integers as targets for classes"
        )


def describe_failure(error: BaseException) -> str:
    """Return an error as "ValueError: what was wrong", with the shapes that a loss or a metric was given."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return str(error) if isinstance(error, TenfoldError) else f"{type(error).__name__}: {error}{notes}"


def _without_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(size for size in tensor.shape[1:] if size != 1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of samples whose largest output, or the sign of whose only one, names the right class.

    Where a sample has a label for each of its positions, it is the share of the positions that have one.
    """
    if outputs.ndim == targets.ndim + 1 and outputs.shape[1] > 1:
        right = outputs.argmax(1) == targets
        return (right if targets.ndim == 1 else right[targets != NO_LABEL]).float().mean()
    if not targets.is_floating_point() and bool((targets > 1).any()):
        raise ModelError(
            f"accuracy needs an output for each class, but the network has one output for labels from 0 to "
            f"{int(targets.max())}; use rmse, mae or r2 for numbers"
        )
    if targets.is_floating_point() and not bool(((targets == 0) | (targets == 1)).all()):
        raise ModelError(
            "accuracy needs classes, but the targets are numbers other than 0 and 1; use rmse, mae or r2, or give "
            "classes as integers"
        )
    right = (_aligned(outputs, targets) > 0) == (targets > 0.5)
    return (right if targets.ndim == 1 else right[targets != NO_LABEL]).float().mean()


def accuracy_of_shares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the accuracy where targets may be one-hot or shares of classes, of which the largest is right."""
    if outputs.ndim > 1 and outputs.shape == targets.shape and targets.shape[1] > 1:
        targets = targets.argmax(1)
    return accuracy(outputs, targets)


def of_probabilities(measure: Measure, outputs: Tensor, targets: Tensor) -> Any:
    """Return a measure that takes logits, where the network's outputs are probabilities: it ends with a sigmoid."""
    return measure(outputs.logit(eps=1e-7), targets)


def phone_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the share of frames of speech whose state, a third of a phone, belongs to the right phone."""
    return (outputs.argmax(1) // 3 == targets // 3).float().mean()


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


_ONE_OUTPUT_FOR_EACH_TARGET = tuple(
    getattr(torch.nn, name)
    for name in (*LOSSES_OF_LOGITS, *LOSSES_OF_PROBABILITIES, *LOSSES_OF_NUMBERS)
    if "Loss" in name
)
"""Losses of torch that compare floats, also with labels that are given as integers."""

mean_square_loss = _shaped(functional.mse_loss)
mean_absolute_loss = _shaped(functional.l1_loss)
binary_cross_entropy_loss = _shaped(functional.binary_cross_entropy_with_logits)


def loss_of_network(outputs: Any, targets: Tensor) -> Tensor:  # noqa: ARG001
    """Return the loss that the network computed itself: its output called loss, or the first of several."""
    if isinstance(outputs, dict):
        if "loss" not in outputs:
            raise ModelError(f'loss = "network" needs an output called loss; the network returned {", ".join(outputs)}')
        found = outputs["loss"]
    else:
        found = outputs[0] if isinstance(outputs, tuple) else outputs
    if found.ndim > 1 or (found.ndim and found.requires_grad):
        raise ModelError(
            f'loss = "network" needs a single number from the network, not a tensor of shape {tuple(found.shape)}'
        )
    return found  # type: ignore[no-any-return]


LOSSES: Registry[Measure] = catalog.LOSSES
METRICS: Registry[Measure] = catalog.METRICS


def choose_loss(training: Training, classes: int | None) -> Measure:
    """Return the loss of the experiment; default: cross-entropy if there are classes, otherwise the squared error."""
    loss = _find(training.loss or ("cross-entropy" if classes is not None else "mse"), LOSSES)
    built_in = [metric for metric in training.metrics if isinstance(metric, str) and ":" not in metric]
    loss.metric = f"the metric {built_in[0]}" if built_in else ""
    return loss


def choose_metrics(training: Training, classes: int | None) -> "dict[str, AlignedMeasure]":
    """Return the metrics of the experiment by name; default: accuracy if there are classes."""
    numbers = classes is None or _loss_name(training) in (*LOSSES_OF_NUMBERS, "network")
    chosen = training.metrics or (() if numbers else ("accuracy",))
    measures: dict[str, AlignedMeasure] = {}
    for name in chosen:
        label = label_of(name)
        if label in measures or label == "loss":
            taken = "the loss goes by it" if label == "loss" else "another metric has it"
            raise ExperimentError(
                f"a metric cannot be called '{label}', {taken}; name them: metrics={{'name': f, ...}}"
            )
        measures[label] = _find(name, METRICS)
        measures[label].optional = not training.metrics
        if name == "accuracy" and _learns_one_class(training):
            measures[label].function = accuracy_of_shares
        elif _loss_name(training) in LOSSES_OF_PROBABILITIES and _takes_logits(name):
            measures[label].function = partial(of_probabilities, measures[label].function)
    return measures


def _loss_name(training: Training) -> str:
    """Return the name of a built-in loss, or the class or function of one of torch's; "" for any other."""
    loss = training.loss
    if loss is None:
        return ""
    if isinstance(loss, PythonObject):
        known = _is_of_torch(loss.value)
    elif isinstance(loss, UnrecordedObject):
        known = loss.name.endswith("Loss")  # functions of torch are recorded with their module
    else:
        known = ":" not in loss or loss.startswith("torch.")
    return label_of(loss) if known else ""


def _is_of_torch(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("torch.")


def _takes_logits(metric: object) -> bool:
    """Return whether a built-in metric treats the outputs as logits of classes or labels."""
    from tenfold.training.scorers import OF_NUMBERS

    if not isinstance(metric, str) or ":" in metric or metric in ("mae", "rmse"):
        return False
    return ranking_metric(metric) is None and not metric.startswith(OF_NUMBERS)


def _learns_one_class(training: Training) -> bool:
    """Return whether the loss is cross-entropy, so that a sample has one class, however the targets are written."""
    if training.loss is None or isinstance(training.loss, UnrecordedObject):
        return False
    loss = _find(training.loss, LOSSES).function
    return loss is functional.cross_entropy or isinstance(loss, torch.nn.CrossEntropyLoss)


def are_probabilities(outputs: Any, kind: OutputKind) -> bool:
    """Return whether outputs that should be a logit for each class are probabilities: the softmax is in the network."""
    if kind != "classes" or not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    return bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < SUM_TOLERANCE).all())


def is_share(outputs: Tensor) -> bool:
    """Return whether there is one output for each sample, and all lie between 0 and 1."""
    return outputs.numel() == len(outputs) and bool(((outputs >= 0) & (outputs <= 1)).all())


def output_kind(training: Training, classes: int | None, outputs: Tensor | None = None) -> OutputKind:
    """Return what the outputs of the experiment's networks are, judged by the loss, the targets and the outputs.

    A network with a single output for two classes gives a logit, or with a sigmoid at its end a probability.
    """
    loss, single = _loss_name(training), outputs is not None and outputs.numel() == len(outputs)
    each = single or (outputs is not None and outputs.ndim > 2 and outputs.shape[1] == 1)  # one for each position
    if loss == "bce" or (each and loss in LOSSES_OF_LOGITS):
        return "logit"
    if each and loss in LOSSES_OF_PROBABILITIES:
        return "probability"
    if classes is None or loss in LOSSES_OF_NUMBERS or (single and classes > 2):
        return "numbers"
    return "logit" if single else "classes"


def _by_name(name: str, family: Registry[Measure]) -> Measure:
    """Return a built-in measure, or scikit-learn's scorer of this name."""
    if family is METRICS and name not in family:
        ranking = ranking_metric(name)
        if ranking is not None:
            return ranking
        from sklearn.metrics import get_scorer_names

        from tenfold.training.scorers import scorer

        if name in get_scorer_names():
            return scorer(name)
    return family[name]


def _find(name: str | PythonObject | UnrecordedObject, family: Registry[Measure]) -> AlignedMeasure:
    if isinstance(name, PythonObject):
        value = name.value
    elif isinstance(name, UnrecordedObject):
        raise ExperimentError(f"the {family.kind} {name} was given as a Python object; pass it again")
    else:
        value = resolve(name, family.kind) if ":" in name else _by_name(name, family)
    if isinstance(value, type) and issubclass(value, torch.nn.Module):
        value = value()
    if not callable(value):
        raise ExperimentError(f"the {family.kind} {name} is a {type(value).__name__}; it must be f(outputs, targets)")
    built_in = isinstance(name, str) and ":" not in name
    needs_tensor = (built_in or type(value).__module__.startswith("torch.")) and value is not loss_of_network
    if family is LOSSES and type(value) in _ONE_OUTPUT_FOR_EACH_TARGET:  # not a subclass, which may do otherwise
        value = _shaped(value)
    found = AlignedMeasure(value, f"the {family.kind} {label_of(name)}", needs_tensor=needs_tensor)
    found.own = not built_in
    return found


def as_number(value: Any, measure: Measure) -> float:
    """Return what a loss or metric returned as a number: the mean of several; raise ModelError if it is not one."""
    try:
        if isinstance(value, str):
            raise TypeError
        if isinstance(value, Tensor) and value.ndim:
            value = (value if value.is_floating_point() else value.double()).mean()
        return float(value.mean() if getattr(value, "ndim", 0) else value)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        name, function = getattr(measure, "name", "a metric"), getattr(measure, "function", measure)
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise ModelError(
            f"{name} returned {kind}; it should return a number, or a tensor of numbers, which are averaged"
            f"{definition_of(function)}"
        ) from None


LOWER_IS_BETTER = ("loss", "mae", "rmse", "word_error_rate")
"""Metrics that are better the smaller they are. All others are better the larger they are."""


def target_metric(metrics: Iterable[str]) -> str:
    """Return the metric that a target is about: the first of the experiment's, or the loss where it has none."""
    return next(iter(metrics), "loss")


def check_target(training: Training, classes: int | None, target: float | None) -> None:
    """Raise an ExperimentError for a target that a built-in metric cannot reach."""
    if target is None:
        return
    metrics = choose_metrics(training, classes)
    metric = target_metric(metrics)
    problem = beyond_share(metric, target)
    if problem and not metrics[metric].own:
        raise ExperimentError(f"target = {target:g}: {problem}")


def check_labels(training: Training, targets: Any) -> None:
    """Raise an ExperimentError where a loss would compute with labels that stand for none."""
    of_floats = _loss_name(training) in (*LOSSES_OF_LOGITS, *LOSSES_OF_PROBABILITIES, *LOSSES_OF_NUMBERS)
    if not of_floats or not isinstance(targets, Tensor) or targets.ndim < 2 or targets.is_floating_point():
        return
    if bool((targets == NO_LABEL).any()):
        raise ExperimentError(
            f"the label {NO_LABEL} stands for a position without one, which the loss {_loss_name(training)} does not "
            'know; use loss = "cross-entropy", or a loss of your own that leaves such positions out'
        )


def is_reached(metric: str, value: float, target: float) -> bool:
    """Return whether a metric is at least as good as the target."""
    return value <= target if metric in LOWER_IS_BETTER else value >= target
