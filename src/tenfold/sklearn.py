"""`Classifier` and `Regressor`: estimators of scikit-learn that train with Tenfold."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from tenfold.api.train import finished_run, noting, warn
from tenfold.data import Splits
from tenfold.data.part import Tensors
from tenfold.engines import RecordedRun, require_no_launcher, resolve
from tenfold.engines.base import train_recorded
from tenfold.engines.prepare import check_new_run, describe, prepare
from tenfold.engines.processes import Processes
from tenfold.errors import ExperimentError
from tenfold.experiment import FIELDS, Experiment
from tenfold.experiment.section_fields import USUAL_BATCH
from tenfold.experiment.values import PythonObject, count_workers
from tenfold.registry import MODELS
from tenfold.runs import Run, Store
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.events import Event, Stopwatch
from tenfold.runs.run import History
from tenfold.training.flat_weights import flat_dtype
from tenfold.training.measures import compares_numbers
from tenfold.workers.fork_server import start_server_for
from tenfold.workers.task import make_network

KIND = "fit"
PREDICTED_AT_ONCE = 2048


class Fitted(NamedTuple):
    """The result of training."""

    network: nn.Module
    result: dict[str, Any]
    history: list[dict[str, float]]
    run: Run | None


def fit(
    experiment: Experiment, splits: Splits, *, runs: str | Path | None, callbacks: Any, one_pass: bool = False
) -> Fitted:
    """Train on these parts, with real workers; it is recorded only if a folder of runs is given.

    `one_pass` says that this is one of many passes, so that few steps are no reason for a warning.
    """
    require_no_launcher("an estimator of scikit-learn")
    if experiment.machine.is_virtual:
        raise ExperimentError("estimators do not train on a virtual cluster; use tenfold.simulate")
    stopwatch, history = Stopwatch(), History()
    heard = Callbacks(warn, as_list(callbacks))

    def listen(event: Event) -> None:
        history(event)
        heard(event)

    resolved = resolve(experiment, noting(listen, stopwatch))
    experiment, engine = resolved.experiment, resolved.engine
    if isinstance(engine, Processes):
        start_server_for(experiment.parallel.workers)
    task = prepare(resolved, splits=splits)
    task = replace(task, expects_few_steps=one_pass)
    run = None
    check_new_run(task)
    if runs is None:
        outcome = engine.run(task, stopwatch, listen)
    else:
        store = Store(runs)
        number = store.create(experiment, kind=KIND, metadata=describe(task))
        outcome = train_recorded(engine.run, task, store, number, stopwatch, listen)
        run = finished_run(RecordedRun.finished(store, number, outcome, experiment))
    network = make_network(task).cpu()
    network.load_state_dict(outcome.weights)
    return Fitted(network.eval(), outcome.result, history.rows(), run)


class WeightedLoss:
    """A loss whose targets have the weight of each sample as their last column: the mean of weight x loss."""

    def __init__(self, loss: Any, classes: int | None, unit: Tensor | None = None) -> None:
        self.classes = classes
        self.unit = unit
        """The unit of numbers as targets: outputs and targets are divided by it."""
        given = loss if loss is not None else "cross-entropy" if classes is not None else "mse"
        made = LOSSES_OF_TORCH.get(given) if isinstance(given, str) else given
        made = made() if isinstance(made, type) else made
        if not isinstance(made, nn.Module) or not hasattr(made, "reduction"):
            names = ", ".join(LOSSES_OF_TORCH)
            raise ExperimentError(
                f"sample_weight needs the loss of each sample, but loss = {given} returns only a mean; use {names}, or "
                "a torch loss with a `reduction`"
            )
        self.elements = copy.deepcopy(made)
        self.elements.reduction = "none"  # type: ignore[assignment]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted mean."""
        wanted, weights = targets[:, :-1], targets[:, -1]
        if self.classes is not None:
            wanted = wanted[:, 0].long()
        else:
            outputs = outputs.reshape(wanted.shape)
            if self.unit is not None:
                unit = self.unit.to(outputs)
                outputs, wanted = outputs / unit, wanted / unit
        losses: Tensor = self.elements(outputs, wanted)
        return (losses.reshape(len(targets), -1).mean(1) * weights).mean()


LOSSES_OF_TORCH: dict[str, type[nn.Module]] = {
    "cross-entropy": nn.CrossEntropyLoss,
    "mse": nn.MSELoss,
    "l1": nn.L1Loss,
}


def weighted_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the accuracy where targets are a label and a weight."""
    right = (outputs.argmax(1) == targets[:, 0].long()) * targets[:, 1]
    return float(right.sum() / targets[:, 1].sum())


def outputs_of(network: nn.Module, x: Tensor, *, exact: bool) -> Tensor:
    """Return a network's outputs as float64, a batch at a time.

    `exact` computes in float64, so that the outputs for a sample do not depend on the batch it comes in.
    """
    if exact and flat_dtype(network) != torch.float64:
        network = copy.deepcopy(network).double()
    x = x.to(flat_dtype(network))
    with torch.inference_mode():
        return torch.cat([network(batch) for batch in torch.split(x, PREDICTED_AT_ONCE)]).double()


def is_built_in(model: object) -> bool:
    """Return whether a model is one of the built-in networks, which compute in any precision."""
    return model is None or (isinstance(model, str) and model in MODELS)


USUAL_STEPS = 300
"""The number of steps that the default number of epochs aims at; the next two limit the epochs."""
FEWEST_EPOCHS, MOST_EPOCHS = 10, 200
NARROWEST, WIDEST = 32, 256

Array = NDArray[Any]


@dataclass(eq=False, repr=False)
class Estimator(BaseEstimator):  # type: ignore[misc]
    """The parameters of both estimators; see `Classifier`."""

    model: Any = None
    _: KW_ONLY
    hidden: Sequence[int] | None = None
    epochs: int | None = None
    batch_size: int | None = None
    optimizer: Any = None
    lr: float | None = None
    weight_decay: float = 0.0
    loss: Any = None
    validation_fraction: float = 0.0
    patience: int | None = None
    workers: int | Literal["auto"] = 1
    strategy: str | None = None
    sync_every: int | Literal["epoch"] | None = None
    device: str = "cpu"
    threads: int | None = 1
    input_shape: Sequence[int] | None = None
    fields: Mapping[str, Any] | None = None
    callbacks: Any = None
    warm_start: bool = False
    random_state: Any = None
    runs: str | Path | None = None
    passes_: int = field(init=False)
    """How often `partial_fit` has been called."""

    @property
    def _continues(self) -> bool:
        """Whether `fit` continues from the network of the last one."""
        return bool(self.warm_start) and hasattr(self, "network_")

    def _fit(
        self,
        x: Array,
        targets: Array,
        *,
        classes: int | None,
        weights: Array | None = None,
        moments: tuple[Tensor, Tensor] | None = None,
        continues: bool = False,
        one_pass: bool = False,
    ) -> Self:
        """Train on checked inputs and targets; `continues` from the weights that the network has.

        `moments` are the mean and the deviation of numbers as targets, by which a new network converts its outputs.
        `one_pass` is one epoch at a constant rate.
        """
        if self.patience is not None and not self.validation_fraction:
            raise ExperimentError(
                f"patience = {self.patience} needs a validation part; set validation_fraction, such as 0.1"
            )
        passes = self.passes_ if continues and one_pass else 0
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) + passes
        outputs = classes or (targets.shape[1] if targets.ndim > 1 else 1)
        labels = targets if classes is not None else None
        if weights is not None:
            targets = np.concatenate([targets.reshape(len(targets), -1), weights[:, None]], axis=1)
        parts = [(x, targets)]
        if self.validation_fraction and not one_pass:
            split = train_test_split(x, targets, test_size=self.validation_fraction, random_state=seed, stratify=labels)
            parts = [(split[0], split[2]), (split[1], split[3])]
        if weights is not None:
            parts = [(inputs, _with_mean_weight(wanted)) for inputs, wanted in parts]
        tensors = [Tensors(self._inputs(inputs), torch.tensor(wanted)) for inputs, wanted in parts]
        splits = Splits(
            name="given",
            train=tensors[0],
            validation=tensors[1] if len(tensors) > 1 else None,
            shape=tuple(tensors[0].x.shape[1:]),
            classes=classes,
            outputs=outputs,
        )
        experiment = self._experiment(x, len(tensors[0]), outputs, seed, continues=continues)
        if one_pass:
            experiment = experiment.replace(epochs=1, schedule="constant", patience=None)
        if moments is not None and compares_numbers(experiment.training):
            mean, unit = moments
            scaling = None if continues else {"target_mean": mean, "target_deviation": unit}
            splits = replace(splits, scaling=scaling, loss_unit=unit)
        if weights is not None:
            experiment = self._weighted(experiment, classes, splits.loss_unit)
        fitted = fit(experiment, splits, runs=self.runs, callbacks=self.callbacks, one_pass=one_pass)
        self.experiment_ = experiment
        self.network_, self.result_, self.history_, self.run_ = fitted
        self.passes_ = passes + one_pass
        self.n_iter_ = passes + int(self.result_["epochs"])
        return self

    def _weighted(self, experiment: Experiment, classes: int | None, unit: Tensor | None) -> Experiment:
        """Return the experiment with a loss, and for classes an accuracy, that take weights of samples."""
        if experiment.training.metrics:
            raise ExperimentError(
                f"metrics ({', '.join(experiment.training.metric_names)}) do not support sample_weight; remove them "
                "from `fields`"
            )
        metrics = {"accuracy": weighted_accuracy} if classes is not None else ()
        given = experiment.training.loss
        loss = WeightedLoss(given.value if isinstance(given, PythonObject) else given, classes, unit)
        return experiment.replace(loss=loss, metrics=metrics, save_predictions=False)

    def _experiment(self, x: Array, samples: int, outputs: int, seed: int, *, continues: bool = False) -> Experiment:
        named = ("hidden", "batch_size", "optimizer", "lr", "loss", "patience", "strategy", "sync_every", "threads")
        fields: dict[str, Any] = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        fields |= {name: getattr(self, name) for name in ("weight_decay", "workers", "device")}
        fields |= {"seed": seed, "model": "mlp" if self.model is None else self.model}
        fields["epochs"] = self._usual_epochs(samples) if self.epochs is None else self.epochs
        if self.model is None and self.hidden is None:
            fields["hidden"] = (usual_width(x.shape[1] + outputs),)
        if is_built_in(self.model) and x.dtype == np.float64 and self.device != "mps":
            fields["precision"] = "fp64"
        fields |= dict(self.fields or {})
        if continues:
            of_model = [name for name in fields if FIELDS.get(name, ("",))[0] == "model"]
            fields = {name: value for name, value in fields.items() if name not in of_model}
            fields["model"] = self.network_
        return Experiment(name=type(self).__name__).replace(**fields)

    def _usual_epochs(self, samples: int) -> int:
        workers = count_workers(self.device) if self.workers == "auto" else max(1, self.workers)
        steps = math.ceil(samples / ((self.batch_size or USUAL_BATCH) * workers))
        return min(max(math.ceil(USUAL_STEPS / steps), FEWEST_EPOCHS), MOST_EPOCHS)

    def _inputs(self, x: Array) -> Tensor:
        tensor = torch.tensor(x)
        return tensor if self.input_shape is None else tensor.reshape(len(x), *self.input_shape)

    def _outputs(self, x: Any) -> Array:
        """Return the network's outputs for inputs that are not checked yet."""
        check_is_fitted(self)
        x = validate_data(self, x, dtype=[np.float64, np.float32], reset=False)
        outputs = outputs_of(self.network_, self._inputs(x), exact=is_built_in(self.model)).numpy()
        return outputs.reshape(len(x), -1)


def check_weights(sample_weight: Any, samples: int) -> Array | None:
    """Return a weight for each sample; None if none are given. Raises ValueError for anything else."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(samples, weights)
    if weights.shape != (samples,):
        raise ValueError(f"sample_weight has the shape {weights.shape}; it should be ({samples},), one for each sample")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
        raise ValueError("sample_weight should contain no negative weights and not only zero weights")
    return weights


def _with_mean_weight(targets: Array) -> Array:
    """Return targets whose last column, the weights, has the mean 1, so that the learning rate means the same."""
    mean = targets[:, -1].mean()
    if not mean > 0:
        raise ValueError("all samples of the validation part have weight 0; give some of them a positive weight")
    return np.concatenate([targets[:, :-1], targets[:, -1:] / mean], axis=1)


def usual_width(numbers: int) -> int:
    """Return the width of the hidden layer: a power of two, about twice the number of inputs and outputs."""
    return min(max(1 << math.ceil(math.log2(2 * numbers)), NARROWEST), WIDEST)


@dataclass(eq=False, repr=False, kw_only=True)
class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A network that classifies, as an estimator of scikit-learn.

    | parameter | meaning |
    |---|---|
    | model | a built-in name, a class or function that returns a network; default: an mlp sized to the data |
    | hidden | widths of the mlp's hidden layers |
    | epochs | passes over the data; default: about 300 steps |
    | batch_size, optimizer, lr, weight_decay, loss | the fields of an experiment |
    | validation_fraction, patience | share held out to watch, and after how many epochs without a better loss to stop |
    | workers, strategy, sync_every, device, threads | how the training is divided, and where it runs |
    | input_shape | the shape of a sample, where the model wants another than a row: (1, 28, 28) |
    | fields | further fields of the experiment by name: {"clip": 1.0} |
    | callbacks | callbacks, see `tenfold.Callback` |
    | class_weight | a dict of weights by label, or "balanced": n / (classes x n of the class) |
    | warm_start | whether `fit` continues from the network of the last `fit` |
    | random_state | seed of the weights and of the order of samples |
    | runs | folder to record every fit in as a run; default: not recorded |

    After `fit`: `classes_`, `n_features_in_`, `feature_names_in_`, `network_` (the trained module), `history_`,
    `result_`, `experiment_`, `n_iter_`, and `run_` (None unless recorded).

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> Classifier(random_state=0).fit(x, y).score(x, y) > 0.9
    True
    """

    class_weight: Any = None
    classes_: Array = field(init=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on inputs X (samples x features) and a label for each."""
        continues = self._continues
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=not continues)  # noqa: N806
        check_classification_targets(y)
        classes = np.unique(y)
        if len(classes) < 2:
            raise ValueError(f"Classifier needs two classes or more, but y has one class: {classes[0]}")
        if continues and not np.array_equal(classes, self.classes_):
            raise ValueError(
                f"y has the classes {classes}; with warm_start they should be the same as before: {self.classes_}"
            )
        self.classes_ = classes
        return self._learn(X, y, sample_weight, continues=continues)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train one pass over these samples at a constant rate, from the weights so far.

        The first call needs `classes`, the labels of all calls. The optimizer starts anew in each call.
        """
        continues = hasattr(self, "network_")
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=not continues)  # noqa: N806
        check_classification_targets(y)
        if self.class_weight == "balanced":
            raise ValueError('class_weight = "balanced" needs all samples; pass partial_fit a dict of weights')
        if not continues and classes is None:
            raise ValueError("the first call of partial_fit needs `classes`, the labels of all calls")
        labels = np.unique(classes) if classes is not None else self.classes_
        if continues and not np.array_equal(labels, self.classes_):
            raise ValueError(f"classes = {labels}; they should be the same as in the first call: {self.classes_}")
        if len(unknown := np.setdiff1d(y, labels)):
            raise ValueError(f"y has the label {unknown[0]}, which is not among the classes {labels}")
        self.classes_ = labels
        return self._learn(X, y, sample_weight, continues=continues, one_pass=True)

    def _learn(self, x: Array, y: Array, sample_weight: Any, *, continues: bool, one_pass: bool = False) -> Self:
        weights = check_weights(sample_weight, len(y))
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            weights = by_class if weights is None else weights * by_class
        numbers = np.searchsorted(self.classes_, y).astype(np.int64)
        count = len(self.classes_)
        return self._fit(x, numbers, classes=count, weights=weights, continues=continues, one_pass=one_pass)

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probability of each class (samples x classes, in the order of `classes_`)."""
        return np.asarray(softmax(self._outputs(X), axis=1))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the most probable class of each sample."""
        predicted = self._outputs(X).argmax(axis=1)
        return np.asarray(self.classes_[predicted])


class Regressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A network that predicts numbers, as an estimator of scikit-learn.

    The parameters and attributes are those of `Classifier`, but for `classes_`. With a loss of differences
    (mse, l1, ...), the network learns targets of mean 0 and standard deviation 1, and returns them in their own units.

    >>> from sklearn.datasets import make_regression
    >>> x, y = make_regression(200, 10, random_state=0)
    >>> Regressor(random_state=0).fit(x, y).score(x, y) > 0.9
    True
    """

    _moments: tuple[Tensor, Tensor]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on inputs X (samples x features) and a number, or a row of numbers, for each."""
        return self._learn(X, y, sample_weight, continues=self._continues)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train one pass over these samples at a constant rate, from the weights so far.

        The first call decides the scale of the targets. The optimizer starts anew in each call.
        """
        return self._learn(X, y, sample_weight, continues=hasattr(self, "network_"), one_pass=True)

    def _learn(self, x: Any, y: Any, sample_weight: Any, *, continues: bool, one_pass: bool = False) -> Self:
        numbers = {"multi_output": True, "y_numeric": True}
        x, y = validate_data(self, x, y, dtype=[np.float64, np.float32], reset=not continues, **numbers)
        weights = check_weights(sample_weight, len(y))
        rows = y.astype(np.float64).reshape(len(y), -1)
        if continues and len(self._moments[0]) != rows.shape[1]:
            raise ValueError(
                f"y has {rows.shape[1]} columns; the network was trained to predict {len(self._moments[0])}"
            )
        if not continues:
            mean = np.average(rows, axis=0, weights=weights)
            deviation = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))
            deviation = np.where(deviation > 0, deviation, 1.0)
            self._moments = torch.tensor(mean), torch.tensor(deviation)
        self._flat_target = y.ndim == 1
        return self._fit(
            x,
            rows,
            classes=None,
            weights=weights,
            moments=self._moments,
            continues=continues,
            one_pass=one_pass,
        )

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the predicted number, or row of numbers, of each sample."""
        predicted = self._outputs(X)
        return np.asarray(predicted[:, 0] if self._flat_target else predicted)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
