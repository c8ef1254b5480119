"""Losses and metrics: built-in ones by name, and the user's own functions of (outputs, targets)."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from tenfold import registry
from tenfold.common.imports import definition_of, resolve, user_frames
from tenfold.common.metric_traits import LOSS, METRICS, beyond_share, main_metric, metric_traits
from tenfold.data.part import NO_LABEL, main_output, tree_concatenate, tree_leaves, tree_map
from tenfold.errors import ExperimentError, ModelError, TenfoldError
from tenfold.experiment import Training
from tenfold.experiment.values import PythonObject, UnrecordedObject, label_of
from tenfold.registry import Registry
from tenfold.training.metrics import (
    ExactSum,
    SumMetric,
    Sums,
    align,
    aligned,
    by_sample,
    counted,
    elements_of_classes,
    mean_of,
    ranking_metric,
    ratio,
)
from tenfold.training.network_call import Outputs, describe_outputs

Measure = Callable[[Any, Any], Any]
Divisor = Callable[[Any], Tensor | float]
"""Returns the divisor of a loss that averages over a batch, given the targets."""
SUM_TOLERANCE = 1e-3
GRADIENT_TOLERANCE = 1e-3
"""Of the largest number: two gradients that differ by more are not equal up to rounding."""
OutputKind = Literal["classes", "logit", "probability", "numbers"]
"""The kind of outputs: a logit for each class, a logit or the probability of each label, or plain numbers."""
LOSSES_OF_LOGITS = ("bce", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
LOSSES_OF_PROBABILITIES = ("BCELoss", "binary_cross_entropy")
LOSSES_OF_NUMBERS = ("mse", "l1", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "mse_loss", "l1_loss")
"""Built-in losses, and those of torch by the names of their classes and functions."""


@dataclass(eq=False)
class AlignedMeasure:
    """A loss or a metric whose outputs are reshaped like the targets if they differ only by dimensions of size 1."""

    function: Callable[[Any, Any], Any]
    name: str
    """How errors name it: "the loss mse"."""
    needs_tensor: bool = False
    """Whether it takes one tensor of outputs, and is given the main one of several."""
    own: bool = False
    """Whether it is the user's own function."""
    optional: bool = False
    """Whether it was not requested, and is left out where the network has no main output."""
    metric: str = ""
    """Of a loss: a requested built-in metric; one that cannot take the outputs is refused on the first
    batch, and not after the first epoch."""
    convert: Callable[[Any, Any], tuple[Any, Any]] | None = None
    """Converts outputs and targets to the form that the function takes."""
    summed: SumMetric | None = None
    """The same as sums over samples; None if it cannot be computed from these."""
    divisor: Divisor | None = None
    """Of a loss: the divisor of its sum over the elements of a batch; None if that is not known."""
    is_sum: bool = False
    """Whether it is a loss of torch that adds up the samples of a batch; it is reported per sample."""
    is_loss: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.function, SumMetric):
            self.summed = self.function

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """Return the loss or metric; an error includes the shapes of the arguments."""
        return self._apply(self.function, outputs, targets)

    @property
    def needs_all_outputs(self) -> bool:
        """Whether it needs the outputs for all samples of a part together."""
        return self.summed is None and not self.is_loss

    @property
    def needs_whole_batches(self) -> bool:
        """Whether it is a loss that can only be computed batch by batch, as in training."""
        return self.summed is None and self.is_loss

    def sums(self, outputs: Any, targets: Any) -> Sums:
        """Return the sums of outputs and targets; for a loss without sums, its value weighted by the samples."""
        if self.summed is not None:
            return self._apply(self.summed.sums, outputs, targets)  # type: ignore[no-any-return]
        samples = len(tree_leaves(targets)[0])
        weighted = as_number(self(outputs, targets), self) * samples
        return {"sum": ExactSum.of(torch.tensor([weighted], dtype=torch.float64)), "count": counted(samples)}

    def value(self, sums: Sums) -> float:
        """Return the loss or metric, given the sums of all samples."""
        return self.summed.value(sums) if self.summed is not None else ratio("sum", "count")(sums)

    def _apply(self, function: Callable[[Any, Any], Any], outputs: Any, targets: Any) -> Any:
        if self.metric and not isinstance(outputs, Tensor):
            main_output(outputs, self.metric)
        if self.needs_tensor:
            outputs = classes_second(main_output(outputs, self.name), targets)
        elif isinstance(outputs, dict):
            outputs = Outputs(outputs)
        outputs = align(outputs, targets, self.name)
        if self.convert is not None:
            outputs, targets = self.convert(outputs, targets)
        try:
            return function(outputs, targets)
        except Exception as error:
            if isinstance(targets, Tensor):
                shapes = f"outputs of shape {describe_outputs(outputs)} and targets of shape {tuple(targets.shape)}"
                error.add_note(f"{self.name} was given {shapes}")
                if hint := self._hint(outputs, targets):
                    error.add_note(hint)
            raise

    def _hint(self, outputs: Any, targets: Tensor) -> str:
        """Return advice for labels given as floats, or for a network with too few outputs for cross-entropy."""
        if self.function is not functional.cross_entropy or not targets.numel():
            return ""
        if targets.is_floating_point():
            labels = isinstance(outputs, Tensor) and outputs.ndim == targets.ndim + 1
            return "the targets are floats; give labels as integers: y.long()" if labels else ""
        num_outputs = outputs.shape[1] if isinstance(outputs, Tensor) and outputs.ndim > targets.ndim else 1
        needed = int(targets.max()) + 1
        if num_outputs >= max(2, needed):
            return ""
        single = ', or set loss = "bce" for a single output' if num_outputs == 1 and needed <= 2 else ""
        return (
            f"labels from 0 to {needed - 1} need {max(2, needed)} outputs of the network, which has "
            f"{num_outputs}{single}"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AlignedMeasure) and self.function is other.function

    def __hash__(self) -> int:
        return hash(self.function)


def classes_second(outputs: Tensor, targets: Any) -> Tensor:
    """Return outputs (n, positions, classes) as (n, classes, positions), as torch's losses need them."""
    if outputs.ndim < 3 or not isinstance(targets, Tensor) or outputs.ndim != targets.ndim + 1:
        return outputs
    last = outputs.shape[1:-1] == targets.shape[1:] != outputs.shape[2:]
    return outputs.movedim(-1, 1) if last else outputs


def describe_unclear_classes(outputs: Tensor | None, targets: Any) -> str:
    """Return a warning if outputs have as many positions as classes, because their order is then ambiguous, or ""."""
    if outputs is None or not isinstance(targets, Tensor) or targets.is_floating_point():
        return ""
    has_positions = outputs.ndim >= 3 and outputs.ndim == targets.ndim + 1
    if not has_positions or not outputs.shape[1:-1] == targets.shape[1:] == outputs.shape[2:]:
        return ""
    return (
        f"the network's outputs for a sample, {tuple(outputs.shape[1:])}, have as many positions as classes: the first "
        "dimension is taken for the classes, as torch's losses do; if the classes come last in your network, let it "
        "return outputs.movedim(-1, 1)"
    )


def describe_equal_targets(targets: Any) -> str:
    """Return a warning if all samples have the same label or number, or ""."""
    if not isinstance(targets, Tensor) or (targets.is_floating_point() and targets.ndim > 1):
        return ""
    labels = targets[targets != NO_LABEL] if targets.ndim > 1 else targets
    if len(labels) < 2 or bool((labels != labels[0]).any()):
        return ""
    what = "numbers" if targets.is_floating_point() else "labels"
    return (
        f"all {len(labels):,} {what} to learn from are {labels[0].item():g}, so that there is nothing to tell apart; "
        "look at target_column, and at how the data were read and split"
    )


def describe_failure(error: BaseException) -> str:
    """Return an error as "ValueError: message", with the shapes of the arguments of a loss or a metric."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return str(error) if isinstance(error, TenfoldError) else f"{type(error).__name__}: {error}{notes}"


def _one_hot_to_labels(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class of each sample for one-hot targets or class probabilities, of which the largest counts."""
    several = outputs.ndim > 1 and outputs.shape == targets.shape and targets.shape[1] > 1
    return outputs, targets.argmax(1) if several else targets


def _probabilities_to_logits(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Convert probabilities to logits, for a network that ends with a sigmoid."""
    return outputs.logit(eps=1e-7), targets


def _shaped(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss with outputs converted to the shape and dtype of the targets."""

    def shaped(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss(aligned(outputs, targets), targets.to(outputs.dtype))

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
    """Return the loss that the network computed itself: its output called loss, or the only number of a tuple."""
    if isinstance(outputs, dict):
        if "loss" not in outputs:
            raise ModelError(
                f'loss = "network" needs an output called loss, but the network returned {", ".join(outputs)}; if it '
                "computes the loss only when it receives the labels, add their column to data.input_columns"
            )
        loss = outputs["loss"]
    else:
        loss = _find_loss(outputs) if isinstance(outputs, tuple) else outputs
    if loss.ndim > 1 or (loss.ndim and loss.requires_grad):
        raise ModelError(
            f'loss = "network" needs a single number from the network, not a tensor of shape {tuple(loss.shape)}; '
            "if it computes the loss only when it receives the labels, add their column to data.input_columns"
        )
    return loss  # type: ignore[no-any-return]


def _find_loss(outputs: tuple[Any, ...]) -> Tensor:
    """Return the only scalar among several outputs; if there is none or several, the first output."""
    numbers = [output for output in outputs if isinstance(output, Tensor) and not output.ndim]
    if len(numbers) > 1 and numbers[0] is not outputs[0]:
        raise ModelError(
            f'loss = "network" needs one number in the tuple that the network returns, but there are {len(numbers)}; '
            "return the loss first, or a dict with the key loss"
        )
    loss: Tensor = numbers[0] if numbers else tree_leaves(outputs)[0]
    return loss


LOSSES: Registry[Measure] = registry.LOSSES

_LOSSES_OF_ELEMENTS: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    mean_square_loss: _shaped(partial(functional.mse_loss, reduction="none")),
    mean_absolute_loss: _shaped(partial(functional.l1_loss, reduction="none")),
    binary_cross_entropy_loss: _shaped(partial(functional.binary_cross_entropy_with_logits, reduction="none")),
    **{
        function: partial(function, reduction="none")
        for function in (
            *(functional.mse_loss, functional.l1_loss, functional.smooth_l1_loss, functional.huber_loss),
            *(functional.soft_margin_loss, functional.multilabel_soft_margin_loss, functional.poisson_nll_loss),
            *(functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits),
        )
    },
}
"""Losses that are means over elements, with the functions that return these elements."""
_CLASSES_OF_ELEMENTS = (
    *(torch.nn.MSELoss, torch.nn.L1Loss, torch.nn.SmoothL1Loss, torch.nn.HuberLoss, torch.nn.PoissonNLLLoss),
    *(torch.nn.BCELoss, torch.nn.BCEWithLogitsLoss, torch.nn.SoftMarginLoss, torch.nn.MultiLabelSoftMarginLoss),
    *(torch.nn.MultiMarginLoss, torch.nn.MultiLabelMarginLoss, torch.nn.HingeEmbeddingLoss, torch.nn.KLDivLoss),
)
"""torch's losses whose `reduction` "none" returns such elements."""


def loss_as_sums(loss: Any) -> tuple[SumMetric, Divisor] | tuple[None, None]:
    """Return a built-in or torch loss as sums over samples, and its divisor.

    None for other losses, such as the user's own.
    """
    if loss is functional.cross_entropy or loss is functional.nll_loss:
        loss = torch.nn.CrossEntropyLoss() if loss is functional.cross_entropy else torch.nn.NLLLoss()
    of_labels = type(loss) in (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)
    if of_labels:
        summed = _sums_of_classes(loss)
    elif isinstance(loss, torch.nn.Module):
        if type(loss) not in _CLASSES_OF_ELEMENTS:
            return None, None
        elements: Callable[[Tensor, Tensor], Tensor] = _without_reduction(loss)
        if type(loss) in _ONE_OUTPUT_FOR_EACH_TARGET:
            elements = _shaped(elements)
        summed = _reduced(mean_of(elements), str(loss.reduction))
    else:
        of_elements = next((function for built_in, function in _LOSSES_OF_ELEMENTS.items() if built_in is loss), None)
        if of_elements is None:
            return None, None
        summed = mean_of(of_elements)

    def divisor(targets: Any) -> Tensor | float:
        if getattr(loss, "reduction", "mean") == "sum":
            return 1.0
        if not of_labels or not isinstance(targets, Tensor) or targets.is_floating_point():
            return float(len(tree_leaves(targets)[0]))  # samples have equally many elements
        labeled = targets != loss.ignore_index
        weights: Tensor = labeled if loss.weight is None else loss.weight[targets[labeled]]
        return weights.sum()

    return summed, divisor


def shares_of_pieces(divisor: Divisor | None, pieces: Sequence[Any]) -> list[float]:
    """Return the weights with which the losses of pieces add up to the loss of the batch, given their targets.

    If the loss is unknown, or there are no labels, they are the shares of the samples.
    """
    divisors = [float(divisor(targets)) for targets in pieces] if divisor is not None else []
    if divisor is not None and (whole := float(divisor(tree_concatenate(pieces)))):
        return [divisor / whole for divisor in divisors]
    samples = [len(tree_leaves(targets)[0]) for targets in pieces]
    return [count / sum(samples) for count in samples]


def is_mean_of_pieces(loss: Measure, pieces: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether the loss of two pieces together is the mean of their losses, weighted by samples.

    Pieces are outputs and targets. The gradients are compared, because losses may be equal by chance.
    """

    def gradient(outputs: Any, targets: Any) -> Tensor:
        followed = tree_map(lambda leaf: leaf.detach().requires_grad_(leaf.is_floating_point()), outputs)
        leaves = [leaf for leaf in tree_leaves(followed) if leaf.requires_grad]
        gradients = torch.autograd.grad(loss(followed, targets), leaves, materialize_grads=True)
        return torch.cat([item.reshape(len(item), -1).double() for item in gradients], 1)

    if any(not leaf.ndim for outputs, _ in pieces for leaf in tree_leaves(outputs)):
        return False  # a number that the network computed from its piece, such as a loss
    outputs, targets = (tree_concatenate(some) for some in zip(*pieces, strict=True))
    shares = shares_of_pieces(None, [piece for _, piece in pieces])
    whole = gradient(outputs, targets)
    joined = torch.cat([gradient(*piece) * share for piece, share in zip(pieces, shares, strict=True)])
    rounding = max(torch.finfo(leaf.dtype).eps for leaf in tree_leaves(outputs) if leaf.is_floating_point())
    largest = torch.maximum(whole.abs().max(), joined.abs().max())
    differ = (whole - joined).abs().max() > max(GRADIENT_TOLERANCE, 4 * rounding) * largest
    return not bool(differ)  # NaN is reported elsewhere


def _sums_of_classes(loss: Any) -> SumMetric:
    """Return cross-entropy as sums: of the losses of all labels, and of the labels' weights, the divisor."""
    elements = _without_reduction(loss)

    def sums(outputs: Tensor, targets: Tensor) -> Sums:
        values = elements_of_classes(elements, outputs, targets)
        weights: Tensor | ExactSum
        if targets.is_floating_point():  # class probabilities
            weights = counted(values.numel())
        elif loss.weight is None:
            weights = (targets != loss.ignore_index).sum()
        else:
            weights = ExactSum.of(loss.weight[targets[targets != loss.ignore_index]])
        return {"sum": ExactSum.of(by_sample(values)), "count": weights, "samples": counted(len(targets))}

    return _reduced(SumMetric(sums, ratio("sum", "count")), loss.reduction)


def _without_reduction(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    elements = copy.copy(loss)
    elements.reduction = "none"
    return elements  # type: ignore[no-any-return]


def _reduced(mean: SumMetric, reduction: str) -> SumMetric:
    """Return a loss with its `reduction`; "none" is averaged.

    A sum grows with the part, so it is reported per sample.
    """
    return SumMetric(mean.sums, ratio("sum", "samples")) if reduction in ("sum", "batchmean") else mean


def compares_numbers(training: Training) -> bool:
    """Return whether the loss depends only on differences of outputs and targets, which can then be rescaled."""
    return training.loss is None or _loss_name(training) in LOSSES_OF_NUMBERS


def takes_any_labels(training: Training) -> bool:
    """Return whether the loss is an object or an import path, which may support labels below 0."""
    return training.loss is not None and not (isinstance(training.loss, str) and ":" not in training.loss)


def choose_loss(training: Training, classes: int | None, unit: Tensor | None = None) -> "AlignedMeasure":
    """Return the loss of the experiment; default: cross-entropy if there are classes, otherwise the squared error.

    If a `unit` is given (one number, or one per target), outputs and targets are divided by it.
    """
    loss = _find(training.loss or ("cross-entropy" if classes is not None else "mse"), LOSSES)
    built_in = [metric for metric in training.metrics if isinstance(metric, str) and ":" not in metric]
    loss.metric = f"the metric {built_in[0]}" if built_in else ""
    if unit is not None and compares_numbers(training):
        loss.convert = _InUnits(unit)
    return loss


class _InUnits:
    """Divides outputs and targets by the unit of the targets."""

    def __init__(self, unit: Tensor) -> None:
        self._unit = unit
        self._number = float(unit) if unit.numel() == 1 else None
        self._moved: dict[torch.device, Tensor] = {}

    def __call__(self, outputs: Any, targets: Any) -> tuple[Any, Any]:
        if not isinstance(outputs, Tensor):
            return outputs, targets
        if self._number is not None:
            return outputs / self._number, targets / self._number
        if outputs.device not in self._moved:  # copied once, before a CUDA graph is captured
            self._moved[outputs.device] = self._unit.to(outputs)
        unit = self._moved[outputs.device]
        return outputs / unit, targets / unit


def choose_metrics(training: Training, classes: int | None) -> "dict[str, AlignedMeasure]":
    """Return the metrics of the experiment by name; default: accuracy if there are classes."""
    numbers = classes is None or _loss_name(training) in (*LOSSES_OF_NUMBERS, "network")
    chosen = training.metrics or (() if numbers else ("accuracy",))
    measures: dict[str, AlignedMeasure] = {}
    for name in chosen:
        label = label_of(name)
        if label in measures or label == "loss":
            why = "the loss goes by it" if label == "loss" else "another metric has it"
            raise ExperimentError(f"a metric cannot be called '{label}', {why}; name them: metrics={{'name': f, ...}}")
        measures[label] = _find(name, METRICS)
        measures[label].optional = not training.metrics
        if name == "accuracy" and _learns_one_class(training):
            measures[label].convert = _one_hot_to_labels
        elif _loss_name(training) in LOSSES_OF_PROBABILITIES and _takes_logits(name):
            measures[label].convert = _probabilities_to_logits
    return measures


def _loss_name(training: Training) -> str:
    """Return the name of a built-in loss, or of a torch loss class or function; "" for any other."""
    loss = training.loss
    if loss is None:
        return ""
    if isinstance(loss, PythonObject):
        is_of_torch = str(getattr(loss.value, "__module__", "")).startswith("torch.")
    elif isinstance(loss, UnrecordedObject):
        is_of_torch = loss.name.endswith("Loss")  # functions of torch are recorded with their module
    else:
        is_of_torch = ":" not in loss or loss.startswith("torch.")
    return label_of(loss) if is_of_torch else ""


def _takes_logits(metric: object) -> bool:
    """Return whether a built-in metric treats the outputs as logits of classes or labels."""
    from tenfold.training.metrics import OF_NUMBERS

    if not isinstance(metric, str) or ":" in metric:
        return False
    if (traits := metric_traits(metric)) is not None and traits.of_numbers:
        return False
    return ranking_metric(metric) is None and not metric.startswith(OF_NUMBERS)


def _learns_one_class(training: Training) -> bool:
    """Return whether the loss is cross-entropy; a sample then has one class, in any form of targets."""
    if training.loss is None or isinstance(training.loss, UnrecordedObject):
        return False
    loss = _find(training.loss, LOSSES).function
    return loss is functional.cross_entropy or isinstance(loss, torch.nn.CrossEntropyLoss)


def are_probabilities(outputs: Any, kind: OutputKind) -> bool:
    """Return whether outputs are class probabilities instead of logits, from a softmax in the network."""
    if kind != "classes" or not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
        return False
    return bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < SUM_TOLERANCE).all())


def is_share(outputs: Tensor) -> bool:
    """Return whether there is one output per sample, and all are between 0 and 1."""
    return outputs.numel() == len(outputs) and bool(((outputs >= 0) & (outputs <= 1)).all())


def output_kind(training: Training, classes: int | None, outputs: Tensor | None = None) -> OutputKind:
    """Return the kind of the experiment's outputs, inferred from the loss, the targets and the outputs.

    For two classes, a network with a single output returns a logit, or a probability if it ends with a sigmoid.
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
    if family is METRICS and name not in family:
        if (ranking := ranking_metric(name)) is not None:
            return ranking
        from sklearn.metrics import get_scorer_names

        from tenfold.training.metrics import scorer

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
        value = _made_without_arguments(value, f"the {family.kind} {label_of(name)}")
    if not callable(value):
        raise ExperimentError(f"the {family.kind} {name} is a {type(value).__name__}; it must be f(outputs, targets)")
    built_in = isinstance(name, str) and ":" not in name
    needs_tensor = (built_in or type(value).__module__.startswith("torch.")) and value is not loss_of_network
    summed, divisor = loss_as_sums(value) if family is LOSSES else (None, None)
    is_sum = divisor is not None and getattr(value, "reduction", "") == "sum"
    if family is LOSSES and type(value) in _ONE_OUTPUT_FOR_EACH_TARGET:  # not a subclass, which may behave differently
        value = _shaped(value)
    return AlignedMeasure(
        value,
        f"the {family.kind} {label_of(name)}",
        needs_tensor=needs_tensor,
        own=not built_in,
        summed=summed,
        divisor=divisor,
        is_sum=is_sum,
        is_loss=family is LOSSES,
    )


def _made_without_arguments(module: type[torch.nn.Module], what: str) -> torch.nn.Module:
    try:
        return module()
    except TypeError as error:
        if user_frames(error):  # its own code failed
            raise
        raise ExperimentError(f"{what} needs arguments ({error}); pass an instance instead of the class") from None


def as_number(value: Any, measure: Measure) -> float:
    """Return the value of a loss or metric as a number (the mean of several); raise ModelError if it is not one."""
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
            f"{name} returned {kind}; it should return a number, or a tensor of numbers to average"
            f"{definition_of(function)}"
        ) from None


def check_target(training: Training, classes: int | None, target: float | None) -> None:
    """Raise ExperimentError for a target that cannot be reached or whose direction is unknown."""
    if target is None:
        return
    metrics = choose_metrics(training, classes)
    metric = main_metric(metrics) or LOSS
    problem = beyond_share(metric, target)
    if problem and not metrics[metric].own:
        raise ExperimentError(f"target = {target:g}: {problem}")
    require_direction(training, metric, f"a target of {target:g}")


def require_direction(training: Training, metric: str, purpose: str) -> bool:
    """Return whether lower values of an experiment's main metric are better; raise ExperimentError if unknown.

    `purpose` is the beginning of the error message.
    """
    stated, direction = training.lower_is_better, training.prefers_lower(metric)
    if metric_traits(metric) is not None and stated is not None and stated != direction:
        better = "lower" if direction else "higher"
        raise ExperimentError(f"lower_is_better = {str(stated).lower()}: {better} values of {metric} are better")
    if direction is None:
        raise ExperimentError(
            f"{purpose} needs to know whether lower or higher values of the metric {metric} are better; set "
            "lower_is_better = true or false"
        )
    return direction


def check_labels(training: Training, targets: Any) -> None:
    """Raise ExperimentError if a loss would use the label that marks a missing one."""
    of_floats = _loss_name(training) in (*LOSSES_OF_LOGITS, *LOSSES_OF_PROBABILITIES, *LOSSES_OF_NUMBERS)
    if not of_floats or not isinstance(targets, Tensor) or targets.ndim < 2 or targets.is_floating_point():
        return
    if bool((targets == NO_LABEL).any()):
        raise ExperimentError(
            f"the label {NO_LABEL} marks a position without a label, but the loss {_loss_name(training)} does not "
            "ignore "
            'it; use loss = "cross-entropy", or a loss of your own that ignores such positions'
        )


def is_reached(value: float, target: float, *, lower: bool) -> bool:
    """Return whether a metric is at least as good as the target; `lower` says whether lower values are better."""
    return value <= target if lower else value >= target
