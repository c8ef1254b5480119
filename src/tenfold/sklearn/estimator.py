"""What the two estimators have in common: parameters, the experiment they make, fitting and predicting."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from tenfold.data import Splits
from tenfold.data.part import Tensors
from tenfold.errors import ExperimentError
from tenfold.experiment import Experiment
from tenfold.experiment.section_fields import USUAL_BATCH
from tenfold.sklearn.fitting import fit, is_built_in, outputs_of

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
