"""`tenfold.sklearn.Classifier`."""

from typing import Any, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from tenfold.sklearn.estimator import Array, Estimator


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
