"""Training on data that are in memory already, recorded or not, and predicting with the trained network."""

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from tenfold.api.train import finished_run, noting, warn
from tenfold.common.catalog import MODELS
from tenfold.data import Splits
from tenfold.data.loading import has_numbers_to_scale, with_scaling
from tenfold.data.part import Tensors
from tenfold.engines import RecordedRun, require_no_launcher, resolve
from tenfold.engines.prepare import check_new_run, describe, prepare
from tenfold.engines.processes import Processes
from tenfold.engines.recording import train_recorded
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.section_fields import USUAL_BATCH
from tenfold.launch.detect import detect_world
from tenfold.machine import devices
from tenfold.runs import Event, Run, Stopwatch, Store
from tenfold.runs.callbacks import Callbacks, as_list
from tenfold.runs.run import History
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


def fit(experiment: Experiment, splits: Splits, *, runs: str | Path | None, callbacks: Any) -> Fitted:
    """Train on these parts, with real workers; it is recorded only if a folder of runs is given."""
    require_no_launcher("an estimator of scikit-learn", detect_world())
    if experiment.machine.engine == "virtual":
        raise ExperimentError("an estimator trains with real workers; tenfold.simulate trains on a virtual cluster")
    stopwatch, history = Stopwatch(), History()
    heard = Callbacks(warn, as_list(callbacks))

    def listen(event: Event) -> None:
        history(event)
        heard(event)

    resolved = resolve(experiment, noting(listen, stopwatch))
    experiment, engine = resolved.experiment, resolved.engine
    if isinstance(engine, Processes):
        start_server_for(experiment.division.workers)
    task = prepare(experiment, splits=splits.to(devices.resolve(experiment.machine.device)))
    run = None
    check_new_run(task)
    if runs is None:
        outcome = engine.run(task, stopwatch, listen)
    else:
        store = Store(runs)
        number = store.create(experiment, kind=KIND, facts=describe(task))
        outcome = train_recorded(engine.run, task, store, number, stopwatch, listen)
        run = finished_run(RecordedRun.finished(store, number, outcome, experiment))
    network = make_network(task).cpu()
    network.load_state_dict(outcome.weights)
    return Fitted(network.eval(), outcome.result, history.rows(), run)


def outputs_of(network: nn.Module, x: Tensor, *, exact: bool) -> Tensor:
    """Return a network's outputs as float64, a batch at a time.

    `exact` computes in float64, so that the outputs for a sample do not depend on the batch it comes in.
    """
    if exact:
        network, x = copy.deepcopy(network).double(), x.double()
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


class Estimator(BaseEstimator):  # type: ignore[misc]
    """The parameters of both estimators; see `Classifier`."""

    def __init__(
        self,
        model: Any = None,
        *,
        hidden: Sequence[int] | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        optimizer: Any = None,
        lr: float | None = None,
        weight_decay: float = 0.0,
        loss: Any = None,
        validation_fraction: float = 0.0,
        patience: int | None = None,
        workers: int = 1,
        strategy: str | None = None,
        sync_every: int | Literal["epoch"] | None = None,
        device: str = "cpu",
        threads: int | None = 1,
        input_shape: Sequence[int] | None = None,
        fields: Mapping[str, Any] | None = None,
        callbacks: Any = None,
        random_state: Any = None,
        runs: str | Path | None = None,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.loss = loss
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.workers = workers
        self.strategy = strategy
        self.sync_every = sync_every
        self.device = device
        self.threads = threads
        self.input_shape = input_shape
        self.fields = fields
        self.callbacks = callbacks
        self.random_state = random_state
        self.runs = runs

    def _fit(self, x: Array, targets: Array, *, classes: int | None) -> Self:
        """Train on checked inputs and targets."""
        if self.patience is not None and not self.validation_fraction:
            raise ExperimentError(
                f"patience = {self.patience} needs a part to watch; set validation_fraction, such as 0.1"
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        parts = [(x, targets)]
        if self.validation_fraction:
            labels = targets if classes is not None else None
            split = train_test_split(x, targets, test_size=self.validation_fraction, random_state=seed, stratify=labels)
            parts = [(split[0], split[2]), (split[1], split[3])]
        tensors = [Tensors(self._inputs(inputs), torch.tensor(wanted)) for inputs, wanted in parts]
        outputs = classes or (targets.shape[1] if targets.ndim > 1 else 1)
        splits = Splits(
            name="given",
            train=tensors[0],
            validation=tensors[1] if len(tensors) > 1 else None,
            shape=tuple(tensors[0].x.shape[1:]),
            classes=classes,
            outputs=outputs,
        )
        self.experiment_ = self._experiment(len(tensors[0]), x.shape[1], outputs, seed)
        if has_numbers_to_scale(splits) and compares_numbers(self.experiment_.training):
            splits = with_scaling(splits, targets=True)
        fitted = fit(self.experiment_, splits, runs=self.runs, callbacks=self.callbacks)
        self.network_, self.result_, self.history_, self.run_ = fitted
        self.n_iter_ = int(self.result_["epochs"])
        return self

    def _experiment(self, samples: int, features: int, outputs: int, seed: int) -> Experiment:
        named = ("hidden", "batch_size", "optimizer", "lr", "loss", "patience", "strategy", "sync_every", "threads")
        fields: dict[str, Any] = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        fields |= {name: getattr(self, name) for name in ("weight_decay", "workers", "device")}
        fields |= {"seed": seed, "model": "mlp" if self.model is None else self.model}
        fields["epochs"] = self._usual_epochs(samples) if self.epochs is None else self.epochs
        if self.model is None and self.hidden is None:
            fields["hidden"] = (usual_width(features + outputs),)
        return Experiment(name=type(self).__name__).replace(**fields | dict(self.fields or {}))

    def _usual_epochs(self, samples: int) -> int:
        steps = math.ceil(samples / ((self.batch_size or USUAL_BATCH) * max(1, self.workers)))
        return min(max(math.ceil(USUAL_STEPS / steps), FEWEST_EPOCHS), MOST_EPOCHS)

    def _inputs(self, x: Array) -> Tensor:
        tensor = torch.tensor(x, dtype=torch.float32)
        return tensor if self.input_shape is None else tensor.reshape(len(x), *self.input_shape)

    def _outputs(self, x: Any) -> Array:
        """Return the network's outputs for inputs that are not checked yet."""
        check_is_fitted(self)
        x = validate_data(self, x, dtype=[np.float64, np.float32], reset=False)
        found = outputs_of(self.network_, self._inputs(x), exact=is_built_in(self.model)).numpy()
        return found.reshape(len(x), -1)


def usual_width(numbers: int) -> int:
    """Return the width of the hidden layer: a power of two, about twice the number of inputs and outputs."""
    return min(max(1 << math.ceil(math.log2(2 * numbers)), NARROWEST), WIDEST)


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
    | random_state | seed of the weights and of the order of samples |
    | runs | folder to record every fit in as a run; default: not recorded |

    After `fit`: `classes_`, `n_features_in_`, `feature_names_in_`, `network_` (the trained module), `history_`,
    `result_`, `experiment_`, `n_iter_`, and `run_` (None unless recorded).

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> Classifier(random_state=0).fit(x, y).score(x, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on inputs X (samples x features) and a label for each."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32])  # noqa: N806
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier needs two classes or more; y has one class only: {self.classes_[0]}")
        return self._fit(X, numbers.astype(np.int64), classes=len(self.classes_))

    def predict_proba(self, X: Any) -> Array:  # noqa: N803
        """Return the probability of each class (samples x classes, in the order of `classes_`)."""
        return np.asarray(softmax(self._outputs(X), axis=1))

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the most probable class of each sample."""
        found = self._outputs(X).argmax(axis=1)
        return np.asarray(self.classes_[found])


class Regressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A network that predicts numbers, as an estimator of scikit-learn.

    The parameters and attributes are those of `Classifier`, but for `classes_`. With a loss of differences
    (mse, l1, ...), the network learns targets of mean 0 and standard deviation 1, and returns them in their own units.

    >>> from sklearn.datasets import make_regression
    >>> x, y = make_regression(200, 10, random_state=0)
    >>> Regressor(random_state=0).fit(x, y).score(x, y) > 0.9
    True
    """

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Train on inputs X (samples x features) and a number, or a row of numbers, for each."""
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True)  # noqa: N806
        self._flat_target = y.ndim == 1
        return self._fit(X, y.astype(np.float32).reshape(len(y), -1), classes=None)

    def predict(self, X: Any) -> Array:  # noqa: N803
        """Return the predicted number, or row of numbers, of each sample."""
        found = self._outputs(X)
        return np.asarray(found[:, 0] if self._flat_target else found)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
